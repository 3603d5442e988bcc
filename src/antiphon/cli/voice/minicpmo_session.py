"""The line to a MiniCPM-o server: how a session is waited for and begun, and what is said and heard in it."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice import recording
from antiphon.cli.voice.socket import OPEN_TIMEOUT_S, EventSocket, connect_websocket
from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo.server_events import ErrorEvent, ServerEvent, SessionClosed, SessionCreated, SessionQueueDone, decode_server

Mode = Literal["audio", "video", "chat"]

_CLOSE_TIMEOUT_S = 5.0


class MinicpmoSessionOptions(Struct, frozen=True, kw_only=True):
    """
    What is asked of a session.

    Attributes:
        model: who is to answer; None for whoever the server takes.
        instructions: what the model is told before the session; None for what the server tells it.
        recording: takes the id of the session, which is to be recorded; None for one that isn't.
    """

    mode: Mode = "audio"
    model: str | None = None
    instructions: str | None = None
    on_session_id: Callable[[str], object] | None = None

    @property
    def path(self) -> str:
        """Where such a session is."""
        return f"/v1/realtime?{urlencode({'mode': self.mode} | ({} if self.model is None else {'model': self.model}))}"


class TimedMinicpmoEvent(NamedTuple):
    """
    An event of the server's.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    event: ServerEvent | Unknown
    at_s: float


class MinicpmoClientSession:
    """
    A session.

    Attributes:
        created: how it began.
        closed: how it ended; None as long as it hasn't.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = EventSocket(socket)
        self.session_created: SessionCreated | None = None
        self.session_closed: SessionClosed | None = None

    @property
    def sent_counts(self) -> Counter[str]:
        """How many events were said, by type."""
        return self._socket.sent_counts

    @property
    def received_counts(self) -> Counter[str]:
        """How many events were heard, by type."""
        return self._socket.received_counts

    async def send(self, event_type: str, **fields: Any) -> None:
        """
        Send an event.

        Raises:
            UpstreamError: nobody is there any more.
        """
        await self._socket.send(json.dumps({"type": event_type, **fields}), event_type)

    async def receive(self, timeout_s: float | None = None) -> TimedMinicpmoEvent | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamError: the server refuses something, ends the session, or has hung up.
        """
        frame = await self._socket.receive(timeout_s)
        if frame is None:
            return None
        event = decode_server(frame.text)
        self.received_counts[event.type] += 1
        if isinstance(event, ErrorEvent):
            raise UpstreamError(event.error.message, code=event.error.code)
        if isinstance(event, SessionClosed):
            self.session_closed = event
            raise UpstreamError(f"The server has closed the session: {_close_reason(event)}.", code=event.reason)
        return TimedMinicpmoEvent(event, frame.at_s)

    async def begin(self, options: MinicpmoSessionOptions, on_event: Callable[[TimedMinicpmoEvent], None]) -> None:
        """
        Wait for a place, and begin.

        Args:
            take: takes all that is heard until the session has begun.

        Raises:
            UpstreamError: there is no place, or no session.
        """
        while (heard := await self.receive(OPEN_TIMEOUT_S)) is not None:
            on_event(heard)
            if isinstance(heard.event, SessionQueueDone):
                await self.send("session.init", payload={} if options.instructions is None else {"system_prompt": options.instructions})
            elif isinstance(heard.event, SessionCreated):
                self.session_created = heard.event
                if options.on_session_id is not None:
                    options.on_session_id(heard.event.session_id)
                return
        raise UpstreamError(f"The server has begun no session within {OPEN_TIMEOUT_S} s.")

    async def close(self, on_event: Callable[[TimedMinicpmoEvent], None]) -> None:
        """
        Take leave, and hear what comes until the server has, too.

        Raises:
            UpstreamError: the server doesn't.
        """
        await self.send("session.close", reason="user_stop")
        try:
            while (heard := await self.receive(_CLOSE_TIMEOUT_S)) is not None:
                on_event(heard)
        except UpstreamError:
            if self.session_closed is None:
                raise


def _close_reason(event: SessionClosed) -> str:
    return f"{event.reason} ({event.diagnostic.message.rstrip('.')})" if event.diagnostic else event.reason


@contextlib.asynccontextmanager
async def connect_minicpmo(client: ApiClient, options: MinicpmoSessionOptions) -> AsyncIterator[MinicpmoClientSession]:
    """
    A WebSocket for a session, which has not begun.

    Raises:
        UpstreamError: the server is not there, or declines.
    """
    async with connect_websocket(client, options.path, recording.RECORD_HEADERS if options.on_session_id else {}) as socket:
        yield MinicpmoClientSession(socket)
