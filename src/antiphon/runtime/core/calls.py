"""
Calls: sessions that outlive the request that began them, and that several clients may share.

The first client is the caller. Sideband clients join later, over a WebSocket; they send and get the same events.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import TypeAlias

from antiphon.errors import ApiError, ClientError, shorten
from antiphon.protocols.realtime.session import RealtimeMessage
from antiphon.runtime.core.driver import Driver, SessionClient
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.taps import Tap
from antiphon.wire.realtime.server_events import ResponseOutputAudioDelta, ServerEvent, SessionCreated, SessionUpdated
from antiphon.wire.realtime.session import Session, TranscriptionSession

MAX_SIDEBAND_CLIENTS = 8
"""Sideband clients of one call at the same time."""

RealtimeDriver: TypeAlias = Driver[RealtimeMessage, ServerEvent]
"""The driver of a Realtime session."""


class Call:
    """
    One call; to its driver it is the client.

    Args:
        caller: the first client.

    Attributes:
        id: by which others join or end the call.
        tenant: whose keys may do that.
        tap: observes the events of all clients.
        driver: of the session; None until that begins.
    """

    def __init__(self, id: str, tenant: str, caller: SessionClient[ServerEvent], tap: Tap) -> None:
        self.id = id
        self.tenant = tenant
        self.tap = tap
        self.driver: RealtimeDriver | None = None
        self._caller = caller
        self._sideband_clients: list[SessionClient[ServerEvent]] = []
        self._session: Session | TranscriptionSession | None = None

    def send(self, event: ServerEvent) -> None:
        # Audio goes to the caller alone, who plays it; sideband clients only follow and control the session.
        self._caller.send(event)
        if type(event) is SessionCreated or type(event) is SessionUpdated:
            self._session = event.session
        if self._sideband_clients and type(event) is not ResponseOutputAudioDelta:
            for client in self._sideband_clients:
                client.send(event)

    def flush(self) -> None:
        self._caller.flush()
        for client in self._sideband_clients:
            client.flush()

    def close(self, error: ApiError | None) -> None:
        self._caller.close(error)
        for client in self._sideband_clients:
            client.close(error)

    @contextlib.contextmanager
    def attach(self, client: SessionClient[ServerEvent]) -> Iterator[None]:
        """
        Add a sideband client; it first gets `session.created` with the present session, unless that is yet to begin.

        Raises:
            ClientError: there are too many.
        """
        if len(self._sideband_clients) >= MAX_SIDEBAND_CLIENTS:
            raise ClientError(f"This call already has {MAX_SIDEBAND_CLIENTS} connections.", status=429, code="too_many_connections")
        if self._session is not None:
            client.send(SessionCreated(event_id=new_id("event"), session=self._session))
        self._sideband_clients.append(client)
        try:
            yield
        finally:
            self._sideband_clients.remove(client)


class ActiveCalls:
    """The calls of this process."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        """Run a call in a task of its own, which outlives the request that began it."""
        # It lives longer than the request that begins it; `close` waits for it.
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def track(self, call: Call) -> Iterator[None]:
        """Make a call findable while this is entered."""
        self._calls[call.id] = call
        try:
            yield
        finally:
            del self._calls[call.id]

    def find(self, call_id: str, tenant: str) -> Call:
        """
        The call of that id.

        Raises:
            ClientError: 404; there is none, or it belongs to another tenant.
        """
        call = self._calls.get(call_id)
        if call is None or call.tenant != tenant:
            raise ClientError(f"Call with id '{shorten(call_id)}' not found.", code="call_not_found", param="call_id", status=404)
        return call

    async def close(self) -> None:
        """Cancel the remaining calls; idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
