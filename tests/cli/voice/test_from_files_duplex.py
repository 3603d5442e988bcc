"""Sessions with recordings in place of a person."""

import pytest

from antiphon.cli.common.client import Client
from antiphon.cli.voice.audio import Recording
from antiphon.cli.voice.duplex_stage import Unseen
from antiphon.cli.voice.from_files_duplex import Given, held, speech_end
from antiphon.cli.voice.minicpmo_session import Asked
from antiphon.config import load as config
from antiphon.errors import UpstreamTrouble
from antiphon.server.processes.run import background
from support.cli.tones import tone

pytestmark = pytest.mark.anyio

SPOKEN = Recording("one.wav", tone(400, 16_000).tobytes())
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
    with background(config.load(settings, None, {"HOME": str(tmp_path)}, tmp_path, etc=tmp_path / "none.toml").config) as url:
        yield Client(url)


def given(**more):
    return Given(recordings=[SPOKEN], piece_ms=100, is_fast=True, silence_ms=1_500, **more)


async def test_a_model_that_says_nothing_is_not_waited_for_for_ever(client):
    with pytest.raises(UpstreamTrouble, match=r"The model has said nothing to one\.wav\."):
        await held(client, Asked(model="silent"), given(), Unseen())


async def test_what_is_said_before_the_end_of_the_speech_is_an_answer_too(client):
    outcome = await held(client, Asked(model="unasked"), given(), Unseen())
    assert [answer.text for answer in outcome.record.answers] == ["Hello?"]
    assert outcome.closed is not None and outcome.closed.reason == "user_stop"


def test_speech_ends_where_it_is_last_loud():
    assert speech_end(tone(400, 16_000).tobytes() + bytes(32_000)) == 400
    assert speech_end(tone(400, 16_000).tobytes()) == 400
    assert speech_end(bytes(3200)) == 100
