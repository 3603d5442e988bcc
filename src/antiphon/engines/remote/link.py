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

from antiphon.wire.codec.length_prefix import Flaw, Frames, In
from antiphon.wire.internal.worker_link import Beat, FromWorker, ToWorker, framed

BEAT_S = 2.0
SILENT_BEATS = 5
"""An end that has been silent for so many beats of this one is gone."""

PIECE_BYTES = 256 << 10
"""The most that is written at once: a frame may have megabytes, and what carries it has limits of its own."""

WAITING_LIMIT_BYTES = 64 << 20
"""The most that waits for the other end to read; then it is taken to be gone."""


class Pipe(Protocol):
    """What carries the bytes."""

    def write(self, piece: bytes) -> None:
        """Send these bytes; may call `End.pause` before it returns."""

    def close(self, reason: str) -> None:
        """Hang up, where anyone listens saying why; what was written may be lost."""


class End(Generic[In]):
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
        take: Callable[[In], None],
        lost: Callable[[str], None],
        held: Callable[[bool], None] = lambda _is_held: None,
    ) -> None:
        self.is_over = False
        self._frames = Frames(decoder)
        self._take = take
        self._lost = lost
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._pipe: Pipe | None = None
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_held = False
        self._silent_beats = 0
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # For its owner

    @property
    def silent_s(self) -> float:
        """For how long nothing has come from the other end."""
        return self._loop.time() - self._heard_at

    @property
    def waiting_bytes(self) -> int:
        """What waits for the other end to read on."""
        return self._waiting_bytes

    def send(self, frame: ToWorker | FromWorker) -> None:
        """
        Send a frame; to nobody where there is no other end any more.

        Raises:
            Unsendable: it can't be.
        """
        if self.is_over:
            return
        packed = framed(frame)
        if self._pipe is not None and not self._is_held and not self._waiting and len(packed) <= PIECE_BYTES:
            self._pipe.write(packed)
            return
        self._waiting.append(memoryview(packed))
        self._waiting_bytes += len(packed)
        if self._waiting_bytes > WAITING_LIMIT_BYTES:
            self.drop("too much waits to be read")
        self._flush()

    def begin_beating(self) -> None:
        """From here on the other end is expected to be heard."""
        if self._timer is None and not self.is_over:
            self._timer = self._loop.call_later(BEAT_S, self._on_beat)

    def beat(self) -> None:
        """Say that this end is there, and see whether the other is."""
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS:
            self.drop(f"nothing was heard for {SILENT_BEATS * BEAT_S:g} seconds")
        else:
            self.send(Beat())

    def drop(self, reason: str) -> None:
        """Have nothing more to do with the other end; idempotent."""
        pipe = self._pipe
        self.gone(reason)
        if pipe is not None:
            pipe.close(reason)

    # For what carries it

    def connect(self, pipe: Pipe) -> None:
        """The link is there."""
        if self.is_over:
            pipe.close("nobody wants it any more")
            return
        self._pipe = pipe
        self._flush()

    def receive(self, received: bytes) -> None:
        """The other end has sent something."""
        self._silent_beats = 0
        self._heard_at = self._loop.time()
        try:
            for frame in self._frames.take(received):
                self._take(frame)
                if self.is_over:
                    return
        except Flaw as flaw:
            self.drop(str(flaw))

    def pause(self) -> None:
        """The other end reads slower than this one writes."""
        if not self._is_held:
            self._is_held = True
            self._held(True)

    def resume(self) -> None:
        """The other end has caught up."""
        self._is_held = False
        self._flush()
        if not self._is_held:
            self._held(False)

    def gone(self, reason: str = "it hung up") -> None:
        """There is no other end any more."""
        if self.is_over:
            return
        self.is_over = True
        self._pipe = None
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(self._lost, reason)

    def _on_beat(self) -> None:
        self.beat()
        if not self.is_over:
            self._timer = self._loop.call_later(BEAT_S, self._on_beat)

    def _flush(self) -> None:
        while self._waiting and self._pipe is not None and not self._is_held:
            head = self._waiting[0]
            piece = head[:PIECE_BYTES].tobytes()
            if len(piece) == len(head):
                self._waiting.popleft()
            else:
                self._waiting[0] = head[PIECE_BYTES:]
            self._waiting_bytes -= len(piece)
            self._pipe.write(piece)


class StreamPipe(asyncio.Protocol):
    """A stream socket, such as one of a pair, as what carries a link."""

    def __init__(self, end: "End[In]") -> None:
        self._end = end
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that is what a socket has
        """The socket is there."""
        self._transport = transport
        self._end.connect(self)

    def data_received(self, received: bytes) -> None:
        """Some frames, or parts of them."""
        self._end.receive(received)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._end.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        self._end.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        """The other end is gone."""
        self._end.gone()

    def write(self, piece: bytes) -> None:
        """Send these bytes."""
        assert self._transport is not None
        self._transport.write(piece)

    def close(self, _reason: str) -> None:
        """Hang up; there is nobody to tell why."""
        if self._transport is not None:
            self._transport.close()
