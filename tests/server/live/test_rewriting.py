"""Live conversations: text is rewritten before it is sent, speech is not."""

import asyncio

import pytest

from antiphon.server.processes.run import background_server
from support.server.minicpmo_peer import opened
from support.server.realtime_peer import IN_WRITING, connected
from support.server.scripted_server import configured

RULE = {"name": "colours", "kind": "rule", "rules": [{"pattern": "colour", "replacement": "color"}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    models = {"parrot": {"engine": "scripted", "answers": [{"when": "", "say": "The colour is {input}"}]}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, rewrites=[RULE])) as url:
        yield url


def test_a_realtime_answer_in_writing_is_held_and_rewritten(url):
    async def scenario():
        async with connected(url, model="parrot") as peer:
            await peer.until("session.created")
            await peer.say("session.update", session=IN_WRITING["ga"])
            await peer.until("session.updated")
            return await peer.ask("red")

    heard = asyncio.run(scenario())
    deltas = "".join(event["delta"] for event in heard if event["type"] == "response.output_text.delta")
    (done,) = [event for event in heard if event["type"] == "response.output_text.done"]
    assert deltas == done["text"] == "The color is red"
    assert heard[-1]["response"]["output"][0]["content"][0]["text"] == "The color is red"


def test_what_is_spoken_stays_as_it_is(url):
    async def scenario():
        async with connected(url, model="parrot") as peer:
            await peer.until("session.created")
            return await peer.ask("red")

    heard = asyncio.run(scenario())
    (done,) = [event for event in heard if event["type"] == "response.output_audio_transcript.done"]
    assert done["transcript"] == "The colour is red"


def test_a_chat_of_minicpm_o_is_rewritten(url):
    async def scenario():
        async with opened(url, mode="chat") as peer:
            await peer.begin()
            return await peer.ask("red", streaming=True)

    heard = asyncio.run(scenario())
    assert "The color is red" in str(heard) and "colour" not in str(heard)
