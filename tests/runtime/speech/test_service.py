"""The speech models of a server: which engines they wrap, and the errors when they are wrong or missing."""

import asyncio
import contextlib
import gc
import os
import shutil
import weakref
from pathlib import Path

import pytest

from antiphon.config.settings import SpeechSettings
from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.scripted.engine import build
from antiphon.errors import ApiError, ServerError
from antiphon.runtime.speech.service import KNOWN_VOICES, SpeechService

WEIGHTS = Path(
    os.environ.get("ANTIPHON_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
)
MODELS = SpeechSettings().catalogue_models
READS = {"abilities": {"audio_in": False, "audio_out": False, "listens": False}}


def engine(**options):
    return build("parrot", options, BuildContext(weights_folder=WEIGHTS, base_folder=Path()))


@pytest.fixture
def copied(tmp_path):
    """The models of speech, in a folder of their own."""
    for name in MODELS:
        shutil.copytree(WEIGHTS / name, tmp_path / name)
    return tmp_path


async def opened(speech, within):
    """Open a conversation as a session does, and speak; the errors that come of it."""
    faults = []

    def deliver(words):
        faults.extend(word for word in words if isinstance(word, events.EngineError))

    try:
        async with speech.with_speech(within).open(ConversationSettings(model="parrot"), deliver) as conversation:
            conversation.send(commands.AppendAudio(bytes(960)))
            with contextlib.suppress(ApiError):
                await speech.load()
            await asyncio.sleep(0)  # who waited first is told first, and the conversation did
        return faults
    finally:
        await speech.stop()
        await speech.stop()


def refusal(speech):
    (fault,) = asyncio.run(opened(speech, engine(**READS)))
    return fault


def test_without_weights_an_engine_is_left_as_it_is_and_the_reason_is_known(tmp_path):
    speech, within = SpeechService(SpeechSettings(), tmp_path, {}), engine(**READS)
    assert speech.with_speech(within) is within
    assert speech.missing_reason is not None
    assert f"antiphon models pull {' '.join(MODELS)}" in speech.missing_reason
    with pytest.raises(ServerError, match="Speech is not available on this server") as refused:
        asyncio.run(speech.load())
    assert (refused.value.status, refused.value.code) == (501, "speech_not_available")


def test_a_server_that_must_speak_does_not_start_without_weights(tmp_path):
    with pytest.raises(ServerError, match=r"`speech.enabled` is on, but these models are not here"):
        SpeechService(SpeechSettings(enabled=True), tmp_path, {})


def test_ears_that_are_switched_off_are_not_there(tmp_path):
    speech = SpeechService(SpeechSettings(enabled=False), tmp_path, {})
    assert speech.missing_reason == "`speech.enabled` is off."


@pytest.mark.weights
def test_clients_are_not_told_where_a_voice_was_looked_for(copied):
    notes = []
    speech = SpeechService(SpeechSettings(), copied, {}, notes.append)
    for settings in (copied / SpeechSettings().voice).glob("*.json"):
        settings.write_text("?")
    with pytest.raises(ServerError, match="can't be read") as refused:
        asyncio.run(speech.load())
    assert str(copied) in notes[0] and str(copied) not in refused.value.message


@pytest.mark.weights
def test_engines_that_read_get_ears_and_a_voice_and_others_keep_their_own():
    speech = SpeechService(SpeechSettings(), WEIGHTS, {})
    reads, hears = engine(**READS), engine()
    around = speech.with_speech(reads)
    assert around.capabilities.listens and around.capabilities.audio_out and around.capabilities.foresees
    assert set(KNOWN_VOICES) < set(around.capabilities.voices)
    assert speech.with_speech(reads) is around, "made once"
    assert speech.with_speech(hears) is hears
    left = weakref.ref(reads)
    del around, reads
    gc.collect()
    assert left() is None, "what was put around a worker that has left goes with it"


@pytest.mark.weights
def test_all_is_loaded_for_the_first_conversation_and_let_go_of_at_the_end():
    assert asyncio.run(opened(SpeechService(SpeechSettings(), WEIGHTS, {}), engine(**READS))) == []


@pytest.mark.weights
def test_weights_that_were_altered_are_told_when_a_conversation_begins(copied):
    speech = SpeechService(SpeechSettings(), copied, {})
    path = copied / "moonshine-tiny-en" / "encoder_model.ort"
    path.write_bytes(bytes(path.stat().st_size))
    fault = refusal(speech)
    assert fault.code == "weights_unavailable"
    assert "antiphon models pull moonshine-tiny-en" in fault.message


@pytest.mark.weights
def test_weights_that_went_away_are_named_when_a_conversation_begins(copied):
    speech = SpeechService(SpeechSettings(), copied, {})
    (copied / "silero-vad" / "silero_vad.onnx").unlink()
    assert "antiphon models pull silero-vad" in refusal(speech).message


@pytest.mark.long
@pytest.mark.weights
def test_weights_that_are_not_remembered_as_good_are_read_and_taken(copied):
    for mark in copied.rglob("*.verified"):
        mark.unlink()
    assert asyncio.run(opened(SpeechService(SpeechSettings(), copied, {}), engine(**READS))) == []
