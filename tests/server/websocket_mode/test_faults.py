"""Clients that do not read, that leave or flood, and a server that stops."""

import asyncio
import contextlib
import json
import signal
from functools import partial

import pytest
from msgspec import Raw

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import shutting_down
from antiphon.offload import LARGE_BYTES
from antiphon.records import ConversationRecord
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.service import Service
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.errors import PROFILE_SCOPE_KEY
from antiphon.server.processes.run import background_server
from antiphon.server.websocket_mode.lanes import Lanes
from antiphon.server.websocket_mode.memory import ConnectionMemory
from antiphon.server.websocket_mode.socket import ResponsesSocket
from antiphon.server.websocket_mode.steering import Steering
from antiphon.server.websocket_mode.turn import Connection, Turn
from antiphon.server.websocket_mode.warm_up import WarmUpEngine, can_prefill, prefill
from antiphon.wire.responses.profiles import ENCODERS
from antiphon.wire.responses.websocket import ResponseSteer, decode_create
from support.server.key_server import MODELS, counted, numbers
from support.server.own_process import serving
from support.server.raw_http import PATIENCE_S, connect, request, until
from support.server.responses_peer import LAST, connected, said
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
FLOOD = {"engine": "scripted", "answers": [{"lines": [{"text": "la " * 1000, "repeat": 1_000_000}]}]}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    config = configured(
        tmp_path_factory.mktemp("home"), {**MODELS, "flood": FLOOD}, **{"logging.level": "error", "server.slow_reader_s": 1}
    )
    with background_server(config) as address:
        yield address


def framed(**fields):
    """A message of a client, masked with zeros."""
    text = json.dumps({"type": "response.create", "store": False, "model": "parrot", **fields}).encode()
    text = text.ljust(200)  # so that its length takes two bytes
    return bytes([0x81, 0x80 | 126]) + len(text).to_bytes(2, "big") + bytes(4) + text


async def test_a_client_that_does_not_read_is_dropped_and_others_go_on(url):
    with connect(url) as connection:
        connection.sendall(request(path="/v1/responses", **HANDSHAKE))
        until(connection, b"\r\n\r\n")
        connection.sendall(b"".join(framed(input="x", model="flood", stream_id=f"lane{number}") for number in range(16)))
        async with connected(url) as peer:
            assert said(await peer.ask("Hi")) == "You said: Hi"
        while not any(numbers(url).get(("antiphon_dropped_connections_total", reason)) for reason in ("slow_reader", "backlog")):
            pass


async def test_messages_that_come_with_the_handshake_are_not_lost(url):
    with connect(url) as connection:
        connection.sendall(request(path="/v1/responses", **HANDSHAKE) + framed(input="Hi") + framed(input="again"))
        got = until(connection, b"You said: again")
    assert got.index(b"You said: Hi") < got.index(b"You said: again")


async def test_a_client_that_asks_for_everything_at_once_and_leaves_harms_nobody(url):
    for _ in range(5):
        with connect(url) as connection:
            connection.sendall(request(path="/v1/responses", **HANDSHAKE))
            connection.sendall(b"".join(framed(input="x", model="endless", stream_id=f"lane{n % 40}") for n in range(200)))
            until(connection, b"rate_limit_exceeded")
    async with connected(url) as peer:
        assert said(await peer.ask("Hi")) == "You said: Hi"
    counted(url, ("http_server_active_requests",), 1.0)  # the one that asks


async def test_an_idle_connection_ends_when_the_server_is_about_to_stop_and_a_busy_one_when_it_is_done(tmp_path):
    with serving(tmp_path, drain_s=30) as (process, url):
        async with connected(url) as idle, connected(url) as busy:
            await busy.create("x", model="short")
            await busy.until("response.output_text.delta")
            process.send_signal(signal.SIGTERM)
            assert (await idle.until("error"))[-1]["error"]["code"] == "server_shutting_down"
            assert (await idle.end())[0] == 1012
            assert (await busy.until(*LAST))[-1]["type"] == "response.completed"
            assert (await busy.hear())["error"]["code"] == "server_shutting_down" and (await busy.end())[0] == 1012
            await idle.socket.close()
            await busy.socket.close()
        assert process.wait(10) == 0


@pytest.mark.parametrize("store", [False, True])
async def test_what_runs_when_the_time_to_drain_is_over_fails(tmp_path, store):
    with serving(tmp_path, drain_s=1) as (process, url):
        async with connected(url) as peer:
            await peer.create("x", model="endless", store=store)
            await peer.until("response.output_text.delta")
            process.send_signal(signal.SIGTERM)
            *_, error, failure = await peer.until("response.failed")
            assert (error["status"], error["error"]["code"]) == (503, "server_shutting_down")
            assert failure["response"]["status"] == "failed" and (await peer.end())[0] == 1012
            await peer.socket.close()
        assert process.wait(10) == 0


# Warm-ups


class PreparingEngine:
    """An engine that acts on `Prepare`, and notes its commands."""

    capabilities = Capabilities(foresees=True)

    def __init__(self):
        self.sent = []
        self.has_command = asyncio.Event()
        self.is_open = False

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self.is_open = True
        try:
            yield self
        finally:
            self.is_open = False

    def send(self, command):
        self.sent.append(command)
        self.has_command.set()


async def test_a_warm_up_has_the_engine_prepare_until_the_next_request_begins():
    engine, has_begun, ask = PreparingEngine(), asyncio.Event(), commands.Respond(id="resp_1", history=())
    assert can_prefill(engine)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(prefill(engine, ConversationSettings(model="m"), ask, has_begun))
        await engine.has_command.wait()
        assert engine.is_open and engine.sent == [commands.Prepare(ask)]
        has_begun.set()
    assert not engine.is_open


async def test_a_warm_up_answers_nothing_and_asks_nothing():
    delivered = []
    engine = WarmUpEngine(Capabilities())
    async with engine.open(ConversationSettings(model="m"), delivered.extend) as conversation:
        conversation.pause()
        conversation.resume()
        conversation.send(commands.Respond(id="resp_1", history=()))
        conversation.send(commands.Cancel(id="resp_1"))
    assert delivered == [events.Usage(id="resp_1", input_tokens=0, output_tokens=0), events.ResponseEnded("resp_1")]
    assert engine.request == commands.Respond(id="resp_1", history=())


# Ends at a bad moment


class Listening:
    """The WebSocket of a client that reads everything, and what of it is watched."""

    def __init__(self, on_sent=lambda event: None):
        self.sent, self.closed_with = [], None
        self._on_sent = on_sent

    def send(self, text):
        self.sent.append(json.loads(text))
        self._on_sent(self.sent[-1])

    def flush(self):
        """Nothing waits."""

    def resume_reading(self):
        """Nothing comes."""

    def close(self, code, reason):
        self.closed_with = code

    async def wait_closed(self):
        """It is closed at once."""


@contextlib.asynccontextmanager
async def serving_here(tmp_path):
    """A service with one conversation, and what its connection's scope has."""
    service = Service(configured(tmp_path, MODELS, **{"store.url": "memory"}), print)
    await service.open()
    await service.store.conversations.create(ConversationRecord(id="conv_1", tenant="t", created_at=1, metadata=b"{}"), [])
    scope = {BODY_LEASE_SCOPE_KEY: service.body_budget.lease("ada"), "antiphon.caller": Caller("t"), "path": "/v1/responses"}
    yield service, scope | {PROFILE_SCOPE_KEY: ENCODERS["openai"], "headers": []}
    assert service.body_budget.used_bytes == 0
    await service.close()


def turn_of(service, scope, websocket, steering, tasks, **fields):
    body = json.dumps({"type": "response.create", "model": "parrot", **fields}).encode()
    memory = ConnectionMemory(partial(service.memory_budget.lease, "ada"))
    connection = Connection(service, scope, scope[PROFILE_SCOPE_KEY], websocket, memory, Lanes(), steering, tasks)
    lease = scope[BODY_LEASE_SCOPE_KEY]
    lease.extend(len(body))
    return Turn(connection, None, decode_create(body), None, lease)


@pytest.mark.parametrize("end", [Turn.hang_up, lambda turn: turn.shut_down(shutting_down())])
async def test_a_turn_that_ends_before_its_driver_runs_gives_everything_back(tmp_path, end):
    async with serving_here(tmp_path) as (service, scope):
        async with asyncio.TaskGroup() as tasks:
            turn = turn_of(service, scope, Listening(), Steering(print), tasks, conversation="conv_1", input="long " * LARGE_BYTES)
            running = tasks.create_task(turn.run(asyncio.Event()))
            while turn._resolved_request is None:  # noqa: ASYNC110 - after this, its input is measured in a thread
                await asyncio.sleep(0)
            end(turn)
            await asyncio.wait([running])
        assert running.cancelled()
        assert await service.store.conversations.lock("t", "conv_1", "resp_other")


async def test_input_for_a_response_that_a_defect_ends_comes_back(tmp_path):
    async with serving_here(tmp_path) as (service, scope):
        told, lease = [], service.body_budget.lease("ada")
        steering = Steering(told.append)

        def steer_and_break(event):
            if event["type"] == "response.in_progress":
                lease.extend(1)
                steering.submit(ResponseSteer(previous_response_id=event["response"]["id"], input="Also this"), Raw(b'"Also this"'), lease)
                raise RuntimeError("a defect")

        async with asyncio.TaskGroup() as tasks:
            await turn_of(service, scope, Listening(steer_and_break), steering, tasks, model="endless", input="Hi").run(asyncio.Event())
        assert [event.type for event in told] == ["response.steer.accepted", "response.steer.failed"]
        assert told[-1].error.code == "response_not_active" and lease.size_bytes == 0


async def test_a_connection_that_is_to_end_before_its_handshake_is_answered_is_closed(tmp_path):
    async with serving_here(tmp_path) as (service, scope), asyncio.TaskGroup() as tasks:
        responses, websocket = ResponsesSocket(service, scope, scope[PROFILE_SCOPE_KEY], tasks), Listening()
        responses.shut_down(shutting_down())
        async with asyncio.timeout(PATIENCE_S):
            await responses.run(websocket)
        assert [event["error"]["code"] for event in websocket.sent] == ["server_shutting_down"]
        assert websocket.closed_with == 1012
