"""Recordings in a worker's requests: its engine gets their transcripts."""

import asyncio
import base64
import os
from pathlib import Path

import pytest

from antiphon.config.settings import SpeechSettings
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engines.scripted.engine import build
from antiphon.errors import ClientError
from antiphon.runtime.speech.service import SpeechService
from antiphon.runtime.workers.client import _with_speech
from antiphon.runtime.workers.transcribing import TranscribingEngine
from support.runtime.worker_links import SETTINGS, Heard

WEIGHTS = Path(
    os.environ.get("ANTIPHON_MODELS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
)


async def said_in(file):
    """What a file of sound says, which is here the file itself."""
    if file == b"silence":
        await asyncio.Event().wait()
    if file == b"noise":
        raise ClientError("That is no sound.", code="invalid_audio")
    return file.decode()


def engine(tmp_path, **options):
    return TranscribingEngine(build("parrot", options, BuildContext(weights_folder=tmp_path, base_folder=tmp_path)), said_in)


def ask(id, *files, before=()):
    parts = [history.AudioPart(file if file in ("no base64", "été") else base64.b64encode(file.encode()).decode(), "wav") for file in files]
    return commands.Respond(id=id, history=(*before, history.Message("user", (history.TextPart("Hear:"), *parts))))


def text_of(heard, id):
    return "".join(word.text for word in heard.of(events.TextDelta) if word.id == id)


@pytest.fixture
def conversing(tmp_path):
    def run(scenario, **options):
        async def whole():
            heard = Heard()
            async with engine(tmp_path, **options).open(SETTINGS, heard) as conversation:
                await scenario(conversation, heard)

        asyncio.run(whole())

    return run


def test_the_engine_is_given_the_words_of_recordings_old_and_new(conversing):
    async def scenario(conversation, heard):
        before = (history.Message("user", (history.AudioPart(base64.b64encode(b"one").decode(), "wav"),)),)
        conversation.send(ask("resp_1", "two", before=before))
        assert (await heard.end_of("resp_1")).reason == "stop"
        assert text_of(heard, "resp_1") == "Hear:two"
        conversation.send(commands.Respond(id="resp_2", history=(history.Message("user", (history.TextPart("plain"),)),)))
        await heard.end_of("resp_2")
        assert text_of(heard, "resp_2") == "plain"

    conversing(scenario)


@pytest.mark.parametrize(("file", "code"), [("noise", "invalid_audio"), ("no base64", "invalid_value"), ("été", "invalid_value")])
def test_a_recording_that_can_not_be_read_fails_its_answer_and_no_other(conversing, file, code):
    async def scenario(conversation, heard):
        conversation.send(ask("resp_1", file))
        assert (await heard.end_of("resp_1")).code == code
        conversation.send(ask("resp_2", "fine"))
        assert isinstance(await heard.end_of("resp_2"), events.ResponseEnded)

    conversing(scenario)


def test_an_answer_that_is_cancelled_before_its_recording_is_written_down_ends_once(conversing):
    async def scenario(conversation, heard):
        conversation.send(ask("resp_1", "silence"))
        await asyncio.sleep(0)
        conversation.send(commands.Cancel("resp_1"))
        assert (await heard.end_of("resp_1")).reason == "cancelled"
        conversation.send(commands.Cancel("resp_1"))
        conversation.send(ask("resp_2", "after"))
        await heard.end_of("resp_2")
        assert [word.id for word in heard.of(events.ResponseEnded)] == ["resp_1", "resp_2"]

    conversing(scenario)


def test_a_conversation_that_is_left_waits_for_no_recording(conversing):
    async def scenario(conversation, _heard):
        conversation.send(ask("resp_1", "silence"))
        await asyncio.sleep(0)

    conversing(scenario)


def test_tokens_are_those_of_the_words(tmp_path):
    async def scenario():
        within = engine(tmp_path)
        spoken = await within.count(ask("x", "two words"))
        written = commands.Respond(id="x", history=(history.Message("user", (history.TextPart("Hear:"), history.TextPart("two words"))),))
        assert spoken == await within.count(written)

    asyncio.run(scenario())


@pytest.mark.weights
def test_a_worker_that_speaks_offers_ears_and_a_voice_for_an_engine_that_has_none(tmp_path):
    silent = {"abilities": {"audio_in": False, "audio_out": False, "listens": False}}
    within = build("parrot", silent, BuildContext(weights_folder=tmp_path, base_folder=tmp_path))
    offered = _with_speech(within, SpeechService(SpeechSettings(), WEIGHTS, {}), "scripted").capabilities
    assert offered.listens
    assert offered.audio_out
    assert offered.transcribes
    assert offered.audio_in, "recordings in requests are written down there"
