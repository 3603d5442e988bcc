"""One conversation with the embedded model."""

import asyncio
from functools import partial
from typing import Protocol

import aiohttp

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engines.local.generation import response_failed, server_failed_error
from antiphon.engines.local.prefill import PrefillScheduler
from antiphon.errors import ApiError, shutting_down


class Generator(Protocol):
    """The model, for its conversations."""

    @property
    def prefill_scheduler(self) -> PrefillScheduler:
        """Decides which conversation may prefill."""

    def admit(self) -> None:
        """
        Check that one more response may start.

        Raises:
            EngineOverrun: too many wait already.
        """

    async def generate(self, request: commands.Respond, tenant: str, may_read: asyncio.Event, deliver: Deliver) -> list[events.EngineEvent]:
        """
        Generate a response: its last events are returned, those before go to `deliver`.

        Args:
            may_read: output is read only while it is set.

        Raises:
            ApiError: it can't be generated.
            aiohttp.ClientError: the native server is gone.
        """

    async def prefill(self, request: commands.Respond, tenant: str) -> None:
        """
        Process the prompt of a request that may follow, into the KV cache; does nothing while a response waits for a
        slot.
        """


class LocalConversation:
    """One client's responses, each a task."""

    def __init__(self, engine: Generator, tenant: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tenant = tenant
        self._deliver = deliver
        self._tasks = tasks
        self._response_tasks: dict[str, asyncio.Task[None]] = {}
        self._prefill_request: commands.Respond | None = None
        self._prefill_task: asyncio.Task[None] | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closed = False
        self._is_stopping = False

    @property
    def active_responses(self) -> int:
        """How many responses are running or waiting."""
        return len(self._response_tasks)

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Respond(id=id):
                self._engine.admit()
                task = self._response_tasks[id] = self._tasks.create_task(self._respond(command))
                task.add_done_callback(partial(self._on_response_done, id))
            case commands.Cancel(id) if id in self._response_tasks:
                self._response_tasks[id].cancel()
            case commands.Cancel():
                pass  # it ended before
            case commands.Prepare(request):
                self._prefill(request)
            case commands.Configure() | commands.AppendAudio() | commands.CommitAudio() | commands.ClearAudio():
                pass  # its capabilities have no audio input
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen() | commands.Relay():
                pass  # its capabilities have no full duplex

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """Cancel every response, and deliver nothing more."""
        self._is_closed = True
        self.cancel_all()

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Cancel responses and prefill; returns their tasks, which are still ending."""
        self._is_stopping = True
        tasks = list(self._response_tasks.values())
        if self._prefill_task is not None:
            tasks.append(self._prefill_task)
        for task in tasks:
            task.cancel()
        return tasks

    def _prefill(self, request: commands.Respond) -> None:
        if self._response_tasks or self._is_stopping or not self._engine.prefill_scheduler.try_claim(self):
            return
        self._prefill_request = request
        if self._prefill_task is None or self._prefill_task.done():
            self._prefill_task = self._tasks.create_task(self._run_prefill())
            self._prefill_task.add_done_callback(self._on_prefill_done)

    def _on_prefill_done(self, task: asyncio.Task[None]) -> None:
        if self._prefill_task is task:
            self._prefill_task = None  # the traceback of its cancellation leads back here

    async def _run_prefill(self) -> None:
        scheduler = self._engine.prefill_scheduler
        while (request := self._prefill_request) is not None:
            await scheduler.wait_until_idle()
            if request is not self._prefill_request:
                continue
            try:
                async with scheduler.prefilling(self):
                    await self._engine.prefill(request, self._tenant)
            except TimeoutError:
                continue  # a response came first; the prompt goes on from where it was
            if request is self._prefill_request:
                self._prefill_request = None

    async def _respond(self, request: commands.Respond) -> None:
        scheduler, prefill_request = self._engine.prefill_scheduler, self._prefill_request
        is_prefilled = prefill_request is not None and _continues_from(prefill_request, request)
        with scheduler.responding(self if is_prefilled else None):
            if not request.out_of_band:
                self._prefill_request = None
                scheduler.release_claim(self)
            if is_prefilled and self._prefill_task is not None and scheduler.is_prefilling(self):
                await asyncio.wait([self._prefill_task])  # it processes most of this response's own prompt
            await self._generate(request)

    async def _generate(self, request: commands.Respond) -> None:
        try:
            last_events = await self._engine.generate(request, self._tenant, self._may_read, self._deliver)
        except ApiError as error:
            last_events = [response_failed(request.id, error)]
        except (aiohttp.ClientError, ValueError, OSError) as error:
            last_events = [response_failed(request.id, server_failed_error(error))]
        # No `await` after this: a cancel must not come between the last event and the end of the task.
        self._deliver(last_events)

    def _on_response_done(self, id: str, task: asyncio.Task[None]) -> None:
        # A callback, as a task that is cancelled before its first step runs no `except` of its own.
        if self._response_tasks.get(id) is task:  # else the same response goes on with another turn
            del self._response_tasks[id]
        if task.cancelled() and not self._is_closed:
            stop_event = response_failed(id, shutting_down())
            self._deliver([stop_event if self._is_stopping else events.ResponseEnded(id, "cancelled")])


def _continues_from(prefill_request: commands.Respond, request: commands.Respond) -> bool:
    """Whether the prompt of `request` begins with that of `prefill_request`, up to its last turn."""
    past = prefill_request.history[:-1]
    return (prefill_request.instructions, prefill_request.tools, past) == (
        request.instructions,
        request.tools,
        request.history[: len(past)],
    )
