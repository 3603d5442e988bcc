"""The history of a full-duplex conversation."""

from antiphon.engine_api import history as engine_history
from antiphon.engine_api.options import LOOKBACK_MS
from antiphon.engines.duplex.history import MAX_AUDIO_MS, MAX_IMAGES, MAX_ITEMS, RecentAudio, append_message

RATE_HZ = 1000


def user(*parts):
    return engine_history.Message("user", parts)


def after(*said):
    history = ()
    for message in said:
        history = append_message(history, message)
    return history


def test_the_newest_turns_are_remembered():
    said = [user(engine_history.TextPart(str(number))) for number in range(MAX_ITEMS + 5)]
    assert after(*said) == tuple(said[5:])


def test_the_sound_of_old_turns_is_forgotten_and_the_turns_are_not():
    half = bytes(2 * RATE_HZ * MAX_AUDIO_MS // 1000 // 2)
    said = [user(engine_history.SpeechPart(half, RATE_HZ, f"turn_{number}")) for number in range(3)]
    assert after(*said) == (user(engine_history.SpeechPart(b"", RATE_HZ, "turn_0")), *said[1:])


def test_the_newest_pictures_are_remembered():
    pictures = [engine_history.ImagePart(f"data:,{number}") for number in range(MAX_IMAGES + 2)]
    history = after(*(user(picture, engine_history.TextPart("Look")) for picture in pictures))
    assert [part for turn in history for part in turn.parts if isinstance(part, engine_history.ImagePart)] == pictures[2:]
    assert len(history) == len(pictures)


def clock(ms, start=0):
    """Sound whose samples tell when they were."""
    return b"".join((start + at).to_bytes(2, "little") for at in range(ms))


def test_the_sound_of_a_turn_is_kept_from_where_it_began():
    recent = RecentAudio(RATE_HZ)
    recent.append(clock(1000))
    recent.start_turn(800)
    recent.append(clock(500, 1000))
    assert recent.end_turn(1200) == clock(400, 800)
    recent.start_turn(1300)
    recent.append(clock(100, 1500))
    assert recent.end_turn(1600) == clock(300, 1300)


def test_while_nobody_speaks_little_is_kept():
    recent = RecentAudio(RATE_HZ)
    for _ in range(100):
        recent.append(bytes(2000))
    recent.start_turn(0)
    assert 2 * LOOKBACK_MS <= len(recent.end_turn(100_000)) <= 4 * LOOKBACK_MS


def test_of_a_turn_without_end_the_end_is_kept():
    recent = RecentAudio(RATE_HZ)
    recent.start_turn(0)
    for _ in range(300):
        recent.append(bytes(2000))
    assert 2 * MAX_AUDIO_MS <= len(recent.end_turn(300_000)) <= 4 * MAX_AUDIO_MS
