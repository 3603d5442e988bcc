"""One conversation with the embedded model."""

import asyncio
from functools import partial
from typing import Protocol

import aiohttp

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engines.local.generation import _response_failed, _server_failed_error
from antiphon.engines.local.prefill import PrefillScheduler
from antiphon.errors import ApiError, ServerError


class Generator(Protocol):
    """The model, as its conversations see it."""

    @property
    def prefill_scheduler(self) -> PrefillScheduler:
        """Who may read a prompt before it is asked for."""

    def admit(self) -> None:
        """
        Make sure that there is room for one more answer.

        Raises:
            EngineOverrun: there is not.
        """

    async def generate(self, request: commands.Respond, tenant: str, may_read: asyncio.Event, deliver: Deliver) -> list[events.EngineEvent]:
        """Generate an answer: all words but the last go to `say`, the last are returned; raises what ends it."""

    async def prefill(self, request: commands.Respond, tenant: str) -> None:
        """Read what will be asked, as far as it is known; only where nobody waits for a slot."""


class _LocalConversation:
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
        """How many answers are under way."""
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
            case commands.Prepare(ask):
                self._prefill(ask)
            case commands.Configure() | commands.AppendAudio() | commands.CommitAudio() | commands.ClearAudio():
                pass  # its abilities say that it doesn't listen
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """Stop, and say nothing more."""
        self._is_closed = True
        self.cancel_all()

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Stop what is being answered; returns what is still stopping."""
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

    async def _run_prefill(self) -> None:
        ahead = self._engine.prefill_scheduler
        while (ask := self._prefill_request) is not None:
            await ahead.wait_until_idle()
            if ask is not self._prefill_request:
                continue
            try:
                async with ahead.prefilling(self):
                    await self._engine.prefill(ask, self._tenant)
            except TimeoutError:
                continue  # somebody else is answered first
            if ask is self._prefill_request:
                self._prefill_request = None

    async def _respond(self, request: commands.Respond) -> None:
        ahead, read = self._engine.prefill_scheduler, self._prefill_request
        is_known = read is not None and _continues_from(read, request)
        with ahead.responding(self if is_known else None):
            if not request.out_of_band:
                self._prefill_request = None
                ahead.release_claim(self)
            if is_known and self._prefill_task is not None and ahead.is_prefilling(self):
                await asyncio.wait([self._prefill_task])  # what it has read is most of what this one would have to
            await self._generate(request)

    async def _generate(self, request: commands.Respond) -> None:
        try:
            ending = await self._engine.generate(request, self._tenant, self._may_read, self._deliver)
        except ApiError as fault:
            ending = [_response_failed(request.id, fault)]
        except (aiohttp.ClientError, ValueError, OSError) as error:
            ending = [_response_failed(request.id, _server_failed_error(error))]
        # Nothing is awaited after this, so that a cancel can't come between the last word and the end.
        self._deliver(ending)

    def _on_response_done(self, id: str, task: asyncio.Task[None]) -> None:
        # Also where it was cancelled before its first step, which no `except` in it could see.
        self._response_tasks.pop(id, None)
        if task.cancelled() and not self._is_closed:
            stopped = _response_failed(id, ServerError("The server is stopping.", status=503))
            self._deliver([stopped if self._is_stopping else events.ResponseEnded(id, "cancelled")])


def _continues_from(prefill_request: commands.Respond, request: commands.Respond) -> bool:
    """Whether what is asked begins as what was read."""
    past = prefill_request.history[:-1]
    return (prefill_request.instructions, prefill_request.tools, past) == (
        request.instructions,
        request.tools,
        request.history[: len(past)],
    )
