"""
A response that is sent in chunks while it is made. It waits where the client does not read.

What fails before the first chunk is a plain HTTP error. After that, a response of bytes is cut off, because a regular
end would make it look complete; an event stream sends an `error` event.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import msgspec
from starlette.types import Scope, Send

from antiphon.errors import ApiError
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.server.http.operation import INVALID_REQUEST, MODEL_NOT_FOUND, UNAVAILABLE
from antiphon.server.transport import connection
from antiphon.wire.codec.types import Tagged, encode

EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"

AUDIO_ERRORS = MODEL_NOT_FOUND | {
    400: INVALID_REQUEST,
    501: "This server has no speech recognition or no text to speech; `message` says why.",
    502: "The server that transcribes or speaks failed.",
    503: UNAVAILABLE,
    504: "The server that transcribes or speaks did not answer in time.",
}


class CancellableRequest:
    """
    Work for a client that may leave, in a server that may stop.

    Attributes:
        error: why the server ended it; None where it did not.
    """

    def __init__(self) -> None:
        self.error: ApiError | None = None
        self._task: asyncio.Task[None] | None = None
        self._client_gone = asyncio.Event()

    async def run(self, scope: Scope, live_sessions: LiveSessions, work: Callable[[], Awaitable[None]]) -> None:
        """
        Do the work until it is done, the client has gone, or the server stops.

        Raises:
            ApiError: raised by the work, or because the server stops.
        """

        async def run_work() -> None:
            await work()

        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(run_work())
            client = connection.from_scope(scope)
            with client.notify(self), live_sessions.track(self):
                # By `wait`, as the cancellation of the work must not look like one of this task.
                await asyncio.wait([self._task])
                # With a regular end, half a response would look complete. The loss of the connection is reported within `notify`.
                if self.error is not None and client.cycle.response_started:
                    client.drop("aborted")
                    await self._client_gone.wait()
        if self.error is not None and not self._client_gone.is_set():
            raise self.error

    def shut_down(self, error: ApiError) -> None:
        self.error = error
        self._cancel()

    def hang_up(self) -> None:
        self._client_gone.set()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """Nothing to do: ASGI's `send` waits until the client reads."""

    def resume(self) -> None:
        """Nothing to do, as in `pause`."""


class HttpResponseWriter:
    """
    Writes a chunked response to one client.

    Args:
        media_type: of the response; one of `EVENT_STREAM_TYPE` can carry an error.
    """

    def __init__(self, scope: Scope, send: Send, media_type: str) -> None:
        self._connection = connection.from_scope(scope)
        self._send = send
        self._media_type = media_type
        self._has_begun = False

    async def send_event(self, event: Tagged) -> None:
        await self.send_chunk(_encode_sse(event.type, encode(event)))

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a chunk; the head goes before the first."""
        # Encoders have nothing to give at first, and after the head an error could no longer have its status.
        if not chunk:
            return
        await self._send_head()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """End the body; a response without a chunk gets its head here."""
        await self._send_head()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """
        Report an error.

        Raises:
            ApiError: that error, where nothing was sent yet.
        """
        if not self._has_begun:
            raise error
        if self._media_type == EVENT_STREAM_TYPE:
            await self.send_chunk(_encode_sse("error", msgspec.json.encode(error.body())))
            await self.end()
            return
        self._connection.drop("aborted")
        await asyncio.Event().wait()  # until the lost connection cancels this task

    async def _send_head(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        # Without the last one nginx would buffer the stream.
        headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _encode_sse(event_type: str, json: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event_type.encode(), json)


async def write_all(writer: HttpResponseWriter, items: AsyncIterator[bytes] | AsyncIterator[Tagged]) -> None:
    """
    Send a whole response: bytes as they are, events as server-sent events.

    Raises:
        ApiError: it failed before anything was sent.
    """
    try:
        async with aclosing(items) as stream:  # type: ignore[type-var]  # a generator's
            async for item in stream:
                await (writer.send_chunk(item) if isinstance(item, bytes) else writer.send_event(item))
    except ApiError as error:
        await writer.fail(error)
    else:
        await writer.end()
