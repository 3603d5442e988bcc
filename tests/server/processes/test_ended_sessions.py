"""
A session that has ended is freed with its audio and its history by counting references, in every protocol: a server
collects seldom, and a session may hold megabytes.
"""

import json

import pytest

from antiphon.runtime.core.metrics import Histogram
from antiphon.runtime.scheduling.queue import Ticket
from antiphon.runtime.statistics.recent import MinuteCounts
from antiphon.server.processes.run import background_server
from support.left_behind import no_collector
from support.server import minicpmo_peer, realtime_peer, responses_peer
from support.server.aloud import RATE_HZ, append, silence
from support.server.key_server import numbers
from support.server.minicpmo_peer import BUZZ, SILENCE
from support.server.raw_http import connect, exchange, request, until
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "talker": {"engine": "scripted", "pace_ms": 1, "answers": [{"lines": [{"text": "la ", "repeat": 50}]}]},
    "endless": {"engine": "scripted", "pace_ms": 1, "answers": [{"lines": [{"text": "la ", "repeat": 100000}]}]},
}
KEPT = (Histogram, MinuteCounts, Ticket)
"""Counts, and the last tickets, which may come back."""

WRITTEN = realtime_peer.IN_WRITING["ga"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("home"), MODELS, **{"logging.level": "error"})
    with background_server(config, is_persistent=True) as address:
        yield address


def vanish(peer):
    """Cut the connection, without a word."""
    peer.socket._response.connection.transport.abort()


def told(url, method, path, body=None):
    content = None if body is None else json.dumps(body).encode()
    return json.loads(exchange(url, request(method, path, content, connection="close")).partition(b"\r\n\r\n")[2])


async def realtime_in_writing(url):
    await realtime_peer.talked(url, model="parrot")


async def realtime_aloud(url):
    async with realtime_peer.connected(url, model="parrot") as peer:
        await peer.hear()
        await append(peer, b"\0\x20" * RATE_HZ + silence(1))
        await peer.until("response.done")


async def realtime_with_mistakes(url):
    async with realtime_peer.connected(url, model="parrot") as peer:
        await peer.hear()
        await peer.say("session.update", session=WRITTEN)
        await peer.say("no.such.event")
        await peer.until("error")
        await peer.ask("break midway")


async def realtime_left(url):
    async with realtime_peer.connected(url, model="endless") as peer:
        await peer.hear()
        await peer.say("session.update", session=WRITTEN)
        await peer.say("response.create")
        await peer.until("response.output_text.delta")
        vanish(peer)


async def minicpmo_chat(url):
    async with minicpmo_peer.opened(url, mode="chat", model="parrot") as peer:
        await peer.begin()
        await peer.ask("Hi")


async def minicpmo_audio(url):
    async with minicpmo_peer.opened(url, mode="audio", model="parrot") as peer:
        await peer.begin()
        for audio in (BUZZ, SILENCE, SILENCE):
            await peer.hear_sound(audio)
        await peer.deltas("audio")
        await peer.say("session.close", reason="user_stop")
        await peer.until("session.closed")


async def minicpmo_resumed(url):
    async with minicpmo_peer.opened(url, mode="chat", model="talker", resumable="1") as first:
        token = (await first.begin())[-1]["resume_token"]
        await first.say("input.append", input={"messages": [{"role": "user", "content": "Hi"}]})
        seen = (await first.deltas("text"))[-1]["seq"]
        vanish(first)
    async with minicpmo_peer.opened(url, mode="chat", resume=token, after=str(seen)) as second:
        await second.until("response.done")
        await second.say("session.close", reason="user_stop")
        await second.until("session.closed")


async def websocket_mode(url):
    async with responses_peer.connected(url) as peer:
        response = await peer.ask("Hi")
        await peer.ask("Go on", previous_response_id=response["id"])
        await peer.ask("Keep it", store=True)
        await peer.refused("Hi", model="none")
        await peer.ask("break midway")


async def websocket_mode_left(url):
    async with responses_peer.connected(url) as peer:
        await peer.create("sing")
        await peer.until("response.output_text.delta")
        vanish(peer)


async def background(url):
    with connect(url) as connection:
        body = {"model": "parrot", "input": "Hi", "background": True, "stream": True}
        connection.sendall(request("POST", "/v1/responses", json.dumps(body).encode()))
        until(connection, b"response.completed")


async def background_cancelled(url):
    path = "/v1/responses/" + told(url, "POST", "/v1/responses", {"model": "endless", "input": "Hi", "background": True})["id"]
    while told(url, "GET", path)["status"] == "queued":
        pass
    told(url, "POST", path + "/cancel")


async def conversation(url):
    path = "/v1/conversations/" + (id := told(url, "POST", "/v1/conversations", {})["id"])
    for text in ("Hi", "break midway"):
        told(url, "POST", "/v1/responses", {"model": "parrot", "input": text, "conversation": id})
    assert told(url, "GET", path + "/items")["data"]
    told(url, "POST", path + "/items", {"items": [{"type": "none"}]})
    told(url, "DELETE", path)


async def metrics(url):
    numbers(url)


@pytest.mark.parametrize(
    "use",
    [
        realtime_in_writing,
        realtime_aloud,
        realtime_with_mistakes,
        realtime_left,
        minicpmo_chat,
        minicpmo_audio,
        minicpmo_resumed,
        websocket_mode,
        websocket_mode_left,
        background,
        background_cancelled,
        conversation,
        metrics,
    ],
)
async def test_what_has_ended_is_freed_without_the_collector(url, use):
    await use(url)  # what is made once
    exchange(url, request(connection="close"))
    with no_collector() as left:
        await use(url)
        for _ in range(100):
            exchange(url, request(connection="close"))
            if not left(*KEPT):
                break
        assert not left(*KEPT)


async def test_a_call_that_has_ended_is_freed_without_the_collector_but_for_what_the_library_holds(url):
    pytest.importorskip("aiortc", reason="aiortc is not installed")
    from antiphon.server.webrtc.network import FilteringProtocol, Network  # noqa: PLC0415 - needs aiortc
    from support.server.caller import calling  # noqa: PLC0415 - likewise

    async def call():
        async with calling(url, model="parrot") as caller:
            caller.tones.speak(300)
            await caller.until("response.done")

    await call()
    with no_collector() as left:
        await call()
        for _ in range(100):
            exchange(url, request(connection="close"))
            if not left(FilteringProtocol, Network, *KEPT):
                break
        assert not left(FilteringProtocol, Network, *KEPT)
