"""Voice activity: the same for one stream and for many, with the gate and without."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from antiphon.engine_api.options import TurnDetection
from antiphon.speech.dsp.resample import resample
from antiphon.speech.turn_detection.endpoint import EndpointDetector, TurnEnded, TurnStarted
from antiphon.speech.turn_detection.vad import FRAME_MS, FRAME_SAMPLES, SileroVad

pytestmark = pytest.mark.weights
SECOND = bytes(32_000)


@pytest.fixture
def model(weights):
    return weights / "silero-vad" / "silero_vad.onnx"


@pytest.fixture(scope="module")
def conversation(recording):
    """All recordings, with 3 s of nothing before, between and after them."""
    return SECOND * 3 + b"".join(recording(name) + SECOND * 3 for name in ("cards_001", "cards_005", "lv_0870", "lv_0890"))


async def all_told(*streams):
    """Let the loop go round until nothing waits."""
    for _ in iter(lambda: any(stream.has_frames for stream in streams), False):
        await asyncio.sleep(0)


def listen(model, *sounds, piece_bytes=640, gated=True, rate_hz=16_000):
    """The results for each sound when all of them arrive in pieces."""

    async def run():
        activity = SileroVad(model, is_gated=gated)
        await activity.start()
        told = [[] for _ in sounds]
        streams = [activity.open(lambda at_ms, probability, to=to: to.append((at_ms, probability)), rate_hz) for to in told]
        for at in range(0, max(map(len, sounds)), piece_bytes):
            for stream, sound in zip(streams, sounds, strict=True):
                stream.append_audio(sound[at : at + piece_bytes])
            await all_told(*streams)
        for stream in streams:
            stream.close()
        assert activity.open_stream_count == 0
        activity.stop()
        return told

    return asyncio.run(run())


def turns(told):
    endpoint = EndpointDetector(TurnDetection(prefix_padding_ms=0))
    happened = [event for at_ms, probability in told for event in endpoint.process_frame(at_ms, probability)]
    return [event.at_ms for event in happened if isinstance(event, TurnStarted | TurnEnded)]


def quieter(pcm, by_db, hiss=0.0):
    samples = np.frombuffer(pcm, "<i2") * 10 ** (-by_db / 20)
    samples += np.random.default_rng(1).standard_normal(len(samples)) * hiss
    return samples.round().astype("<i2").tobytes()


def test_every_whole_frame_is_told_once_and_in_order(model, recording):
    pcm = recording("cards_001")
    (told,) = listen(model, pcm, piece_bytes=1_000)
    assert [at_ms for at_ms, _ in told] == [FRAME_MS * number for number in range(len(pcm) // 2 // FRAME_SAMPLES)]


def test_speech_is_told_from_silence(model, recording):
    (told,) = listen(model, SECOND + recording("lv_0890") + SECOND)
    speech = [probability > 0.5 for _, probability in told]
    assert not any(speech[:31]) and not any(speech[-25:])
    assert sum(speech) * FRAME_MS > 4_000


@pytest.mark.parametrize("piece_bytes", [2, 320, 1_024, 4_800, 1_000_000])
def test_how_the_sound_is_cut_makes_no_difference(model, recording, piece_bytes):
    pcm = recording("cards_001")
    expected, told = listen(model, pcm)[0], listen(model, pcm, piece_bytes=piece_bytes)[0]
    assert [at_ms for at_ms, _ in told] == [at_ms for at_ms, _ in expected]
    assert [probability for _, probability in told] == pytest.approx([probability for _, probability in expected], abs=1e-3)


@pytest.mark.parametrize("hiss", [0, pytest.param(3, marks=pytest.mark.long)])
def test_at_24_khz_the_same_turns_are_found_as_at_the_models_rate(model, conversation, hiss):
    sound = quieter(conversation, 0, hiss)
    (expected,), (told,) = listen(model, sound), listen(model, resample(sound, 16_000, 24_000), piece_bytes=960, rate_hz=24_000)
    assert [at_ms for at_ms, _ in told] == [at_ms for at_ms, _ in expected][: len(told)] and len(expected) - len(told) <= 1
    differences = np.abs([one[1] - other[1] for one, other in zip(expected, told, strict=False)])
    assert np.quantile(differences, 0.99) < 0.05 and differences.mean() < 0.003
    assert len(turns(told)) == 8 and np.abs(np.subtract(turns(told), turns(expected))).max() <= (FRAME_MS if hiss else 0)


@pytest.mark.parametrize("rate_hz", [8_000, 24_000])
@pytest.mark.parametrize("piece_bytes", [2, 320, 1_000_000])
def test_at_other_rates_the_cut_makes_no_difference_either(model, recording, rate_hz, piece_bytes):
    pcm = resample(recording("cards_001"), 16_000, rate_hz)
    (expected,), (told,) = listen(model, pcm, rate_hz=rate_hz), listen(model, pcm, piece_bytes=piece_bytes, rate_hz=rate_hz)
    assert [at_ms for at_ms, _ in told] == [at_ms for at_ms, _ in expected]
    assert [probability for _, probability in told] == pytest.approx([probability for _, probability in expected], abs=1e-3)


def test_streams_of_all_rates_in_one_batch_are_heard_each_at_its_own(model, recording):
    rates_hz = [16_000, 24_000, 8_000, 24_000, 16_000, 8_000]
    sounds = [resample(recording("lv_0890")[:64_000], 16_000, rate_hz) for rate_hz in rates_hz]

    async def run():
        activity, told = SileroVad(model), [[] for _ in rates_hz]
        await activity.start()
        streams = [
            activity.open(lambda _at_ms, probability, to=to: to.append(probability), rate_hz)
            for to, rate_hz in zip(told, rates_hz, strict=True)
        ]
        for stream, sound in zip(streams, sounds, strict=True):
            stream.append_audio(sound)
        await all_told(*streams)
        return told

    told = asyncio.run(run())
    for sound, rate_hz, together in zip(sounds, rates_hz, told, strict=True):
        (alone,) = listen(model, sound, rate_hz=rate_hz)
        assert together == pytest.approx([probability for _, probability in alone], abs=1e-3)


@pytest.mark.parametrize("rate_hz", [8_000, 24_000])
def test_a_stream_that_goes_on_at_the_models_rate_loses_no_time(model, conversation, rate_hz):
    first, last = conversation[: 32_000 * 5], conversation[32_000 * 5 : 32_000 * 13]

    async def run():
        activity, told = SileroVad(model), []
        await activity.start()
        stream = activity.open(lambda at_ms, probability: told.append((at_ms, probability)), rate_hz)
        stream.append_audio(resample(first, 16_000, rate_hz))
        stream.set_rate(16_000)
        stream.append_audio(last)
        await all_told(stream)
        return told

    carried = resample(resample(first, 16_000, rate_hz), rate_hz, 16_000)
    told, (expected,) = asyncio.run(run()), listen(model, carried + last)
    assert [at_ms for at_ms, _ in told] == [at_ms for at_ms, _ in expected]
    assert np.abs(np.subtract(turns(told), turns(expected))).max() <= FRAME_MS


@pytest.mark.parametrize("streams", [2, 5, 40])
def test_who_else_is_listened_to_makes_no_difference(model, recording, streams):
    sounds = [recording(("cards_001", "lv_0870", "cards_005", "lv_0890")[number % 4])[: 2 * 16_000] for number in range(streams)]
    for sound, told in zip(sounds[:4], listen(model, *sounds), strict=False):
        (alone,) = listen(model, sound)
        assert [probability for _, probability in told] == pytest.approx([probability for _, probability in alone], abs=1e-3)


@pytest.mark.parametrize(
    ("by_db", "hiss"), [(0, 0), (0, 10), (20, 3), pytest.param(0, 3, marks=pytest.mark.long), pytest.param(20, 0, marks=pytest.mark.long)]
)
def test_the_gate_finds_the_same_turns(model, conversation, by_db, hiss):
    sound = quieter(conversation, by_db, hiss)
    (gated,), (ungated,) = listen(model, sound), listen(model, sound, gated=False)
    assert len(turns(gated)) == len(turns(ungated)) == 8
    assert np.abs(np.subtract(turns(gated), turns(ungated))).max() <= FRAME_MS


def test_a_voice_that_can_hardly_be_heard_is_never_found_later_for_the_gate(model, conversation):
    sound = quieter(conversation, 40)
    (gated,), (ungated,) = listen(model, sound), listen(model, sound, gated=False)
    heard = {number for number, (_, probability) in enumerate(gated) if probability > 0.5}
    assert len(heard) >= sum(probability > 0.5 for _, probability in ungated)
    assert turns(gated)[0] <= turns(ungated)[0]


def test_silence_costs_the_model_nothing(model):
    asked = Counter()

    class Counting(SileroVad):
        def _infer(self, slots):
            asked.update(slots)
            return super()._infer(slots)

    async def run():
        activity, told = Counting(model), []
        await activity.start()
        stream = activity.open(lambda at_ms, probability: told.append(probability))
        for _ in range(60):
            stream.append_audio(SECOND)
            await all_told(stream)
        return told

    told = asyncio.run(run())
    assert len(told) == 60 * 32_000 // 1_024 and max(told) < 0.1
    assert sum(asked.values()) < 20


def test_one_who_sends_minutes_at_once_holds_up_nobody(model, recording):
    async def run():
        activity, order = SileroVad(model), []
        await activity.start()
        flood = activity.open(lambda at_ms, probability: order.append("flood"))
        other = activity.open(lambda at_ms, probability: order.append("other"))
        flood.append_audio(recording("lv_0870") * 8)
        other.append_audio(recording("cards_001")[:1_024])
        await all_told(other)
        assert flood.has_frames
        flood.close()
        return order

    order = asyncio.run(run())
    assert order.index("other") <= 4


def test_what_is_dropped_is_never_told_and_what_follows_is_in_its_place(model, recording):
    async def run():
        activity, told = SileroVad(model), []
        await activity.start()
        stream = activity.open(lambda at_ms, probability: told.append(at_ms))
        stream.append_audio(recording("cards_001")[: 10 * 1_024 + 512])
        stream.drop_frames()
        stream.append_audio(recording("cards_001")[: 1_024 - 512])
        await all_told(stream)
        return told

    assert asyncio.run(run()) == [10 * FRAME_MS]


def test_whoever_takes_a_frame_may_drop_the_rest_or_close(model, recording):
    async def run(act):
        activity, told = SileroVad(model), []
        await activity.start()
        stream = activity.open(lambda at_ms, probability: (told.append(at_ms), getattr(stream, act)()))
        stream.append_audio(recording("cards_001"))
        await all_told(stream)
        stream.close()
        assert activity.open_stream_count == 0
        return told

    assert asyncio.run(run("drop_frames")) == [0]
    assert asyncio.run(run("close")) == [0]


def test_a_place_that_is_used_again_remembers_nothing(model, recording):
    async def run():
        activity, told = SileroVad(model), ([], [])
        await activity.start()
        for to in told:
            stream = activity.open(lambda at_ms, probability, to=to: to.append(probability))
            stream.append_audio(recording("cards_001"))
            await all_told(stream)
            stream.close()
        return told

    first, second = asyncio.run(run())
    assert first == second


def test_more_streams_than_there_was_room_for_keep_what_they_know(model, recording):
    async def run():
        activity, told = SileroVad(model), []
        await activity.start()
        first = activity.open(lambda at_ms, probability: told.append(probability))
        pcm = recording("cards_001")
        first.append_audio(pcm[:16_384])
        await all_told(first)
        others = [activity.open(lambda at_ms, probability: None) for _ in range(100)]
        assert len({stream.slot for stream in (first, *others)}) == 101
        first.append_audio(pcm[16_384:])
        await all_told(first)
        return told

    (alone,) = listen(model, recording("cards_001"))
    assert asyncio.run(run()) == pytest.approx([probability for _, probability in alone], abs=1e-3)
