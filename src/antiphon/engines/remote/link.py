"""
One end of the link between a server and a worker, whatever carries it: frames in and out, and whether the other end is there.

What is sent leaves at once while the other end takes it; else it waits here, and no more of it than there is a bound for. Each end beats,
and one that hears nothing from the other for a while takes it to be gone, as no connection tells of a cable that was cut.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol

from msgspec import msgpack

from antiphon.wire.codec.length_prefix import BadFrame, FrameDecoder, In
from antiphon.wire.internal.worker_link import FromWorker, Heartbeat, ToWorker, pack_frame

HEARTBEAT_S = 2.0
MAX_SILENT_BEATS = 5
"""An end that has been silent for so many beats of this one is gone."""

MAX_WRITE_BYTES = 256 << 10
"""The most that is written at once: a frame may have megabytes, and what carries it has limits of its own."""

BUFFER_LIMIT_BYTES = 64 << 20
"""The most that waits for the other end to read; then it is taken to be gone."""


class LinkTransport(Protocol):
    """What carries the bytes."""

    def write(self, chunk: bytes) -> None:
        """Send these bytes; may call `LinkEndpoint.pause` before it returns."""

    def close(self, reason: str) -> None:
        """Hang up, where anyone listens saying why; what was written may be lost."""


class LinkEndpoint(Generic[In]):
    """
    One end.

    Args:
        decoder: of the frames that come.
        take: called with each, from the connection's own callback.
        lost: called once, with the reason, when there is no other end any more; never from within a call of this.
        held: called when the other end reads slower than this one writes, and when it has caught up.

    Attributes:
        is_over: whether there is no other end any more.
    """

    def __init__(
        self,
        decoder: msgpack.Decoder[In],
        on_frame: Callable[[In], None],
        on_lost: Callable[[str], None],
        on_pause_change: Callable[[bool], None] = lambda _is_held: None,
    ) -> None:
        self.is_over = False
        self._frames = FrameDecoder(decoder)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_pause_change = on_pause_change
        self._loop = asyncio.get_running_loop()
        self._transport: LinkTransport | None = None
        self._buffer: deque[memoryview] = deque()
        self._buffer_bytes = 0
        self._is_paused = False
        self._silent_beats = 0
        self._last_received_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # For its owner

    @property
    def silent_s(self) -> float:
        """For how long nothing has come from the other end."""
        return self._loop.time() - self._last_received_at

    @property
    def buffer_bytes(self) -> int:
        """What waits for the other end to read on."""
        return self._buffer_bytes

    def send(self, frame: ToWorker | FromWorker) -> None:
        """
        Send a frame; to nobody where there is no other end any more.

        Raises:
            Unsendable: it can't be.
        """
        if self.is_over:
            return
        packed = pack_frame(frame)
        if self._transport is not None and not self._is_paused and not self._buffer and len(packed) <= MAX_WRITE_BYTES:
            self._transport.write(packed)
            return
        self._buffer.append(memoryview(packed))
        self._buffer_bytes += len(packed)
        if self._buffer_bytes > BUFFER_LIMIT_BYTES:
            self.abort("too much waits to be read")
        self._flush()

    def start_heartbeat(self) -> None:
        """From here on the other end is expected to be heard."""
        if self._timer is None and not self.is_over:
            self._timer = self._loop.call_later(HEARTBEAT_S, self._on_heartbeat_timer)

    def heartbeat(self) -> None:
        """Say that this end is there, and see whether the other is."""
        self._silent_beats += 1
        if self._silent_beats > MAX_SILENT_BEATS:
            self.abort(f"nothing was heard for {MAX_SILENT_BEATS * HEARTBEAT_S:g} seconds")
        else:
            self.send(Heartbeat())

    def abort(self, reason: str) -> None:
        """Have nothing more to do with the other end; idempotent."""
        pipe = self._transport
        self.connection_lost(reason)
        if pipe is not None:
            pipe.close(reason)

    # For what carries it

    def connect(self, transport: LinkTransport) -> None:
        """The link is there."""
        if self.is_over:
            transport.close("nobody wants it any more")
            return
        self._transport = transport
        self._flush()

    def receive(self, chunk: bytes) -> None:
        """The other end has sent something."""
        self._silent_beats = 0
        self._last_received_at = self._loop.time()
        try:
            for frame in self._frames.feed(chunk):
                self._on_frame(frame)
                if self.is_over:
                    return
        except BadFrame as flaw:
            self.abort(str(flaw))

    def pause(self) -> None:
        """The other end reads slower than this one writes."""
        if not self._is_paused:
            self._is_paused = True
            self._on_pause_change(True)

    def resume(self) -> None:
        """The other end has caught up."""
        self._is_paused = False
        self._flush()
        if not self._is_paused:
            self._on_pause_change(False)

    def connection_lost(self, reason: str = "it hung up") -> None:
        """There is no other end any more."""
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
            piece = head[:MAX_WRITE_BYTES].tobytes()
            if len(piece) == len(head):
                self._buffer.popleft()
            else:
                self._buffer[0] = head[MAX_WRITE_BYTES:]
            self._buffer_bytes -= len(piece)
            self._transport.write(piece)


class StreamLinkTransport(asyncio.Protocol):
    """A stream socket, such as one of a pair, as what carries a link."""

    def __init__(self, endpoint: "LinkEndpoint[In]") -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that is what a socket has
        """The socket is there."""
        self._transport = transport
        self._endpoint.connect(self)

    def data_received(self, data: bytes) -> None:
        """Some frames, or parts of them."""
        self._endpoint.receive(data)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._endpoint.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        self._endpoint.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        """The other end is gone."""
        self._endpoint.connection_lost()

    def write(self, chunk: bytes) -> None:
        """Send these bytes."""
        assert self._transport is not None
        self._transport.write(chunk)

    def close(self, _reason: str) -> None:
        """Hang up; there is nobody to tell why."""
        if self._transport is not None:
            self._transport.close()
