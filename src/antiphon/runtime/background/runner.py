"""Runs background responses: how many at once, in which order, and until when."""

import asyncio
import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack

import structlog
from msgspec import Struct

from antiphon.config.settings import BackgroundSettings
from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ClientError, ServerError, StoreError, innermost_error, shutting_down
from antiphon.protocols.responses.ending import fail_interrupted_record
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.records import BackgroundRecord, EventRun, KeyRecord, ResponseRecord
from antiphon.runtime.access.keys import Caller, Keyring
from antiphon.runtime.background.ending import fail_response
from antiphon.runtime.background.journal import EventWriter, Journal, interrupted_error
from antiphon.runtime.background.priority import CompletionOrder
from antiphon.runtime.background.streams import StoredStreams
from antiphon.runtime.core.driver import Driver, ToolRunner
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.runtime.multiprocess.peer import PeerProcesses
from antiphon.stores.base import Store
from antiphon.wire.responses.events import StreamEvent

WATCH_S = 1.0
"""How often the store is asked whether responses that are made here were ended or deleted elsewhere."""

CLOSE_S = 3.0
"""How long responses that are cut off at shutdown may take to store their end."""


class BackgroundResponse(Struct, frozen=True, eq=False):
    """
    A response that is stored as `queued`, and ready to be made.

    Attributes:
        rank: those with the least are made first.
        limits: holds its place among those of its key, and its conversation; left at its end.
        measure: entered while it is made.
        tools: runs the tools of the server that it has; None where it has none.
    """

    record: ResponseRecord
    key: KeyRecord | None
    rank: float
    journal: Journal
    session: ResponsesSession
    engine: Engine
    settings: ConversationSettings
    opening: ResolvedRequest
    limits: AsyncExitStack
    measure: Callable[[], AbstractContextManager[None]]
    tools: ToolRunner | None = None


Restart = Callable[[Caller, ResponseRecord, bytes], Awaitable[BackgroundResponse]]
"""Makes a queued response ready that another server had stored, from its request as JSON."""


class BackgroundRunner:
    """
    The background responses of a process.

    Args:
        can_restart: whether the store outlives the process, so that queued responses can be left to another one.

    Attributes:
        journals: of the responses that wait or are made here, by id.
        streams: the responses that are no background responses.
        order: that in which those are made that wait.
    """

    def __init__(
        self,
        settings: BackgroundSettings,
        store: Store,
        keyring: Keyring,
        live_sessions: LiveSessions,
        metrics: Metrics,
        peers: PeerProcesses | None,
        *,
        can_restart: bool,
    ) -> None:
        self._settings = settings
        self._store = store
        self._keyring = keyring
        self._live_sessions = live_sessions
        self._metrics = metrics
        self._peers = peers
        self.restarts_queued = settings.restart_queued and can_restart
        self.journals: dict[str, Journal] = {}
        self.streams = StoredStreams()
        self._writer = EventWriter()
        self.order = CompletionOrder()
        self._arrivals = itertools.count()
        self._queue: list[tuple[float, int, BackgroundResponse]] = []
        self._drivers: dict[str, Driver[ResolvedRequest, StreamEvent]] = {}
        self._counts: Counter[str] = Counter()  # admitted, by key
        self._tasks: set[asyncio.Task[None]] = set()
        self._response_tasks: set[asyncio.Task[None]] = set()  # those of `_tasks` that make responses
        self._restart: Restart | None = None
        self._early_orphans: list[ResponseRecord] = []
        self._is_closed = False

    def start(self) -> None:
        """Start what runs beside the responses, until `close`."""
        self._spawn(self._writer.run(), "event writer")
        self._spawn(self._watch(), "background watch")

    def attach(self, restart: Restart) -> None:
        """Set how responses are restarted that other servers left queued."""
        self._restart = restart
        orphans, self._early_orphans = self._early_orphans, []
        for record in orphans:
            self._spawn(self._settle(record), "restart")

    @property
    def count(self) -> int:
        """How many responses are to end before the server stops."""
        return len(self._drivers) + (0 if self.restarts_queued else len(self._queue))

    def is_making(self, response_id: str) -> bool:
        """Whether a response is made here now; one that waits is not."""
        return response_id in self._drivers

    # New ones

    def admit(self, key_id: str) -> None:
        """
        Count a new response; `release` it if it does not come to be.

        Raises:
            ClientError: 429; too many are waiting, or are there with this key.
        """
        settings = self._settings
        is_full = self._counts.total() >= settings.running + settings.waiting
        if is_full or (settings.per_key and self._counts[key_id] >= settings.per_key):
            cap = f"`background.waiting` of {settings.waiting}" if is_full else f"`background.per_key` of {settings.per_key}"
            raise ClientError(
                f"Too many background responses: this server's limit {cap} is reached. Please try again when some have ended.",
                status=429,
                code="rate_limit_exceeded",
                type="rate_limit_error",
                param="background",
                retry_after_s=1,
            )
        self._counts[key_id] += 1

    def release(self, key_id: str) -> None:
        """Forget a response that was admitted."""
        self._counts[key_id] -= 1
        if not self._counts[key_id]:
            del self._counts[key_id]

    def new_journal(self, record: ResponseRecord, events: EventRun | None) -> Journal:
        """The journal of a response; `events` are those that are stored with it, None where it is not streamed."""
        return Journal(self._store, record, events, self._writer.mark)

    def submit(self, response: BackgroundResponse) -> None:
        """Have an admitted response made, as soon as there is room."""
        self.journals[response.record.id] = response.journal
        heapq.heappush(self._queue, (response.rank, next(self._arrivals), response))
        self._start_next()

    def _start_next(self) -> None:
        # While the server drains, what waits is left to a server that can restart it.
        is_leaving = self._is_closed or (self._live_sessions.is_draining and self.restarts_queued)
        while self._queue and len(self._drivers) < self._settings.running and not is_leaving:
            response = heapq.heappop(self._queue)[2]
            driver = Driver(response.session, response.journal, response.journal, metrics=self._metrics, tools=response.tools)
            self._drivers[response.record.id] = driver
            task = self._spawn(self._run(response, driver), "background response")
            self._response_tasks.add(task)
            task.add_done_callback(self._response_tasks.discard)

    async def _run(self, response: BackgroundResponse, driver: Driver[ResolvedRequest, StreamEvent]) -> None:
        response.journal.on_backlog = lambda is_behind: driver.pause() if is_behind else driver.resume()
        try:
            async with response.limits:
                with response.measure(), self._live_sessions.track(driver, response.key):
                    await driver.run(response.engine, response.settings, response.opening)
        except Exception as error:  # where a session ends
            await self._fail(response.record, _api_error(error))
        else:
            if not response.journal.has_finished:  # it was ended elsewhere, unless the store failed
                await self._fail(response.record, response.journal.error or interrupted_error())
        finally:
            self._metrics.stream_events += response.journal.event_count
            response.journal.release()
            del self._drivers[response.record.id]
            self._forget(response)
            self._start_next()

    def _forget(self, response: BackgroundResponse) -> None:
        self.journals.pop(response.record.id, None)
        self.release(response.settings.key_id)

    async def _fail(self, record: ResponseRecord, error: ApiError) -> None:
        with contextlib.suppress(StoreError):  # then it is failed as the orphan that it is
            await fail_response(self._store, record, error)

    # Ends from outside

    def stop(self, response_id: str) -> None:
        """Stop making a response that was ended or deleted in the store; does nothing where it is not made here."""
        self.streams.stop(response_id)
        if (driver := self._drivers.get(response_id)) is not None:
            driver.hang_up()
            return
        for entry in [entry for entry in self._queue if entry[2].record.id == response_id]:
            self._queue.remove(entry)
            heapq.heapify(self._queue)
            self._spawn(self._drop(entry[2]), "background drop")

    async def _drop(self, response: BackgroundResponse) -> None:
        self._forget(response)
        await response.limits.aclose()

    def stop_everywhere(self, response_id: str) -> None:
        """As `stop`, in all processes of this server at once; other servers find out within `WATCH_S`."""
        self.stop(response_id)
        if self._peers is not None:
            self._peers.stop_response(response_id)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if response_ids := [*self.journals, *self.streams.stored_ids]:
                with contextlib.suppress(StoreError):
                    for response_id in await self._store.background.find_lost(response_ids):
                        self.stop(response_id)

    # Those that another server left

    async def settle_orphan(self, record: ResponseRecord) -> None:
        """
        End a response on which no living server works, or make it if it had not begun.

        Raises:
            StoreError: the store failed.
        """
        background = await self._store.background.get(record.tenant, record.id)
        if background is None:
            await self._store.write_off(fail_interrupted_record(record))
        elif record.status != "queued" or background.request is None or not self._settings.restart_queued or self._is_closed:
            await fail_response(self._store, record, interrupted_error(), is_orphan=True)
        elif self._restart is None:
            self._early_orphans.append(record)
        elif await self._store.background.take_over(record):
            self._counts[background.key_id or ""] += 1
            self._spawn(self._begin_again(self._restart, record, background, background.request), "restart")

    async def _settle(self, record: ResponseRecord) -> None:
        with contextlib.suppress(StoreError):
            await self.settle_orphan(record)

    async def _begin_again(self, restart: Restart, record: ResponseRecord, background: BackgroundRecord, request: bytes) -> None:
        try:
            caller = await self._keyring.caller_for_key(background.key_id)
            if caller is None or caller.tenant != record.tenant:
                raise ClientError("The API key that this response was created with is not valid any more.", code="invalid_api_key")
            response = await restart(caller, record, request)
        except Exception as error:  # as for a session
            self.release(background.key_id or "")
            await self._fail(record, _api_error(error))
        else:
            self.submit(response)

    # The end

    async def close(self) -> None:
        """
        End everything: what is being made fails, and so does what waits unless it is left to another server; idempotent.
        """
        self._is_closed = True
        for driver in tuple(self._drivers.values()):
            driver.shut_down(shutting_down())
        queue, self._queue = self._queue, []
        for _, _, response in queue:
            if not self.restarts_queued:
                await self._fail(response.record, shutting_down())
            await self._drop(response)
        if self._response_tasks:
            await asyncio.wait(self._response_tasks, timeout=CLOSE_S)
        for task in (rest := [*self._tasks]):
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    def _spawn(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        # It lives as long as the service, and not as the request that asked for it.
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # noqa: TID251
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _api_error(error: Exception) -> ApiError:
    """The error that a client gets for one that ended its session."""
    error = innermost_error(error)
    if isinstance(error, ApiError):
        return error
    structlog.get_logger().error("defect", exc_info=error)
    return ServerError("The server had an error while making this response.")
