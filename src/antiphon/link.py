"""
One end of a link between two processes of this server, over any transport: messages in and out, and heartbeats.

A message leaves at once while the other end reads; else it waits here, up to `BUFFER_LIMIT_BYTES`. An end that sends
heartbeats aborts the link after some seconds without a message from the other: TCP doesn't report a cable that was cut.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, msgpack

from antiphon.framing import BadFrame, FrameDecoder, In, pack_frame

Out = TypeVar("Out", bound=Struct)

HEARTBEAT_S = 2.0
MAX_SILENT_BEATS = 4
"""The other end is lost after more heartbeat intervals without a message: within 10 s of the last one."""

FIRST_MESSAGE_S = 20.0
"""How long a new process may take until its first message, as it has to load its modules."""

LOAD_SILENCE_S = 600.0
"""How long a process that loads a model may be silent: native code may hold the interpreter's lock all the while, and
takes a second for each gigabyte, or minutes from a slow disk."""

MAX_WRITE_BYTES = 256 << 10
"""The most that is written at once: a message may have megabytes, and a transport has limits of its own."""

BUFFER_LIMIT_BYTES = 64 << 20
"""With more waiting for the other end to read, the link is aborted."""


class LinkTransport(Protocol):
    """Carries the bytes of a link."""

    def write(self, chunk: bytes) -> None:
        """Send these bytes; may call `LinkEndpoint.pause` before it returns."""

    def close(self, reason: str) -> None:
        """Close the connection, with the reason if the transport has a way to send it; written bytes may be lost."""


class LinkEndpoint(Generic[In, Out]):
    """
    One end of a link.

    Args:
        decoder: of the messages that come.
        on_message: called with each message, from the connection's own callback.
        on_lost: called once with the reason when the link is over; never from within a method of this object.
        on_pause_change: called with True when the other end reads too slowly, and with False when it has caught up.
        heartbeat: the message that says nothing else; needed for `start_heartbeat`.

    Attributes:
        is_over: whether the link is over.
        is_silent: whether it is over because nothing came from the other end, which may still run but hangs.
    """

    def __init__(
        self,
        decoder: msgpack.Decoder[In],
        on_message: Callable[[In], None],
        on_lost: Callable[[str], None],
        on_pause_change: Callable[[bool], None] = lambda _is_paused: None,
        heartbeat: Out | None = None,
    ) -> None:
        self.is_over = False
        self.is_silent = False
        self._frames = FrameDecoder(decoder)
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_pause_change = on_pause_change
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._transport: LinkTransport | None = None
        self._buffer: deque[memoryview] = deque()
        self._buffer_bytes = 0
        self._is_paused = False
        self._silent_beats = 0
        self._max_silent_beats = MAX_SILENT_BEATS
        self._expects_others = True
        self._last_received_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # For its owner

    @property
    def silent_s(self) -> float:
        """Seconds since the last bytes from the other end."""
        return self._loop.time() - self._last_received_at

    @property
    def buffer_bytes(self) -> int:
        """Bytes that wait for the other end to read."""
        return self._buffer_bytes

    def send(self, message: Out) -> None:
        """
        Send a message; dropped when the link is over.

        Raises:
            UnsendableFrame: no frame can carry it.
        """
        if self.is_over:
            return
        frame = pack_frame(message)
        # The usual message leaves at once, and without a copy.
        if self._transport is not None and not self._is_paused and not self._buffer and len(frame) <= MAX_WRITE_BYTES:
            self._transport.write(frame)
            return
        self._buffer.append(memoryview(frame))
        self._buffer_bytes += len(frame)
        if self._buffer_bytes > BUFFER_LIMIT_BYTES:
            self.abort("too much waits to be read")
        self._flush()

    def start_heartbeat(self, *, expects_others: bool = True, max_silent_beats: int = MAX_SILENT_BEATS) -> None:
        """
        Send heartbeats.

        Args:
            expects_others: whether to abort the link without those of the other end.
            max_silent_beats: after how many intervals without them.
        """
        self._expects_others = expects_others
        self._max_silent_beats = max_silent_beats
        if self._timer is None and not self.is_over:
            self._timer = self._loop.call_later(HEARTBEAT_S, self._on_heartbeat_timer)

    def heartbeat(self) -> None:
        """Send a heartbeat, and abort the link if the other end has been silent for too long."""
        self._silent_beats += 1
        if self._expects_others and self._silent_beats > self._max_silent_beats:
            self.is_silent = True
            self.abort(f"nothing came for {self._max_silent_beats * HEARTBEAT_S:g} seconds")
        elif self._heartbeat is not None:
            self.send(self._heartbeat)

    def abort(self, reason: str) -> None:
        """End the link; idempotent."""
        transport = self._transport
        self.connection_lost(reason)
        if transport is not None:
            transport.close(reason)

    # For the transport

    def connect(self, transport: LinkTransport) -> None:
        """The transport is connected."""
        if self.is_over:
            transport.close("the link is over")
            return
        self._transport = transport
        self._flush()

    def receive(self, chunk: bytes) -> None:
        """Bytes came from the other end."""
        self._silent_beats = 0
        self._last_received_at = self._loop.time()
        try:
            for message in self._frames.feed(chunk):
                self._on_message(message)
                # The message may have ended the link, and then nothing that follows counts.
                if self.is_over:
                    return
        except BadFrame as error:
            self.abort(str(error))

    def pause(self) -> None:
        """The transport's buffer is full."""
        if not self._is_paused:
            self._is_paused = True
            self._on_pause_change(True)

    def resume(self) -> None:
        """The transport's buffer has drained."""
        self._is_paused = False
        self._flush()
        if not self._is_paused:
            self._on_pause_change(False)

    def connection_lost(self, reason: str = "it hung up") -> None:
        """The connection is lost."""
        if self.is_over:
            return
        self.is_over = True
        self._transport = None
        self._buffer.clear()
        self._buffer_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(self._on_lost, reason)

    def _on_heartbeat_timer(self) -> None:
        self.heartbeat()
        if not self.is_over:
            self._timer = self._loop.call_later(HEARTBEAT_S, self._on_heartbeat_timer)

    def _flush(self) -> None:
        while self._buffer and self._transport is not None and not self._is_paused:
            head = self._buffer[0]
            chunk = head[:MAX_WRITE_BYTES].tobytes()
            if len(chunk) == len(head):
                self._buffer.popleft()
            else:
                self._buffer[0] = head[MAX_WRITE_BYTES:]
            self._buffer_bytes -= len(chunk)
            self._transport.write(chunk)


class StreamLinkTransport(asyncio.Protocol):
    """The transport of a link over a stream socket, such as one of a socket pair."""

    def __init__(self, endpoint: LinkEndpoint[In, Out]) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a socket's transport is one
        self._transport = transport
        self._endpoint.connect(self)

    def data_received(self, data: bytes) -> None:
        self._endpoint.receive(data)

    def pause_writing(self) -> None:
        self._endpoint.pause()

    def resume_writing(self) -> None:
        self._endpoint.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        self._endpoint.connection_lost()

    def write(self, chunk: bytes) -> None:
        assert self._transport is not None
        self._transport.write(chunk)

    def close(self, _reason: str) -> None:
        if self._transport is not None:
            self._transport.close()
