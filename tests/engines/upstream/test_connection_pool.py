"""Connections kept for the next request, and the slots that requests take."""

import asyncio

import pytest

from antiphon.engine_api.engine import EngineOverrun
from antiphon.engines.upstream.concurrency import ConcurrencyLimit
from antiphon.engines.upstream.connection_pool import MAX_IDLE_CONNECTIONS, HttpConnectionPool, UpstreamAddress
from antiphon.errors import UpstreamError
from support.engines.upstreams import Server, run

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receiver:
    """Waits for an answer."""

    def __init__(self):
        self.over = asyncio.get_running_loop().create_future()

    def on_response_start(self, status, headers):
        pass

    def on_response_body(self, pieces):
        pass

    def on_response_end(self):
        self.over.set_result(None)

    def on_response_error(self, why):
        self.over.set_result(why)


async def exchanged(connection):
    receiver = Receiver()
    connection.send(b"GET / HTTP/1.1\r\n\r\n", receiver)
    return await receiver.over


def test_the_connection_used_last_is_used_next():
    async def scenario():
        async with asyncio.timeout(20), Server(REPLY).open() as server:
            pool = HttpConnectionPool(UpstreamAddress("127.0.0.1", server.port), 5)
            first, second = await pool.lease(), await pool.lease()
            assert first is not second
            for connection in (first, second):
                assert await exchanged(connection) is None
            assert await pool.lease() is second
            assert await pool.lease() is first
            assert await pool.lease(is_new=True) not in (first, second)
            pool.close()
            pool.close()
            await server.until(lambda: server.left == 3)

    run(scenario())


def test_a_new_connection_is_made_when_that_is_asked_for():
    async def scenario():
        async with asyncio.timeout(20), Server(REPLY).open() as server:
            pool = HttpConnectionPool(UpstreamAddress("127.0.0.1", server.port), 5)
            idle = await pool.lease()
            await exchanged(idle)
            assert await pool.lease(is_new=True) is not idle
            pool.close()

    run(scenario())


def test_no_more_connections_are_kept_than_are_likely_to_be_needed():
    async def scenario():
        async with asyncio.timeout(20), Server(REPLY).open() as server:
            pool = HttpConnectionPool(UpstreamAddress("127.0.0.1", server.port), 5)
            connections = [await pool.lease() for _ in range(MAX_IDLE_CONNECTIONS + 3)]
            for connection in connections:
                await exchanged(connection)
            await server.until(lambda: server.left == 3)
            assert sum(connection.is_open for connection in connections) == MAX_IDLE_CONNECTIONS
            pool.close()

    run(scenario())


def test_each_connection_is_closed_once_it_was_not_used_for_long():
    async def scenario():
        async with asyncio.timeout(20), Server(REPLY).open() as server:
            pool = HttpConnectionPool(UpstreamAddress("127.0.0.1", server.port), 5, idle_timeout_s=0.1)
            used, first, second = [await pool.lease() for _ in range(3)]
            for connection in (first, used):
                await exchanged(connection)
            assert await pool.lease() is used
            await server.until(lambda: server.left == 1)
            assert used.is_open and second.is_open and not first.is_open
            for connection in (used, second):
                await exchanged(connection)
            await server.until(lambda: server.left == 3)
            assert await exchanged(await pool.lease()) is None
            pool.close()

    run(scenario())


def test_a_connection_that_was_closed_while_idle_is_not_given_out():
    async def scenario():
        async def play(writer):
            writer.write(REPLY)
            await writer.drain()
            writer.close()

        async with asyncio.timeout(20), Server(play, REPLY).open() as server:
            pool = HttpConnectionPool(UpstreamAddress("127.0.0.1", server.port), 5)
            gone = await pool.lease()
            await exchanged(gone)
            while gone.is_open:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
            assert await pool.lease() is not gone
            pool.close()

    run(scenario())


def test_a_place_is_held_for_as_long_as_it_is_needed():
    async def scenario():
        slots = ConcurrencyLimit(1, 1, 60)
        slots.reserve()
        slots.reserve()
        with pytest.raises(EngineOverrun):
            slots.reserve()
        order = asyncio.Queue()

        async def use(name, gate):
            async with slots.slot():
                order.put_nowait(name)
                await gate.wait()

        gates = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use("first", gates[0]))
            tasks.create_task(use("second", gates[1]))
            assert await order.get() == "first"
            assert order.empty()
            gates[0].set()
            assert await order.get() == "second"
            gates[1].set()
        slots.release()
        slots.reserve()

    run(scenario())


def test_whoever_stops_waiting_leaves_the_queue_to_the_next():
    async def scenario():
        slots = ConcurrencyLimit(1, 9, 60)
        had = []

        async def use(name):
            async with slots.slot():
                had.append(name)

        async with asyncio.TaskGroup() as tasks:
            async with slots.slot():
                waiting = [tasks.create_task(use(name)) for name in ("first", "second", "third")]
                await asyncio.sleep(0)
                waiting[0].cancel()
                await asyncio.sleep(0)
            waiting[1].cancel()  # just as its turn comes
        assert had == ["third"]
        async with slots.slot():
            pass

    run(scenario())


def test_whoever_waits_too_long_is_told_and_takes_nothing():
    async def scenario():
        slots = ConcurrencyLimit(1, 9, 0.01)
        async with slots.slot():
            with pytest.raises(UpstreamError) as told:
                async with slots.slot():
                    raise AssertionError
            assert (told.value.status, told.value.retry_after_s) == (503, 1)
        async with slots.slot():
            pass

    run(scenario())


def test_a_free_slot_is_taken_at_once_but_not_before_those_who_wait():
    async def scenario():
        slots = ConcurrencyLimit(1, 9, 60)
        order = []

        async def use(name):
            async with slots.slot():
                order.append(name)

        assert slots.take()
        assert not slots.take()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use("first"))
            await asyncio.sleep(0)
            slots.give_back()
            assert not slots.take()  # it is the first one's
        assert order == ["first"]
        assert slots.take()

    run(scenario())
