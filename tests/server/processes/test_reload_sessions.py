"""Answers and sessions under way go on when their model is removed from the configuration."""

import asyncio
import json

import aiohttp
import pytest

from antiphon.server.processes.run import background_server
from support.server.config_file import Files, ask, model, names, reload
from support.server.minicpmo_peer import opened
from support.server.realtime_peer import IN_WRITING, connected, refusal

pytestmark = pytest.mark.anyio

SONG = "la " * 60


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def song_url(tmp_path_factory):
    """A server behind the others, with a slow model."""
    files = Files(tmp_path_factory.mktemp("behind"))
    files.write(model("song", pace_ms=8))
    with background_server(files.load()) as url:
        yield url


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def url(files, song_url, request):
    """A server with a model that is stopped at once when its engine is."""
    place = {"base_url": f"{song_url}/v1", "quirks": "generic"}
    options = getattr(request, "param", {})
    places = {"upstreams": [place, place]} if "balance" in options else place
    files.write({"name": "song", "engine": "chat", **places, **options}, model("other"))
    with background_server(files.load(), load=files.load) as url:
        yield url


async def remove_song(files, url, removed=("song",)):
    files.write(model("other"))
    status, report = await asyncio.to_thread(reload, url)
    assert (status, sorted(report["removed"]), report["problems"]) == (200, [*removed], [])
    assert await asyncio.to_thread(names, url) == ["other"]


async def streamed(url, path, body, begins, files, **removed):
    """The data of a stream whose model is removed once `begins` was in it."""
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body | {"stream": True}) as reply:
        assert reply.status == 200
        lines = []
        async for line in reply.content:
            if begins is not None and begins in line:
                begins = None
                await remove_song(files, url, **removed)
            if line.startswith(b"data: {"):
                lines.append(json.loads(line[6:]))
        assert begins is None
        return lines


def chunk_text(events):
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@pytest.mark.parametrize(
    "url",
    [{}, {"abilities": {"relays": []}}, {"balance": "affinity"}, {"fallback": ["other"]}],
    ids=["passed on", "mapped", "several upstreams", "with a fallback"],
    indirect=True,
)
async def test_a_chat(files, url):
    body = {"model": "song", "messages": [{"role": "user", "content": "sing"}]}
    events = await streamed(url, "/v1/chat/completions", body, b"la", files)
    assert chunk_text(events) == SONG and events[-1]["choices"][0]["finish_reason"] == "stop"
    assert await asyncio.to_thread(ask, url, "song") == "model_not_found"


async def test_a_chat_that_a_fallback_answers(files, url, song_url):
    broken = {"name": "broken", "engine": "chat", "base_url": "http://127.0.0.1:9/v1", "retries": 0, "fallback": ["song"]}
    song = {"name": "song", "engine": "chat", "base_url": f"{song_url}/v1", "quirks": "generic"}
    files.write(broken, song, model("other"))
    assert (await asyncio.to_thread(reload, url))[1]["added"] == ["broken"]
    body = {"model": "broken", "messages": [{"role": "user", "content": "sing"}]}
    assert chunk_text(await streamed(url, "/v1/chat/completions", body, b"la", files, removed=["broken", "song"])) == SONG


async def test_a_message(files, url):
    body = {"model": "song", "max_tokens": 1000, "messages": [{"role": "user", "content": "sing"}]}
    events = await streamed(url, "/v1/messages", body, b"text_delta", files)
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == SONG and events[-1]["type"] == "message_stop"


async def test_a_realtime_session_and_its_later_answers(files, url):
    async with connected(url, model="song") as peer:
        await peer.hear()
        await peer.say("session.update", session=IN_WRITING["ga"])
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "sing"}]}
        await peer.say("conversation.item.create", item=item)
        await peer.say("response.create")
        await peer.until("response.output_text.delta")
        await remove_song(files, url)
        (*_, done) = await peer.until("response.done")
        assert done["response"]["output"][0]["content"][0]["text"] == SONG
        (*_, done) = await peer.ask("Who?")
        assert done["response"]["output"][0]["content"][0]["text"] == "I am song."
    assert await refusal(url, model="song") == 404


async def test_a_minicpmo_session_and_its_later_answers(files, url):
    async with opened(url, mode="chat", model="song") as peer:
        await peer.begin()
        await peer.say("input.append", input={"messages": [{"role": "user", "content": "sing"}]})
        await peer.until("response.output.delta")
        await remove_song(files, url)
        (*_, done) = await peer.until("response.done")
        assert done["type"] == "response.done" and "error" not in done
        assert (await peer.ask("Who?"))[-1]["type"] == "response.done"
