"""Voices in processes of their own: Kokoro's, then Piper's."""

import asyncio
import importlib.util
import json
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from antiphon.audio import peak
from antiphon.errors import ApiError, ServerError
from antiphon.speech.base import WHOLE_SENTENCE, SentenceContext
from antiphon.speech.tts.voices import kokoro_synthesizer, piper_synthesizer
from support.speech.running import run, started
from support.speech.synthesizers import collect_audio

KOKORO_FOLDER = Path.home() / ".cache" / "antiphon" / "models" / "kokoro-82m-int8"
needs_kokoro = pytest.mark.skipif(
    not KOKORO_FOLDER.exists() or importlib.util.find_spec("piper") is None, reason="needs the extra 'piper' and the voice kokoro-82m-int8"
)


def test_voices_whose_language_can_be_spoken_are_offered_the_favourite_first(tmp_path):
    (tmp_path / "voices").mkdir()
    for name in ("model.onnx", "voices/am_adam.bin", "voices/af_heart.bin", "voices/jf_alpha.bin", "bf_emma.bin"):
        (tmp_path / name).write_bytes(b"")
    assert kokoro_synthesizer(tmp_path).voices == ("af_heart", "am_adam", "bf_emma")


def test_a_folder_without_model_or_voice_is_refused(tmp_path):
    with pytest.raises(ServerError, match="no Kokoro voice"):
        kokoro_synthesizer(tmp_path)


@needs_kokoro
def test_every_language_is_spoken_and_words_are_in_their_places():
    async def scenario():
        async with started(kokoro_synthesizer(KOKORO_FOLDER)) as mouth:
            for voice in mouth.voices:
                pieces = await collect_audio(mouth, "Hello there, you.", voice)
                assert [piece.text for piece in pieces] == ["Hello ", "there, ", "you."]
                assert all(0.03 < len(piece.pcm) / 48_000 < 2.5 for piece in pieces)
                assert 4_000 < peak(b"".join(piece.pcm for piece in pieces)) <= 32_767

    run(scenario())


@needs_kokoro
def test_kokoro_is_as_fast_as_is_asked_also_where_the_model_is_not():
    async def scenario():
        async with started(kokoro_synthesizer(KOKORO_FOLDER)) as mouth:
            usual, fast = [
                sum(len(piece.pcm) for piece in await collect_audio(mouth, "Hello there, you.", None, speed)) for speed in (1, 4)
            ]
            assert usual / fast == pytest.approx(4, rel=0.15)

    run(scenario())


needs_piper = pytest.mark.skipif(importlib.util.find_spec("piper") is None, reason="needs the extra 'piper'")


def made(folder, name, rate_hz=16_000):
    (folder / f"{name}.onnx").write_bytes(b"")
    (folder / f"{name}.onnx.json").write_text(json.dumps({"audio": {"sample_rate": rate_hz}}))


def test_every_voice_in_the_folders_is_offered_and_the_first_sets_the_rate(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    made(tmp_path / "one", "b", 22_050)
    made(tmp_path / "one", "a")
    made(tmp_path / "two", "a")
    made(tmp_path / "two", "c")
    (tmp_path / "two" / "no-settings.onnx").write_bytes(b"")
    mouth = piper_synthesizer([tmp_path / "one", tmp_path / "two"])
    assert mouth.voices == ("a", "b", "c")
    assert mouth.rate_hz == 16_000


def test_folders_without_a_voice_are_refused(tmp_path):
    with pytest.raises(ServerError, match="no Piper voice"):
        piper_synthesizer([tmp_path])
    (tmp_path / "a.onnx").write_bytes(b"")
    (tmp_path / "a.onnx.json").write_text("{}")
    with pytest.raises(ServerError, match="can't be read"):
        piper_synthesizer([tmp_path])


@needs_piper
def test_weights_that_are_none_are_told_at_the_start(tmp_path):
    made(tmp_path, "a")

    async def scenario():
        with pytest.raises(ApiError, match="can't be loaded"):
            await piper_synthesizer([tmp_path]).start()

    run(scenario())


@pytest.fixture(scope="module")
def with_piper(weights):
    """Runs a scenario with a voice that several tests share, as it takes longer to start than a test takes."""
    with asyncio.Runner() as runner:
        mouth = piper_synthesizer([weights / "piper-en-us-joe-medium"])
        runner.run(mouth.start())
        yield lambda scenario: runner.run(asyncio.wait_for(scenario(mouth), 120))
        runner.run(mouth.stop())


@pytest.mark.weights
@needs_piper
def test_words_are_heard_one_after_the_other_and_together_are_the_text(with_piper):
    async def scenario(mouth):
        pieces = await collect_audio(mouth, "One of the best, in my opinion. And it was!")
        assert "".join(piece.text for piece in pieces) == "One of the best, in my opinion. And it was!"
        assert [piece.text for piece in pieces if piece.text][:4] == ["One ", "of ", "the ", "best, "]
        lengths_s = [0.0]
        for piece in pieces:  # one without text goes on with the word before
            lengths_s += [0.0] * bool(piece.text)
            lengths_s[-1] += len(piece.pcm) / 2 / mouth.rate_hz
        assert lengths_s.pop(0) == 0
        assert all(0.03 < length < 2 for length in lengths_s)
        assert 2 < sum(lengths_s) < 8
        assert 8_000 < peak(b"".join(piece.pcm for piece in pieces)) <= 32_767

    with_piper(scenario)


@pytest.mark.weights
@needs_piper
def test_it_is_as_fast_as_is_asked_and_text_without_words_is_a_pause(with_piper):
    async def scenario(mouth):
        lengths = {
            speed: sum(len(piece.pcm) for piece in await collect_audio(mouth, "The capital of France is Paris.", None, speed))
            for speed in (0.25, 1, 1.5, 4)
        }
        # The voice itself says no sentence twice at the same pace.
        assert [lengths[1] / lengths[speed] / speed for speed in lengths] == pytest.approx([1] * 4, rel=0.15)
        assert peak(b"".join(piece.pcm for piece in await collect_audio(mouth, "..."))) == 0
        assert "".join(piece.text for piece in await collect_audio(mouth, "One\0two.")) == "One\0two."

    with_piper(scenario)


@pytest.mark.weights
@needs_piper
def test_parts_of_a_sentence_are_its_words_without_those_around_them(with_piper):
    async def scenario(mouth):
        lengths = {}
        for text, context in (
            ("The capital ", SentenceContext("", continues=True)),
            ("of France is Paris.", SentenceContext("The capital", continues=False)),
            ("The capital of France is Paris.", WHOLE_SENTENCE),
        ):
            pieces = [piece async for piece in mouth.synthesize(text, None, 1.0, context)]
            assert "".join(piece.text for piece in pieces) == text
            lengths[text] = sum(len(piece.pcm) for piece in pieces)
        *parts, whole = lengths.values()
        assert sum(parts) / whole == pytest.approx(1, rel=0.2), "each alone has silence and a fall at its end"

    with_piper(scenario)


@pytest.mark.long  # of another voice, tests/speech/tts/test_process.py asks the same
@pytest.mark.weights
@needs_piper
def test_killed_mid_word_it_fails_what_was_being_said_and_says_the_next(with_piper):
    async def scenario(mouth):
        async with aclosing(mouth.synthesize("This goes on. " * 200)) as speaking:
            await anext(speaking)
            os.kill(mouth.process.pid, signal.SIGKILL)
            with pytest.raises(ApiError, match="was interrupted"):
                async for _ in speaking:
                    pass
        assert await collect_audio(mouth, "The next.")

    with_piper(scenario)


@pytest.mark.weights
@needs_piper
def test_two_who_speak_at_once_both_get_their_own(with_piper):
    async def scenario(mouth):
        async with asyncio.TaskGroup() as tasks:
            texts = ["Hello there. How are you?", "One two three. Four five six."]
            both = [tasks.create_task(collect_audio(mouth, text)) for text in texts]
            for text, task in zip(texts, both, strict=True):
                assert "".join(piece.text for piece in await task) == text

    with_piper(scenario)
