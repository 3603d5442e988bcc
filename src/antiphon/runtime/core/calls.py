"""
Calls: sessions that outlive the request which began them, and that more than one client may have a part in.

A call's first client is whoever called. Those who join it later, over a WebSocket, hear and say the same events.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from antiphon.errors import ApiError, ClientError, shorten
from antiphon.runtime.core.driver import Driver, SessionClient
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.taps import Tap
from antiphon.wire.realtime.server_events import ResponseOutputAudioDelta, SessionCreated, SessionUpdated

MAX_SIDEBAND_CLIENTS = 8
"""The most clients that join one call."""


class Call:
    """
    One call, which its driver takes for the client.

    Args:
        caller: whoever called.

    Attributes:
        id: its name, for whoever may join or end it.
        tenant: who may.
        tap: hears what any of the clients says.
        driver: of its session; there once it has begun.
    """

    def __init__(self, id: str, tenant: str, caller: SessionClient, tap: Tap) -> None:
        self.id = id
        self.tenant = tenant
        self.tap = tap
        self.driver: Driver | None = None
        self._caller = caller
        self._sideband_clients: list[SessionClient] = []
        self._session: Any = None

    def send(self, event: Any) -> None:
        """Take an event for all of them; sound is for whoever called alone, who hears it elsewhere."""
        self._caller.send(event)
        if type(event) is SessionCreated or type(event) is SessionUpdated:
            self._session = event.session
        if self._sideband_clients and type(event) is not ResponseOutputAudioDelta:
            for client in self._sideband_clients:
                client.send(event)

    def flush(self) -> None:
        """What was sent may leave."""
        self._caller.flush()
        for client in self._sideband_clients:
            client.flush()

    def close(self, fault: ApiError | None) -> None:
        """The session is over."""
        self._caller.close(fault)
        for client in self._sideband_clients:
            client.close(fault)

    @contextlib.contextmanager
    def attach(self, client: SessionClient) -> Iterator[None]:
        """
        Have one more client; it is first told of the session as it is.

        Raises:
            ClientError: there are too many.
        """
        if len(self._sideband_clients) >= MAX_SIDEBAND_CLIENTS:
            raise ClientError(
                f"There are {MAX_SIDEBAND_CLIENTS} connections to this call already.", status=429, code="too_many_connections"
            )
        client.send(SessionCreated(event_id=new_id("event"), session=self._session))
        self._sideband_clients.append(client)
        try:
            yield
        finally:
            self._sideband_clients.remove(client)


class ActiveCalls:
    """The calls under way in this process."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Have a call's work done, from here to its end."""
        # It lives longer than the request that begins it; `close` waits for it.
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def track(self, call: Call) -> Iterator[None]:
        """Let a call be found from its beginning to its end."""
        self._calls[call.id] = call
        try:
            yield
        finally:
            del self._calls[call.id]

    def find(self, call_id: str, tenant: str) -> Call:
        """
        The call of that id.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        call = self._calls.get(call_id)
        if call is None or call.tenant != tenant:
            raise ClientError(f"Call with id '{shorten(call_id)}' not found.", code="call_not_found", param="call_id", status=404)
        return call

    async def close(self) -> None:
        """End those that are left; idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
