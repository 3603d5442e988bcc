"""A worker that the test controls, and a client that collects the events."""

import asyncio
import contextlib

from antiphon.config.settings import QueueSettings, WorkerSettings
from antiphon.engine_api import commands
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.scheduling.local import LocalCoordinator


class Heard:
    """The events that a client gets, and a way to wait for them."""

    def __init__(self):
        self.words = []
        self._changed = asyncio.Event()

    def __call__(self, words):
        self.words += words
        self._changed.set()

    async def until(self, *kinds):
        """Wait until the last events are of these types."""
        while [type(word) for word in self.words[-len(kinds) :]] != list(kinds):
            self._changed.clear()
            async with asyncio.timeout(10):
                await self._changed.wait()
        return self.words[-1]


class Stage:
    """
    A worker's engine that the test controls and observes.

    Attributes:
        opening: set when a conversation may begin; likewise `leaving`, when it may be left.
    """

    capabilities = Capabilities(full_duplex=True)

    def __init__(self):
        self.opening, self.leaving = asyncio.Event(), asyncio.Event()
        self.opening.set()
        self.leaving.set()
        self.at = asyncio.Queue()
        self.told = []
        self.open_now = 0
        self.say = None
        self.fails = []
        self.crash = None
        self.is_full = False

    async def start(self):
        pass

    async def stop(self):
        pass

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self.at.put_nowait("opening")
        await self.opening.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.open_now += 1
        self.say = deliver
        async with asyncio.TaskGroup() as tasks:
            self.crash = lambda: tasks.create_task(_crash())
            self.at.put_nowait("open")
            try:
                yield self
            finally:
                self.at.put_nowait("leaving")
                try:
                    await self.leaving.wait()
                finally:
                    self.open_now -= 1

    async def reached(self, point):
        async with asyncio.timeout(10):
            while await self.at.get() != point:
                pass

    def send(self, word):
        if self.is_full:
            raise EngineOverrun("too much is waiting")
        self.told.append(word)

    def pause(self):
        self.told.append("pause")

    def resume(self):
        self.told.append("resume")


async def _crash():
    raise RuntimeError("as native code does")


def places(*engines, slots=1, failures=3, **settings):
    coordinator = LocalCoordinator(QueueSettings(**settings), WorkerSettings(failures=failures))
    for number, engine in enumerate(engines):
        coordinator.add_worker(Worker(id=f"w{number}", model="m", engine=engine, slots=slots))
    return coordinator


def asked(id="resp_1"):
    return commands.Respond(id=id, history=())


def settings(kind="audio", key="", tenant=""):
    return ConversationSettings(model="m", kind=kind, key_id=key, tenant=tenant)


def states(coordinator):
    return [(seen.state, seen.lease_count) for seen in coordinator.workers()]


async def free(coordinator):
    """Wait until no client has or waits for a slot."""
    async with asyncio.timeout(10):
        while coordinator.tickets():  # noqa: ASYNC110 - the last to leave sets no event
            await asyncio.sleep(0)
