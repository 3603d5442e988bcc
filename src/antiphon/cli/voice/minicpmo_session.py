"""The line to a MiniCPM-o server: how a session is waited for and begun, and what is said and heard in it."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import aiohttp
from msgspec import Struct

from antiphon.cli.common.client import Client
from antiphon.cli.voice import recording as recorded
from antiphon.cli.voice.socket import OPENING_S, Frames, opened
from antiphon.errors import UpstreamTrouble
from antiphon.wire.codec.types import Unknown
from antiphon.wire.minicpmo.server_events import ErrorEvent, ServerEvent, SessionClosed, SessionCreated, SessionQueueDone, decode_server

Mode = Literal["audio", "video", "chat"]

_FAREWELL_S = 5.0


class Asked(Struct, frozen=True, kw_only=True):
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
    recording: Callable[[str], object] | None = None

    @property
    def path(self) -> str:
        """Where such a session is."""
        return f"/v1/realtime?{urlencode({'mode': self.mode} | ({} if self.model is None else {'model': self.model}))}"


class Heard(NamedTuple):
    """
    An event of the server's.

    Attributes:
        at_s: when it came, on the clock of the loop.
    """

    event: ServerEvent | Unknown
    at_s: float


class Line:
    """
    A session.

    Attributes:
        created: how it began.
        closed: how it ended; None as long as it hasn't.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._frames = Frames(socket)
        self.created: SessionCreated | None = None
        self.closed: SessionClosed | None = None

    @property
    def sent(self) -> Counter[str]:
        """How many events were said, by type."""
        return self._frames.sent

    @property
    def received(self) -> Counter[str]:
        """How many events were heard, by type."""
        return self._frames.received

    async def say(self, kind: str, **fields: Any) -> None:
        """
        Send an event.

        Raises:
            UpstreamTrouble: nobody is there any more.
        """
        await self._frames.write(json.dumps({"type": kind, **fields}), kind)

    async def hear(self, within_s: float | None = None) -> Heard | None:
        """
        The next event; None when none came in time.

        Raises:
            UpstreamTrouble: the server refuses something, ends the session, or has hung up.
        """
        frame = await self._frames.read(within_s)
        if frame is None:
            return None
        event = decode_server(frame.text)
        self.received[event.type] += 1
        if isinstance(event, ErrorEvent):
            raise UpstreamTrouble(event.error.message, code=event.error.code)
        if isinstance(event, SessionClosed):
            self.closed = event
            raise UpstreamTrouble(f"The server has closed the session: {_why(event)}.", code=event.reason)
        return Heard(event, frame.at_s)

    async def begin(self, asked: Asked, take: Callable[[Heard], None]) -> None:
        """
        Wait for a place, and begin.

        Args:
            take: takes all that is heard until the session has begun.

        Raises:
            UpstreamTrouble: there is no place, or no session.
        """
        while (heard := await self.hear(OPENING_S)) is not None:
            take(heard)
            if isinstance(heard.event, SessionQueueDone):
                await self.say("session.init", payload={} if asked.instructions is None else {"system_prompt": asked.instructions})
            elif isinstance(heard.event, SessionCreated):
                self.created = heard.event
                if asked.recording is not None:
                    asked.recording(heard.event.session_id)
                return
        raise UpstreamTrouble(f"The server has begun no session within {OPENING_S} s.")

    async def end(self, take: Callable[[Heard], None]) -> None:
        """
        Take leave, and hear what comes until the server has, too.

        Raises:
            UpstreamTrouble: the server doesn't.
        """
        await self.say("session.close", reason="user_stop")
        try:
            while (heard := await self.hear(_FAREWELL_S)) is not None:
                take(heard)
        except UpstreamTrouble:
            if self.closed is None:
                raise


def _why(event: SessionClosed) -> str:
    return f"{event.reason} ({event.diagnostic.message.rstrip('.')})" if event.diagnostic else event.reason


@contextlib.asynccontextmanager
async def connected(client: Client, asked: Asked) -> AsyncIterator[Line]:
    """
    A WebSocket for a session, which has not begun.

    Raises:
        UpstreamTrouble: the server is not there, or declines.
    """
    async with opened(client, asked.path, recorded.HEADERS if asked.recording else {}) as socket:
        yield Line(socket)
