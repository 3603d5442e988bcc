"""Sessions with recordings in place of a person."""

import pytest

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.from_files_duplex import DuplexSessionInput, find_speech_end_ms, run_duplex_session
from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions
from antiphon.cli.voice.render import Renderer
from antiphon.config import load as config
from antiphon.errors import UpstreamError
from antiphon.server.processes.run import background_server
from support.cli.tones import tone

pytestmark = pytest.mark.anyio

SPOKEN = InputRecording("one.wav", tone(400, 16_000).tobytes())
NOBODY = [{"at_ms": 1_000_000, "until_ms": 1_000_001}]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def client(tmp_path):
    models = [
        {"name": "silent", "engine": "scripted", "speech": NOBODY},
        {"name": "unasked", "engine": "scripted", "speech": NOBODY, "duplex": {"says": [{"at": 1, "lines": [{"text": "Hello?"}]}]}},
    ]
    settings = {"models": models, "speech": {"enabled": False}, "logging": {"level": "warning"}}
    with background_server(
        config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none.toml").config
    ) as url:
        yield ApiClient(url)


def given(**more):
    return DuplexSessionInput(recordings=[SPOKEN], chunk_ms=100, is_fast=True, max_silence_ms=1_500, **more)


async def test_a_model_that_says_nothing_is_not_waited_for_for_ever(client):
    with pytest.raises(UpstreamError, match=r"The model has said nothing to one\.wav\."):
        await run_duplex_session(client, MinicpmoSessionOptions(model="silent"), given(), Renderer())


async def test_what_is_said_before_the_end_of_the_speech_is_an_answer_too(client):
    outcome = await run_duplex_session(client, MinicpmoSessionOptions(model="unasked"), given(), Renderer())
    assert [answer.text for answer in outcome.transcript.answers] == ["Hello?"]
    assert outcome.session_closed is not None and outcome.session_closed.reason == "user_stop"


def test_speech_ends_where_it_is_last_loud():
    assert find_speech_end_ms(tone(400, 16_000).tobytes() + bytes(32_000)) == 400
    assert find_speech_end_ms(tone(400, 16_000).tobytes()) == 400
    assert find_speech_end_ms(bytes(3200)) == 100
