"""Whisper, with its real weights where its extra is installed."""

import importlib.util

import numpy as np
import pytest

from antiphon.engine_api.options import Transcription
from antiphon.errors import ClientError, ServerError
from antiphon.speech.stt.whisper import FILES, WhisperTranscriber
from support.speech.running import run, started
from support.speech.transcribers import OPTIONS, silence

MODEL = "whisper-base"
IS_INSTALLED = importlib.util.find_spec("faster_whisper") is not None


@pytest.fixture
def folder(weights):
    """Of the model's files; they are an extra, like what runs them."""
    if not IS_INSTALLED or not (weights / MODEL).is_dir():
        pytest.skip("needs the extra `whisper`, and its weights")
    return weights / MODEL


@pytest.mark.weights
def test_what_people_say_is_written_down_with_its_times(recording, folder):
    async def scenario():
        async with started(WhisperTranscriber(folder)) as ear:
            transcript = await ear.transcribe(recording("lv_0890"), Transcription(languages=("en",), word_times=True))
        assert transcript.text.lower().startswith("unless to be rather cold-hearted and rather selfish")
        assert " ".join(word.text for word in transcript.words) == transcript.text
        assert all(before.end_s <= after.start_s + 0.01 for before, after in zip(transcript.words, transcript.words[1:], strict=False))
        assert 4 < transcript.segments[-1].end_s < 6
        assert transcript.language == "en"

    run(scenario())


@pytest.mark.weights
def test_of_several_languages_the_likeliest_is_heard(recording, folder):
    async def scenario():
        async with started(WhisperTranscriber(folder)) as ear:
            assert (await ear.transcribe(recording("lv_0870"), Transcription(languages=("de", "en-GB")))).language == "en"

    run(scenario())


@pytest.mark.weights
def test_prompts_and_keywords_make_a_difference(recording, folder):
    async def scenario():
        async with started(WhisperTranscriber(folder)) as ear:
            wish = Transcription(languages=("en",), keywords=("clubs", "spades", "hearts"), prompt="Playing cards.")
            ear.check_options(wish)
            assert "clubs" in (await ear.transcribe(recording("cards_001"), wish)).text

    run(scenario())


@pytest.mark.weights
def test_nothing_is_written_down_where_nothing_is_said(folder):
    async def scenario():
        noise = np.random.default_rng(1).standard_normal(96_000) * 300
        async with started(WhisperTranscriber(folder)) as ear:
            for pcm in (b"", silence(0.05), silence(5), noise.astype("<i2").tobytes()):
                transcript = await ear.transcribe(pcm, OPTIONS)
                assert (transcript.text, transcript.segments, transcript.words) == ("", (), ())

    run(scenario())


@pytest.mark.weights
def test_what_it_cannot_do_is_refused_by_name(folder):
    async def scenario():
        async with started(WhisperTranscriber(folder)) as ear:
            assert len(ear.languages) == 99
            refused_wishes = {"language": Transcription(languages=("yue",)), "logprobs": Transcription(logprobs=True)}
            for param, wish in refused_wishes.items():
                with pytest.raises(ClientError) as refused:
                    ear.check_options(wish)
                assert refused.value.param == param

    run(scenario())


@pytest.mark.skipif(IS_INSTALLED, reason="the extra `whisper` is installed")
def test_without_its_extra_it_says_how_to_install_it(tmp_path):
    async def scenario():
        ear = WhisperTranscriber(tmp_path)
        with pytest.raises(ServerError, match=r"pip install .*\[whisper\]'"):
            await ear.start()
        await ear.stop()

    run(scenario())


@pytest.mark.skipif(not IS_INSTALLED, reason="needs the extra `whisper`")
@pytest.mark.parametrize(("files", "said"), [((), f"antiphon models pull {MODEL}"), (FILES, "can't be loaded")], ids=["missing", "altered"])
def test_a_model_that_is_missing_or_altered_says_so(files, said, tmp_path):
    async def scenario():
        for file in files:
            (tmp_path / file).write_bytes(b"{}")
        ear = WhisperTranscriber(tmp_path)
        with pytest.raises(ServerError, match=said):
            await ear.start()
        await ear.stop()

    run(scenario())
