"""Both sides of a session on one clock."""

import io
import wave
from array import array

import pytest

from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import PcmAudio, mix_to_wav, resample_linear
from antiphon.runtime.recording.timeline import RATE_HZ


def line(at_s, direction, offset, size_bytes):
    name = f"{direction}.wav"
    return EventLine(1, at_s, direction, {"type": "x", "audio": {"$media": name, "offset": offset, "bytes": size_bytes, "form": "pcm"}})


def tone(ms, level, rate_hz=RATE_HZ):
    return array("h", [level] * (rate_hz * ms // 1000)).tobytes()


def heard(lines, **sounds):
    """By side, what sounds from when to when, in milliseconds."""
    content = mix_to_wav(lines, {f"{name}.wav": sound for name, sound in sounds.items()})
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, RATE_HZ)
        both = array("h", file.readframes(file.getnframes()))
    return [spans(both[side::2]) for side in (0, 1)]


def spans(samples):
    found, begun = [], None
    for at, sample in enumerate([*samples, 0]):
        if sample and begun is None:
            begun = at
        elif not sample and begun is not None:
            found.append((1000 * begun // RATE_HZ, 1000 * at // RATE_HZ))
            begun = None
    return found


def test_what_was_said_stands_before_it_came_and_the_answer_after():
    pcm = tone(100, 1000)
    said, told = line(0.5, "in", 0, len(pcm)), line(0.6, "out", 0, len(pcm))
    assert heard([said, told], **{"in": PcmAudio(pcm, RATE_HZ), "out": PcmAudio(pcm, RATE_HZ)}) == [[(400, 500)], [(600, 700)]]


def test_an_answer_that_came_at_once_is_laid_out_as_it_is_played():
    pcm = tone(300, 1000)
    pieces = [line(1.0, "out", offset, len(pcm) // 3) for offset in range(0, len(pcm), len(pcm) // 3)]
    assert heard(pieces, out=PcmAudio(pcm, RATE_HZ)) == [[], [(1000, 1300)]]


def test_pieces_that_come_a_little_late_belong_together():
    pcm = tone(200, 1000)
    pieces = [line(0.1, "in", 0, len(pcm) // 2), line(0.25, "in", len(pcm) // 2, len(pcm) // 2)]
    assert heard(pieces, **{"in": PcmAudio(pcm, RATE_HZ)}) == [[(0, 200)], []]


@pytest.mark.parametrize(
    "cut",
    [{"type": "response.done", "response": {"status": "cancelled"}}, {"type": "response.output.delta", "interrupted": True}],
)
def test_an_answer_that_was_cut_short_is_not_heard_to_its_end(cut):
    pcm = tone(1000, 1000)
    lines = [line(1.0, "out", 0, len(pcm)), EventLine(2, 1.25, "out", cut)]
    assert heard(lines, out=PcmAudio(pcm, RATE_HZ)) == [[], [(1000, 1250)]]


def test_an_answer_that_the_client_stopped_playing_is_not_heard_to_its_end():
    def answer(at_s, item, from_ms, to_ms):
        offset, end = (at_ms * RATE_HZ // 1000 * 2 for at_ms in (from_ms, to_ms))
        delta = {"$media": "out.wav", "offset": offset, "bytes": end - offset, "form": "pcm"}
        return EventLine(1, at_s, "out", {"type": "response.output_audio.delta", "item_id": item, "delta": delta})

    told = {"type": "conversation.item.truncated", "item_id": "item_1", "audio_end_ms": 700}
    pieces = [answer(1.0, "item_1", 0, 500), answer(1.0, "item_1", 500, 1000), EventLine(2, 1.75, "out", told)]
    sound = PcmAudio(tone(1500, 1000), RATE_HZ)
    assert heard(pieces, out=sound) == [[], [(1000, 1700)]]
    assert heard([*pieces, answer(2.0, "item_2", 1000, 1500)], out=sound) == [[], [(1000, 1700), (2000, 2500)]]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_sound_of_another_rate_lasts_as_long(rate_hz):
    pcm = tone(100, 1000, rate_hz)
    assert heard([line(0.1, "in", 0, len(pcm))], **{"in": PcmAudio(pcm, rate_hz)}) == [[(0, 100)], []]


def test_between_samples_there_is_a_straight_line():
    assert array("h", resample_linear(PcmAudio(array("h", [0, 300, 600, 900]).tobytes(), 8_000))).tolist()[:7] == [
        0,
        100,
        200,
        300,
        400,
        500,
        600,
    ]
    assert array("h", resample_linear(PcmAudio(array("h", [0, 300, 600]).tobytes(), 16_000))).tolist() == [0, 200, 400, 600]
