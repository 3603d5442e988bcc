"""A request is sent in the call that asks for it where nothing has to be waited for; whatever then happens is as it is for others."""

import asyncio
import contextlib
import socket

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import ConversationSettings
from support.engines.upstreams import BUSY, CUT, HALF, Heard, Server, ask, before, closing, engine_for, run, streamed, watched, whole

RELAY = commands.Relay(id="resp_2", path="chat/completions", body=b'{"messages":[{"role":"user","content":"Hi"}]}', stream=True)


async def settle():
    """Let what follows from the end of a response be done."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def warm(**options):
    """A conversation that has had one answer, what is heard, and the server's end of the idle connection."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        engine, heard = engine_for(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", **options), Heard()
        async with asyncio.timeout(20), engine.open(ConversationSettings(model="m1"), heard) as conversation:
            conversation.send(ask("resp_1"))
            connection, _ = await loop.sock_accept(listening)
            with connection:
                await loop.sock_recv(connection, 65536)
                await loop.sock_sendall(connection, streamed("hello"))
                await heard.end_of("resp_1")
                await settle()
                yield conversation, heard, connection
        await engine.stop()


@pytest.mark.parametrize("command", [ask("resp_2"), RELAY])
def test_a_request_is_sent_before_the_call_returns_and_takes_no_task(command):
    async def scenario():
        async with warm() as (conversation, heard, connection):
            conversation.send(command)
            assert connection.recv(65536).startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
            assert len(asyncio.all_tasks()) == 1
            connection.send(streamed("again"))
            end = await heard.end_of("resp_2")
            assert isinstance(end, events.ResponseEnded)

    run(scenario())


@pytest.mark.parametrize("more", [{"truncate": True}, {"size_bytes": 1 << 20}])
def test_a_request_that_takes_time_to_encode_is_sent_later(more):
    async def scenario():
        async with warm() as (conversation, _, connection):
            conversation.send(ask("resp_2", **more))
            with pytest.raises(BlockingIOError):
                connection.recv(65536)
            request = await asyncio.get_running_loop().sock_recv(connection, 65536)
            assert request.startswith(b"POST ") or request.startswith(b"GET ")

    run(scenario())


def test_the_slot_of_a_request_is_free_once_it_has_ended():
    async def scenario():
        async with warm(concurrency=1, queue=0) as (conversation, heard, connection):
            for number in range(2, 6):
                conversation.send(ask(f"resp_{number}"))
                connection.recv(65536)
                connection.send(streamed("again"))
                await heard.end_of(f"resp_{number}")
                await settle()

    run(scenario())


def test_a_request_waits_behind_those_that_wait_already():
    async def scenario():
        async with warm(concurrency=1) as (conversation, heard, connection):
            for number in range(2, 5):
                conversation.send(ask(f"resp_{number}", f"number {number}"))
            for number in range(2, 5):
                request = await asyncio.get_running_loop().sock_recv(connection, 65536)
                assert f"number {number}".encode() in request
                connection.send(streamed("again"))
            await heard.end_of("resp_4")

    run(scenario())


def test_a_request_that_is_cancelled_closes_its_connection_and_says_so_later():
    async def scenario():
        async with warm(concurrency=1, queue=0) as (conversation, heard, connection):
            conversation.send(ask("resp_2"))
            connection.recv(65536)
            conversation.send(commands.Cancel("resp_2"))
            conversation.send(commands.Cancel("resp_2"))
            assert not heard.ends("resp_2")
            assert (await heard.end_of("resp_2")).reason == "cancelled"
            with contextlib.suppress(ConnectionError):
                assert await asyncio.get_running_loop().sock_recv(connection, 65536) == b""
            conversation.send(ask("resp_3"))  # there is a slot for it

    run(scenario())


def test_a_conversation_that_ends_closes_the_connection_and_delivers_nothing():
    async def scenario():
        async with Server(streamed("hello"), HALF).open() as server:
            engine, heard = engine_for(f"http://127.0.0.1:{server.port}/v1", concurrency=1, queue=0), Heard()
            async with asyncio.timeout(20):
                async with engine.open(ConversationSettings(model="m1"), heard) as conversation:
                    conversation.send(ask("resp_1"))
                    await heard.end_of("resp_1")
                    await settle()
                    conversation.send(ask("resp_2"))
                    await server.until(lambda: len(server.asked) == 2)
                await server.until(lambda: server.left == 1)
                assert not heard.ends("resp_2")
                async with engine.open(ConversationSettings(model="m1"), heard) as conversation:
                    conversation.send(ask("resp_3"))
                    await server.until(lambda: len(server.asked) == 3)
            await engine.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("play", "tries"),
    [(CUT, 3), (BUSY, 3), (whole("503 Down", {}), 3), (whole("500 Oh", {}), 2), (closing(HALF), 2)],
    ids=["stale", "busy", "down", "fault", "half"],
)
def test_a_failure_is_handled_as_that_of_any_other_request(play, tries):
    async def scenario():
        watcher, place = watched()
        plays = (streamed("hello"), play, streamed("again"))
        async with asyncio.timeout(20), Server(*plays).open() as server, before(server, place, retries=1) as (conversation, heard):
            conversation.send(ask("resp_1"))
            await heard.end_of("resp_1")
            await settle()
            conversation.send(ask("resp_2"))
            end = await heard.end_of("resp_2")
        assert len(server.asked) == tries
        assert isinstance(end, events.ResponseEnded if tries == 3 else events.ResponseFailed)
        assert len(watcher.failures) == (0 if play is CUT else 1)  # an idle connection may close at any time

    run(scenario())


def test_an_upstream_that_is_left_alone_gets_nothing_over_an_idle_connection():
    async def scenario():
        plays = (streamed("hello"), whole("503 Down", {}))
        async with asyncio.timeout(20), Server(*plays).open() as server, before(server, failures=1) as (conversation, heard):
            for number in range(1, 4):
                conversation.send(ask(f"resp_{number}"))
                await heard.end_of(f"resp_{number}")
                await settle()
            assert len(server.asked) == 2

    run(scenario())


def test_a_request_that_the_server_can_not_take_fails_after_the_call():
    async def scenario():
        async with warm() as (conversation, heard, connection):
            conversation.send(commands.Relay(id="resp_2", path="chat/completions", body=b"no JSON", stream=True))
            assert not heard.ends("resp_2")
            assert (await heard.end_of("resp_2")).status == 400
            with pytest.raises(BlockingIOError):
                connection.recv(65536)

    run(scenario())
