"""A session with a MiniCPM-o server: waiting in its queue, starting, and exchanging events."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Literal
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.recording import RECORD_HEADERS
from antiphon.cli.voice.socket import OPEN_TIMEOUT_S, ClientSession, TimedEvent, connect_websocket
from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo.server_events import ErrorEvent, ServerEvent, SessionClosed, SessionCreated, SessionQueueDone, decode_server

Mode = Literal["audio", "video", "chat"]
MinicpmoEvent = ServerEvent | Unknown

_CLOSE_TIMEOUT_S = 5.0


class MinicpmoSessionOptions(Struct, frozen=True, kw_only=True):
    """
    How a session is opened.

    Attributes:
        model: None leaves the choice to the server.
        instructions: the system prompt; None keeps the server's own.
        on_session_id: asks the server to record the session, and gets its id; None asks for no recording.
    """

    mode: Mode = "audio"
    model: str | None = None
    instructions: str | None = None
    on_session_id: Callable[[str], object] | None = None

    @property
    def path(self) -> str:
        """The path and query to connect to."""
        return f"/v1/realtime?{urlencode({'mode': self.mode} | ({} if self.model is None else {'model': self.model}))}"


class MinicpmoClientSession(ClientSession[MinicpmoEvent]):
    """
    A session.

    Attributes:
        session_created: the event that started it; None before.
        session_closed: the event that ended it; None before.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__(socket)
        self.session_created: SessionCreated | None = None
        self.session_closed: SessionClosed | None = None

    def decode(self, text: bytes) -> MinicpmoEvent:
        return decode_server(text)

    async def send(self, event_type: str, **fields: object) -> None:
        """
        Send an event.

        Raises:
            UpstreamError: the connection is closed.
        """
        await self.send_text(json.dumps({"type": event_type, **fields}), event_type)

    async def receive(self, timeout_s: float | None = None) -> TimedEvent[MinicpmoEvent] | None:
        """
        The next event; None when none arrived in time.

        Raises:
            UpstreamError: the server sent an error, ended the session, or closed the connection.
        """
        timed_event = await super().receive(timeout_s)
        match timed_event.event if timed_event is not None else None:
            case ErrorEvent(error=error):
                raise UpstreamError(error.message, code=error.code)
            case SessionClosed() as event:
                self.session_closed = event
                raise UpstreamError(f"The server has closed the session: {_close_reason(event)}.", code=event.reason)
            case _:
                pass
        return timed_event

    async def begin(self, options: MinicpmoSessionOptions, on_event: Callable[[TimedEvent[MinicpmoEvent]], None]) -> None:
        """
        Wait in the queue, then start the session.

        Args:
            on_event: gets every event until the session has started.

        Raises:
            UpstreamError: the session did not start.
        """
        while (timed_event := await self.receive(OPEN_TIMEOUT_S)) is not None:
            on_event(timed_event)
            # The server takes `session.init` only after `session.queue_done`.
            if isinstance(timed_event.event, SessionQueueDone):
                await self.send("session.init", payload={} if options.instructions is None else {"system_prompt": options.instructions})
            elif isinstance(timed_event.event, SessionCreated):
                self.session_created = timed_event.event
                if options.on_session_id is not None:
                    options.on_session_id(timed_event.event.session_id)
                return
        raise UpstreamError(f"The server started no session within {OPEN_TIMEOUT_S} s.")

    async def close(self, on_event: Callable[[TimedEvent[MinicpmoEvent]], None]) -> None:
        """
        Close the session, and wait until the server confirms.

        Args:
            on_event: gets the events that still arrive.

        Raises:
            UpstreamError: the connection ended without a confirmation.
        """
        await self.send("session.close", reason="user_stop")
        try:
            while (timed_event := await self.receive(_CLOSE_TIMEOUT_S)) is not None:
                on_event(timed_event)
        except UpstreamError:
            # `receive` raises for the close that was asked for, too.
            if self.session_closed is None:
                raise


def _close_reason(event: SessionClosed) -> str:
    return f"{event.reason} ({event.diagnostic.message.rstrip('.')})" if event.diagnostic else event.reason


@contextlib.asynccontextmanager
async def connect_minicpmo(client: ApiClient, options: MinicpmoSessionOptions) -> AsyncIterator[MinicpmoClientSession]:
    """
    Connect; `begin` then starts the session.

    Raises:
        UpstreamError: the server can't be reached, or refuses.
    """
    async with connect_websocket(client, options.path, RECORD_HEADERS if options.on_session_id else {}) as socket:
        yield MinicpmoClientSession(socket)
