"""Voice sessions that open while the server still loads its speech models, and what sessions begin with."""

import json
import shutil

import pytest

from antiphon.protocols.realtime.settings import SPOKEN_INSTRUCTIONS
from antiphon.server.processes.run import background_server
from support.server.aloud import DEAF, TRANSCRIBED, WEIGHTS, WORDS, append, heard_as, plain, recording, silence
from support.server.raw_http import exchange, request, statuses
from support.server.realtime_peer import connected
from support.server.scripted_server import configured

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

MODELS = {"parrot": {"engine": "scripted", **DEAF}, "speaker": {"engine": "scripted"}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def serving(home, **settings):
    config = configured(home, MODELS, **{"logging.level": "error", "models_dir": str(WEIGHTS), **settings})
    return background_server(config, is_persistent=True)


def readiness(url, path="/readyz"):
    """The status of the answer, and how far the speech models are."""
    answer = exchange(url, request(path=path, connection="close"))
    return statuses(answer)[0], json.loads(answer.partition(b"\r\n\r\n")[2])["warm_up"]


async def opened(url, model="parrot"):
    async with connected(url, model=model) as peer:
        return (await peer.hear())["session"]


@pytest.mark.parametrize("warm_up", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_the_first_sentence_is_heard_though_it_comes_before_the_models(tmp_path, warm_up):
    name = next(iter(WORDS))
    with serving(tmp_path, **{"speech.warm_up": warm_up}) as url:
        assert readiness(url) == (200, "running" if warm_up else "off")
        async with connected(url, model="parrot") as peer:
            assert (await peer.hear())["type"] == "session.created"
            await peer.say("session.update", session=TRANSCRIBED)
            await peer.until("session.updated")
            assert readiness(url, "/readyz?wait_for=speech") == (503, "running"), "the session did not wait for the models"
            await append(peer, recording(name) + silence(1))
            assert plain(await heard_as(peer)) == WORDS[name].split()
            done = (await peer.until("response.done"))[-1]["response"]
            assert done["status"] == "completed"
            assert plain(done["output"][0]["content"][0]["transcript"]) == WORDS[name].split()
        assert readiness(url)[1] in (("running", "done") if warm_up else ("done",))  # each model is run once more


async def test_a_session_is_told_why_it_is_not_heard_where_models_are_damaged(tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for folder in WEIGHTS.iterdir():
        (models / folder.name).symlink_to(folder)
    (models / "moonshine-tiny-en").unlink()
    shutil.copytree(WEIGHTS / "moonshine-tiny-en", models / "moonshine-tiny-en")
    path = models / "moonshine-tiny-en" / "encoder_model.ort"
    path.write_bytes(bytes(path.stat().st_size))
    with serving(tmp_path, models_dir=str(models)) as url:
        async with connected(url, model="parrot") as peer:
            await append(peer, silence(0.2))
            trouble = (await peer.until("error"))[-1]["error"]
            assert trouble["code"] == "weights_unavailable"
            done = (await peer.ask("Hello"))[-1]["response"]
            assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "weights_unavailable")
            await peer.say("response.create", response={"output_modalities": ["text"]})
            assert (await peer.until("response.done"))[-1]["response"]["status"] == "completed"
        assert readiness(url) == (200, "failed")


async def test_a_model_that_is_read_aloud_begins_with_instructions_for_that(tmp_path):
    with serving(tmp_path, **{"speech.warm_up": False}) as url:
        assert (await opened(url))["instructions"] == SPOKEN_INSTRUCTIONS
        assert (await opened(url, "speaker"))["instructions"] == ""
        async with connected(url, model="parrot") as peer:
            await peer.say("session.update", session={"type": "realtime", "instructions": ""})
            assert (await peer.until("session.updated"))[-1]["session"]["instructions"] == ""


@pytest.mark.parametrize("text", ["", "Be kind."])
async def test_instructions_are_those_of_the_configuration(tmp_path, text):
    with serving(tmp_path, **{"speech.warm_up": False, "realtime.instructions": text}) as url:
        assert (await opened(url))["instructions"] == text
