"""Kokoro's voices."""

import importlib.util
from pathlib import Path

import pytest

from antiphon.audio import peak
from antiphon.errors import ServerError
from antiphon.speech.tts.kokoro import kokoro_synthesizer
from support.speech.voices import heard, run, started

FOLDER = Path.home() / ".cache" / "antiphon" / "models" / "kokoro-82m-int8"
needs_voice = pytest.mark.skipif(
    not FOLDER.exists() or importlib.util.find_spec("piper") is None, reason="needs the extra 'piper' and the voice kokoro-82m-int8"
)


def test_voices_whose_language_can_be_spoken_are_offered_the_favourite_first(tmp_path):
    (tmp_path / "voices").mkdir()
    for name in ("model.onnx", "voices/am_adam.bin", "voices/af_heart.bin", "voices/jf_alpha.bin", "bf_emma.bin"):
        (tmp_path / name).write_bytes(b"")
    assert kokoro_synthesizer(tmp_path).voices == ("af_heart", "am_adam", "bf_emma")


def test_a_folder_without_model_or_voice_is_refused(tmp_path):
    with pytest.raises(ServerError, match="no voice of Kokoro's"):
        kokoro_synthesizer(tmp_path)


@needs_voice
def test_every_language_is_spoken_and_words_are_in_their_places():
    async def scenario():
        async with started(kokoro_synthesizer(FOLDER)) as mouth:
            for voice in mouth.voices:
                pieces = await heard(mouth, "Hello there, you.", voice)
                assert [piece.text for piece in pieces] == ["Hello ", "there, ", "you."]
                assert all(0.03 < len(piece.pcm) / 48_000 < 2.5 for piece in pieces)
                assert 4_000 < peak(b"".join(piece.pcm for piece in pieces)) <= 32_767

    run(scenario())


@needs_voice
def test_it_is_as_fast_as_is_asked_also_where_the_model_is_not():
    async def scenario():
        async with started(kokoro_synthesizer(FOLDER)) as mouth:
            usual, fast = [sum(len(piece.pcm) for piece in await heard(mouth, "Hello there, you.", None, speed)) for speed in (1, 4)]
            assert usual / fast == pytest.approx(4, rel=0.15)

    run(scenario())
