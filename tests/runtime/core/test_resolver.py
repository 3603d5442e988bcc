"""Resolving names: what is slow for one client is not for others."""

import asyncio
import contextvars
import threading

import pytest

from antiphon.errors import ClientError
from antiphon.runtime.core.resolver import Resolver, asking_client
from antiphon.runtime.core.url_fetch import FetchLimits, fetch


class Names:
    """A resolver whose names that begin with `slow` take until they are released."""

    def __init__(self):
        self.release = threading.Event()
        self.most = self.running = 0
        self.lock = threading.Lock()
        self.asked = []

    def look_up(self, host):
        with self.lock:
            self.asked.append(host)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if host.startswith("slow"):
                assert self.release.wait(60)
            if host.startswith("unknown"):
                raise OSError("no such name")
            return ["192.0.2.1"]
        finally:
            with self.lock:
                self.running -= 1


def as_client(tasks, name, work):
    """A task of a client's request."""
    context = contextvars.copy_context()
    context.run(asking_client.set, name)
    return tasks.create_task(work, context=context)


@pytest.fixture
def names():
    names = Names()
    yield names
    names.release.set()


def test_slow_names_of_one_client_leave_the_others_their_threads(names):
    async def scenario():
        resolver = Resolver(names.look_up, threads=8, client_threads=3)
        async with asyncio.TaskGroup() as tasks:
            slow = [as_client(tasks, "ann", resolver.resolve(f"slow{number}")) for number in range(40)]
            quick = [as_client(tasks, "bob", resolver.resolve(f"quick{number}")) for number in range(40)]
            assert {tuple(await task) for task in quick} == {("192.0.2.1",)}
            assert not any(task.done() for task in slow)
            assert names.most <= 6
            assert len([host for host in names.asked if host.startswith("slow")]) <= 3
            names.release.set()
        assert [task.result() for task in slow] == [["192.0.2.1"]] * 40
        assert not resolver._clients

    asyncio.run(scenario())


def test_a_name_that_nobody_waits_for_any_more_still_takes_its_clients_thread(names):
    async def scenario():
        resolver = Resolver(names.look_up, threads=8, client_threads=1)
        async with asyncio.TaskGroup() as tasks:
            gone = [as_client(tasks, "ann", resolver.resolve(f"slow{number}")) for number in range(3)]
            await asyncio.sleep(0)
            for task in gone:
                task.cancel()
            await asyncio.wait(gone)
            last = as_client(tasks, "ann", resolver.resolve("last"))
            assert await as_client(tasks, "bob", resolver.resolve("quick")) == ["192.0.2.1"]
            assert not last.done()
            names.release.set()
            assert await last == ["192.0.2.1"]
        assert sorted(names.asked) == ["last", "quick", "slow0"]  # what was cancelled while it waited is never asked

    asyncio.run(scenario())


def test_a_name_without_addresses_is_told_to_who_asked_and_gives_its_thread_back(names):
    async def scenario():
        resolver = Resolver(names.look_up, threads=2, client_threads=1)
        for _ in range(3):
            with pytest.raises(OSError, match="no such name"):
                await resolver.resolve("unknown")
        assert not resolver._clients

    asyncio.run(scenario())


def test_a_fetch_of_a_slow_name_ends_in_time_and_another_clients_fetch_is_not_held_up(names):
    async def refusal(resolver, host):
        with pytest.raises(ClientError) as refused:
            await fetch(f"http://{host}.example/", "input[0]", FetchLimits(timeout_s=0.2 if host == "slow" else 60), resolver.resolve)
        return refused.value.message

    async def scenario():
        resolver = Resolver(names.look_up, threads=4, client_threads=2)
        async with asyncio.TaskGroup() as tasks:
            slow = [as_client(tasks, "ann", refusal(resolver, "slow")) for _ in range(20)]
            assert "its address is not public" in await as_client(tasks, "bob", refusal(resolver, "quick"))
        assert all("took longer than 0.2 seconds" in task.result() for task in slow)

    asyncio.run(scenario())
