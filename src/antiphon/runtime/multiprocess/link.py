"""
The link between the processes of one server: typed messages over a socket pair, with requests paired to their replies.

The supervisor has one link to each process that serves. No output text goes over it: a request of a key with limits
costs a message or two, a token none.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, msgpack

from antiphon.errors import ServerError, overloaded_error
from antiphon.framing import FrameDecoder, pack_frame
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import LimitKind, LimitState
from antiphon.runtime.core.metrics import Snapshot
from antiphon.wire.internal.failure import Failure

REPLY_TIMEOUT_S = 5.0
"""Time limit for a reply; the other end is on the same machine and does nothing that takes long."""


class _Message(Struct, tag=True, array_like=True):
    pass


class ProcessSetup(_Message):
    """
    To a new process: its settings.

    Attributes:
        config: packed by `antiphon.config.load.pack`.
        listener: the file descriptor to accept connections on.
        numbers: of all processes in the store, the receiver's own first.
    """

    config: bytes
    listener: int
    numbers: tuple[int, ...]


class ProcessReady(_Message):
    """From a process: it accepts connections; `is_open` if requests need no key."""

    is_open: bool


class ProcessFailed(_Message):
    """From a process: it can't serve and ends."""

    message: str


class OperatorNotice(_Message):
    """From a process: a line for the operator."""

    line: str


class ProcessIdle(_Message):
    """From a process that stops: it has nothing under way, and takes nothing more."""


class AllProcessesIdle(_Message):
    """To a process: the others have nothing under way either."""


class BeginRequest(_Message):
    """Request: may this key make one more request? Answered by `LimitVerdict`."""

    key: KeyRecord


class BeginStream(_Message):
    """
    Request: may this key have one more stream? `stream` is a number unique in the sending process. Answered by
    `LimitVerdict`.
    """

    key: KeyRecord
    stream: int


class EndStream(_Message):
    """A stream ended after so many tokens."""

    stream: int
    tokens: int


class AddTokens(_Message):
    """Count tokens of something that is still under way."""

    key: KeyRecord
    tokens: int


class GetLimits(_Message):
    """Request: what is left of this key's limits? Answered by `LimitVerdict`."""

    key: KeyRecord


class LimitVerdict(_Message):
    """Reply to the three requests about keys: what is left, and the error if the limit is reached."""

    states: dict[LimitKind, LimitState]
    refusal: Failure | None = None


class GetSnapshot(_Message):
    """Request to a process: its metrics. Answered by `ProcessSnapshot`."""


class ProcessSnapshot(_Message):
    """Reply to `GetSnapshot`."""

    snapshot: Snapshot


class GetTotals(_Message):
    """Request to the supervisor: the metrics of all processes; `mine` are the sender's. Answered by `ServerTotals`."""

    mine: Snapshot


class ServerTotals(_Message):
    """
    Reply to `GetTotals`.

    Attributes:
        pids: of all processes of the server.
        gone_cpu_s: processor time of the processes that have ended.
    """

    snapshot: Snapshot
    pids: tuple[int, ...]
    gone_cpu_s: float


SupervisorMessage: TypeAlias = (
    ProcessSetup
    | ProcessReady
    | ProcessFailed
    | OperatorNotice
    | ProcessIdle
    | AllProcessesIdle
    | BeginRequest
    | BeginStream
    | EndStream
    | AddTokens
    | GetLimits
    | LimitVerdict
    | GetSnapshot
    | ProcessSnapshot
    | GetTotals
    | ServerTotals
)


class _Frame(Struct, frozen=True, array_like=True):
    """A message on its way; `number` pairs a reply with its request, and is 0 if none is expected."""

    number: int
    is_answer: bool
    body: SupervisorMessage


_decoder: msgpack.Decoder[_Frame] = msgpack.Decoder(_Frame)

SendReply: TypeAlias = Callable[[SupervisorMessage], None]


class SupervisorLink(asyncio.Protocol):
    """
    One end of a link.

    Args:
        on_message: called with each message that is no reply, and with a function that sends the reply to it.
        on_lost: called once when the other end is gone.
    """

    def __init__(self, on_message: Callable[[SupervisorMessage, SendReply], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._frames = FrameDecoder(_decoder)
        self._numbers = itertools.count(1)
        self._pending_replies: dict[int, asyncio.Future[SupervisorMessage]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a stream socket, as it is of a socket pair

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._dispatch(frame)

    def _dispatch(self, frame: _Frame) -> None:
        if not frame.is_answer:
            self._on_message(frame.body, lambda body: self._write_frame(_Frame(frame.number, True, body)))
        elif (reply := self._pending_replies.get(frame.number)) is not None and not reply.done():
            reply.set_result(frame.body)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        for reply in self._pending_replies.values():
            if not reply.done():
                reply.set_exception(_link_lost_error())
        self._on_lost()

    def send(self, body: SupervisorMessage) -> None:
        """Send a message that expects no reply; dropped if the other end is gone."""
        self._write_frame(_Frame(0, False, body))

    async def request(self, body: SupervisorMessage, timeout_s: float = REPLY_TIMEOUT_S) -> SupervisorMessage:
        """
        Send a request and wait for its reply.

        Raises:
            ServerError: none came in time, or the other end is gone.
        """
        if self._transport is None:
            raise _link_lost_error()
        number = next(self._numbers)
        reply: asyncio.Future[SupervisorMessage] = asyncio.get_running_loop().create_future()
        self._pending_replies[number] = reply
        self._write_frame(_Frame(number, False, body))
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise _link_lost_error() from None
        finally:
            del self._pending_replies[number]

    def close(self) -> None:
        """Close the link; idempotent."""
        if self._transport is not None:
            self._transport.close()

    def _write_frame(self, frame: _Frame) -> None:
        if self._transport is not None:
            self._transport.write(pack_frame(frame))


def _link_lost_error() -> ServerError:
    return overloaded_error("The server's processes lost their connection. Please try again.")
