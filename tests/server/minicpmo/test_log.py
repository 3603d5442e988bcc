"""What a server logs of MiniCPM-o sessions."""

import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.minicpmo_peer import opened
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {"parrot": {"engine": "scripted", **SCRIPT}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def logged(capsys, event):
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    return [line for line in lines if line["event"] == event]


def serving(tmp_path, **settings):
    settings = {f"logging.{name}": value for name, value in ({"format": "json"} | settings).items()}
    return background_server(configured(tmp_path, MODELS, **settings))


async def test_what_the_originals_pages_send_besides_is_noted_once_a_session_and_answered_with_nothing(tmp_path, capsys):
    with serving(tmp_path) as url:
        async with opened(url, mode="chat") as peer:
            for _ in range(3):
                await peer.say("client_diagnostic", report={"fps": 30})
            await peer.say("session.update", session={"instructions": "x"})
            heard = await peer.begin(voice_config={})
            heard += await peer.ask("Hi", audio_base64="")
            heard += await peer.ask("Ho", audio_base64="")
            assert "error" not in {event["type"] for event in heard}
            await peer.say("response.create")
            assert (await peer.hear())["error"]["code"] == "unknown_event"
    lines = logged(capsys, "ignored")
    assert [line["name"] for line in lines] == ["client_diagnostic", "session.update", "payload.voice_config", "input.audio_base64"]
    assert len({line["request_id"] for line in lines}) == 1


async def test_where_content_is_logged_it_is_the_words_without_the_recordings(tmp_path, capsys):
    with serving(tmp_path, content=True) as url:
        async with opened(url, mode="chat") as peer:
            await peer.begin(system_prompt="Sing.", ref_audio="AAAAAA==")
            await peer.ask("Hi")
    assert [json.loads(line["content"]) for line in logged(capsys, "asked")] == [
        {"type": "session.init", "instructions": "Sing.", "config": {}},
        {"type": "input.append", "messages": [["user", "Hi"]]},
    ]
