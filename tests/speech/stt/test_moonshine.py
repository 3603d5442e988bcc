"""Moonshine, with its real weights."""

import asyncio
import threading

import numpy as np
import pytest

from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.speech.stt.moonshine import FILES, MoonshineTranscriber
from support.speech.running import run, started
from support.speech.transcribers import OPTIONS, silence

MODEL = "moonshine-tiny-en"
SAID = {
    "cards_001": "Ten of clubs.",
    "lv_0870": "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power to do for them.",
    "lv_0890": "Unless to be rather cold-hearted and rather selfish, is to be ill-disposed,",
}


def noise(seconds, dbfs):
    samples = np.random.default_rng(1).standard_normal(int(seconds * 16_000)) * 10 ** (dbfs / 20) * 32_768
    return samples.clip(-32_768, 32_767).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def with_moonshine(weights):
    """Runs a scenario with a model that several tests share, as it takes longer to load than a test takes."""
    with asyncio.Runner() as runner:
        ear = MoonshineTranscriber(weights / MODEL)
        runner.run(ear.start())
        yield lambda scenario: runner.run(asyncio.wait_for(scenario(ear), 120))
        runner.run(ear.stop())


@pytest.mark.weights
def test_what_people_say_is_written_down(recording, with_moonshine):
    async def scenario(ear):
        for name, text in SAID.items():
            transcript = await ear.transcribe(recording(name), OPTIONS)
            assert (transcript.text, transcript.language) == (text, "en")
            assert 3 < transcript.tokens < 40

    with_moonshine(scenario)


@pytest.mark.weights
def test_several_are_written_down_at_once(recording, with_moonshine):
    async def scenario(ear):
        async with asyncio.TaskGroup() as tasks:
            asked = {name: tasks.create_task(ear.transcribe(recording(name), OPTIONS)) for name in SAID}
            for name, task in asked.items():
                assert (await task).text == SAID[name]

    with_moonshine(scenario)


@pytest.mark.weights
def test_a_long_sound_is_cut_in_its_pauses_and_nothing_is_lost(recording, with_moonshine):
    async def scenario(ear):
        pause = silence(0.4)
        transcript = await ear.transcribe(pause.join([recording("lv_0870"), recording("lv_0890")] * 2), OPTIONS)
        said = transcript.text.lower()
        assert said.count("john dashwood") == said.count("to do for them") == said.count("selfish") == said.count("disposed") == 2

    with_moonshine(scenario)


@pytest.mark.weights
@pytest.mark.parametrize(
    "pcm",
    [b"", b"\1\0", silence(0.05), silence(5), noise(6, -65), noise(1, -40), noise(6, -40), silence(2)[:-2] + b"\xff\x7f"],
    ids=["nothing", "a sample", "a moment", "silence", "faint noise", "a second of noise", "noise", "a click"],
)
def test_nothing_is_written_down_where_nothing_is_said(pcm, with_moonshine):
    async def scenario(ear):
        assert (await ear.transcribe(pcm, OPTIONS)).text == ""

    with_moonshine(scenario)


@pytest.mark.weights
def test_a_loop_is_given_up_on_before_the_most_there_could_be(with_moonshine):
    async def scenario(ear):
        beat = np.repeat(np.tile([0.1, 1.0], 18), 8_000)
        samples = np.random.default_rng(1).standard_normal(len(beat)) * beat * 300
        transcript = await ear.transcribe(samples.astype("<i2").tobytes(), OPTIONS)
        assert 0 < transcript.tokens < 188

    with_moonshine(scenario)


@pytest.mark.weights
def test_more_than_can_wait_is_refused_and_cancelling_makes_room(recording, weights):
    async def scenario():
        async with started(MoonshineTranscriber(weights / MODEL, max_workers=1, max_pending=1)) as ear, asyncio.TaskGroup() as tasks:
            long = recording("lv_0870") * 20
            under_way = [tasks.create_task(ear.transcribe(long, OPTIONS)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as refused:
                await ear.transcribe(long, OPTIONS)
            assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
            for task in under_way:
                task.cancel()
            await asyncio.wait(under_way)
            assert (await ear.transcribe(recording("cards_001"), OPTIONS)).text == SAID["cards_001"]

    run(scenario())


@pytest.mark.weights
def test_stopping_breaks_off_what_is_under_way_and_leaves_no_thread(recording, weights):
    async def scenario():
        before = threading.enumerate()
        ear = MoonshineTranscriber(weights / MODEL, max_workers=1)
        await ear.start()

        async def told_it_was_stopped():
            with pytest.raises(ApiError, match="shutting down"):
                await ear.transcribe(recording("lv_0870") * 100, OPTIONS)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(told_it_was_stopped())
            await asyncio.sleep(0)
            await ear.stop()
        await ear.stop()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("antiphon-moonshine") and thread not in before]

    run(scenario())


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        (Transcription(languages=("de",)), "language"),
        (Transcription(languages=("en", "fr")), "language"),
        (Transcription(logprobs=True), "logprobs"),
        (Transcription(word_times=True), "timestamp_granularities"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(wish, param, tmp_path):
    with pytest.raises(ClientError) as refused:
        MoonshineTranscriber(tmp_path).check_options(wish)
    assert refused.value.param == param
    assert MODEL in refused.value.message


@pytest.mark.parametrize(
    "wish",
    [
        Transcription(),
        Transcription(languages=("en",)),
        Transcription(languages=("en-GB",), delay="low"),
        Transcription(prompt="Cards", keywords=("clubs",)),
    ],
)
def test_english_is_what_it_understands(wish, tmp_path):
    MoonshineTranscriber(tmp_path).check_options(wish)


def test_a_model_that_is_not_there_says_how_to_get_it(tmp_path):
    async def scenario():
        ear = MoonshineTranscriber(tmp_path)
        with pytest.raises(ServerError, match=f"antiphon models pull {MODEL}"):
            await ear.start()
        with pytest.raises(ServerError, match="not loaded"):
            await ear.transcribe(silence(1), OPTIONS)
        await ear.stop()

    run(scenario())


def test_a_model_that_is_altered_says_so(tmp_path):
    async def scenario():
        for file in FILES:
            (tmp_path / file).write_bytes(b"no model")
        ear = MoonshineTranscriber(tmp_path)
        with pytest.raises(ServerError, match="can't be loaded"):
            await ear.start()
        await ear.stop()

    run(scenario())
