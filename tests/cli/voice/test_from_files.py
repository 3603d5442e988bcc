"""Recordings sent to a server: what can be wrong with them."""

import asyncio

import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.from_files import RecordingsConversation
from antiphon.cli.voice.realtime_session import RealtimeSessionOptions, connect_realtime
from antiphon.cli.voice.transcript import TalkTranscript
from antiphon.config import load as config
from antiphon.errors import UpstreamError
from antiphon.server.processes.run import background_server
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from support.cli.tones import tone

pytestmark = pytest.mark.anyio

PARROT = {"name": "parrot", "engine": "scripted", "speech": [{"at_ms": 0, "until_ms": 60_000}]}
"""Hears someone speak for a minute, whatever it is sent."""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def client(tmp_path):
    models = [PARROT, {"name": "usual", "engine": "scripted"}]
    settings = {"models": models, "speech": {"enabled": False}, "logging": {"level": "warning"}}
    with background_server(
        config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    ) as base_url:
        yield ApiClient(base_url)


async def said(client, model, pcm, *, is_heard=False):
    """Say something; with `is_heard`, once the server has heard that somebody speaks, which on a busy machine may be later."""
    async with connect_realtime(client, RealtimeSessionOptions(model=model)) as session:
        transcript = TalkTranscript()
        conversation = RecordingsConversation(session, transcript, print, is_fast=True)
        if is_heard:
            await session.send(InputAudioBufferAppend(audio=pcm))
            async with asyncio.timeout(60):
                while not transcript.is_speaking:
                    conversation.on_event(await session.receive())
        await conversation.send_recording(InputRecording("a.wav", pcm), silence_ms=1_200)


async def test_a_recording_in_which_nobody_speaks_is_said_to_be_one(client):
    with pytest.raises(UpstreamError, match=r"The server detected no speech in a\.wav\."):
        await said(client, "usual", bytes(9_600))


async def test_speech_that_does_not_end_is_not_waited_for_for_ever(client):
    with pytest.raises(UpstreamError, match=r"still hears someone speak after the end of a\.wav\."):
        await said(client, "parrot", tone(200).tobytes(), is_heard=True)
