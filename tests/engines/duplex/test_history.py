"""What is remembered of a conversation in full duplex."""

from antiphon.engine_api import history as turns
from antiphon.engines.duplex.history import LOOKBACK_MS, MOST_PICTURES, MOST_SOUND_MS, MOST_TURNS, Recent, remembered

RATE_HZ = 1000


def user(*parts):
    return turns.Message("user", parts)


def after(*said):
    history = ()
    for message in said:
        history = remembered(history, message)
    return history


def test_the_newest_turns_are_remembered():
    said = [user(turns.TextPart(str(number))) for number in range(MOST_TURNS + 5)]
    assert after(*said) == tuple(said[5:])


def test_the_sound_of_old_turns_is_forgotten_and_the_turns_are_not():
    half = bytes(2 * RATE_HZ * MOST_SOUND_MS // 1000 // 2)
    said = [user(turns.SpeechPart(half, RATE_HZ, f"turn_{number}")) for number in range(3)]
    assert after(*said) == (user(turns.SpeechPart(b"", RATE_HZ, "turn_0")), *said[1:])


def test_the_newest_pictures_are_remembered():
    pictures = [turns.ImagePart(f"data:,{number}") for number in range(MOST_PICTURES + 2)]
    history = after(*(user(picture, turns.TextPart("Look")) for picture in pictures))
    assert [part for turn in history for part in turn.parts if isinstance(part, turns.ImagePart)] == pictures[2:]
    assert len(history) == len(pictures)


def clock(ms, start=0):
    """Sound whose samples tell when they were."""
    return b"".join((start + at).to_bytes(2, "little") for at in range(ms))


def test_the_sound_of_a_turn_is_kept_from_where_it_began():
    recent = Recent(RATE_HZ)
    recent.hear(clock(1000))
    recent.open(800)
    recent.hear(clock(500, 1000))
    assert recent.close(1200) == clock(400, 800)
    recent.open(1300)
    recent.hear(clock(100, 1500))
    assert recent.close(1600) == clock(300, 1300)


def test_while_nobody_speaks_little_is_kept():
    recent = Recent(RATE_HZ)
    for _ in range(100):
        recent.hear(bytes(2000))
    recent.open(0)
    assert 2 * LOOKBACK_MS <= len(recent.close(100_000)) <= 4 * LOOKBACK_MS


def test_of_a_turn_without_end_the_end_is_kept():
    recent = Recent(RATE_HZ)
    recent.open(0)
    for _ in range(300):
        recent.hear(bytes(2000))
    assert 2 * MOST_SOUND_MS <= len(recent.close(300_000)) <= 4 * MOST_SOUND_MS
