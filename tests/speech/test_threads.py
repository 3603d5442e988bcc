"""Threads for what takes long."""

import asyncio
import threading

import pytest

from antiphon.errors import ApiError
from antiphon.speech.threads import BoundedThreadPool
from support.speech.running import run


def test_work_is_done_in_threads_that_bear_the_name():
    async def scenario():
        threads = BoundedThreadPool("test-ear", 1, 0)
        assert (await threads.run(lambda: threading.current_thread().name)).startswith("test-ear")
        await threads.stop()

    run(scenario())


def test_what_fails_there_fails_here():
    async def scenario():
        threads = BoundedThreadPool("test-ear", 1, 0)
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        await threads.stop()

    run(scenario())


def test_a_thread_is_free_until_as_much_is_under_way_as_there_are_threads():
    async def scenario():
        threads, gate = BoundedThreadPool("test-ear", 2, 1), threading.Event()
        async with asyncio.TaskGroup() as tasks:
            seen = [threads.has_free_thread]
            for _ in range(2):
                tasks.create_task(threads.run(gate.wait, gate.set))
                await asyncio.sleep(0)
                seen.append(threads.has_free_thread)
            gate.set()
        assert seen == [True, True, False]
        assert threads.has_free_thread
        await threads.stop()

    run(scenario())


def test_more_than_can_wait_is_refused_until_there_is_room():
    async def scenario():
        threads, gate = BoundedThreadPool("test-ear", 1, 1), threading.Event()
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(threads.run(gate.wait, gate.set)) for _ in range(2)]
            await asyncio.sleep(0)
            assert threads.is_busy
            with pytest.raises(ApiError) as refused:
                await threads.run(gate.wait)
            gate.set()
        assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
        assert [task.result() for task in both] == [True, True]
        assert await threads.run(lambda: "again") == "again"
        await threads.stop()

    run(scenario())


def test_cancelling_stops_what_is_under_way_and_drops_what_waits():
    async def scenario():
        threads, gate, first_began, second_began = BoundedThreadPool("test-ear", 1, 1), *(threading.Event() for _ in range(3))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(threads.run(lambda: (first_began.set(), gate.wait()), gate.set))
            await asyncio.to_thread(first_began.wait)
            second = tasks.create_task(threads.run(second_began.set))
            await asyncio.sleep(0)
            second.cancel()
            first.cancel()
        assert gate.is_set()
        assert await threads.run(lambda: "free") == "free"
        assert not second_began.is_set()
        await threads.stop()

    run(scenario())


def test_work_that_nobody_waits_for_takes_its_place_until_it_is_over():
    async def scenario():
        threads, gate, began, over = BoundedThreadPool("test-ear", 1, 0), *(threading.Event() for _ in range(3))
        async with asyncio.TaskGroup() as tasks:
            deaf = tasks.create_task(threads.run(lambda: (began.set(), gate.wait(), over.set())))
            await asyncio.to_thread(began.wait)
            deaf.cancel()
        assert threads.is_busy
        with pytest.raises(ApiError):
            await threads.run(lambda: None)
        gate.set()
        await asyncio.to_thread(over.wait)
        await threads.stop()
        assert not threads.is_busy

    run(scenario())


def test_stopping_stops_all_work_and_takes_no_more():
    async def scenario():
        threads, gate = BoundedThreadPool("test-ear", 1, 0), threading.Event()
        async with asyncio.TaskGroup() as tasks:
            under_way = tasks.create_task(threads.run(gate.wait, gate.set))
            await asyncio.sleep(0)
            await threads.stop()
            await threads.stop()
        assert under_way.result()
        with pytest.raises(ApiError) as refused:
            await threads.run(lambda: None)
        assert (refused.value.status, refused.value.code) == (503, "server_shutting_down")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-ear")]

    run(scenario())
