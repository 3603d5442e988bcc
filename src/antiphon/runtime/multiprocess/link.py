"""
The link between the processes of one server: typed messages over a socket pair, questions paired with their answers.

The supervisor has one link to each process that serves. Nothing of an answer's text goes over it: a request of a limited key costs a
question or two, a token nothing.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, msgpack

from antiphon.errors import ClientError, ServerError
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import LimitKind, LimitState
from antiphon.runtime.core.metrics import Snapshot
from antiphon.wire.codec.length_prefix import FrameDecoder, add_length_prefix

REPLY_TIMEOUT_S = 5.0
"""How long an answer is waited for; the other end is on the same machine and does nothing that takes long."""


class _Message(Struct, tag=True, array_like=True):
    pass


class ProcessSetup(_Message):
    """
    To a process that has just begun: what it is to be.

    Attributes:
        config: as `antiphon.config.load.pack` makes it.
        listener: the number of the file descriptor to accept on.
        numbers: those of the processes in the store, the addressee's own first.
    """

    config: bytes
    listener: int
    numbers: tuple[int, ...]


class ProcessReady(_Message):
    """From a process: it accepts, and whether it needs no key."""

    is_open: bool


class ProcessFailed(_Message):
    """From a process: it can't serve, and ends."""

    message: str


class OperatorNotice(_Message):
    """From a process: a line for the operator."""

    line: str


class ProcessIdle(_Message):
    """From a process that is to stop: nothing is under way any more, and nothing will be."""


class AllProcessesIdle(_Message):
    """To a process: none of the others has anything under way either."""


class BeginRequest(_Message):
    """A question: may this key make one more request?"""

    key: KeyRecord


class BeginStream(_Message):
    """A question: may this key have one more answer under way? `stream` is its number, unique in the process that asks."""

    key: KeyRecord
    stream: int


class EndStream(_Message):
    """An answer is over, and came to so many tokens."""

    stream: int
    tokens: int


class AddTokens(_Message):
    """Something of this key's that is not over yet came to so many tokens."""

    key: KeyRecord
    tokens: int


class GetLimits(_Message):
    """A question: what is left to this key?"""

    key: KeyRecord


class LimitRefusal(Struct, frozen=True, array_like=True):
    """A mistake of the client, as it travels."""

    message: str
    code: str | None
    status: int
    type: str
    retry_after_s: float | None

    @classmethod
    def of(cls, error: ClientError) -> "LimitRefusal":
        """The mistake, packed."""
        return cls(error.message, error.code, error.status, error.type, error.retry_after_s)

    def to_error(self) -> ClientError:
        """The mistake, unpacked."""
        return ClientError(self.message, code=self.code, status=self.status, type=self.type, retry_after_s=self.retry_after_s)


class LimitVerdict(_Message):
    """The answer to the three questions about keys: what is left, and why not where the answer is no."""

    states: dict[LimitKind, LimitState]
    refusal: LimitRefusal | None = None


class GetSnapshot(_Message):
    """A question to a process: what has it counted?"""


class ProcessSnapshot(_Message):
    """The answer."""

    snapshot: Snapshot


class GetTotals(_Message):
    """A question to the supervisor: what have all processes counted together? `mine` is what the asking one has."""

    mine: Snapshot


class ServerTotals(_Message):
    """
    The answer.

    Attributes:
        pids: of all processes of the server.
        gone_cpu_s: processor time that processes had which have ended.
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
    """A message on its way; `number` pairs an answer with its question, and is 0 where none is wanted."""

    number: int
    is_answer: bool
    body: SupervisorMessage


_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[_Frame] = msgpack.Decoder(_Frame)

SendReply: TypeAlias = Callable[[SupervisorMessage], None]


class SupervisorLink(asyncio.Protocol):
    """
    One end of a link.

    Args:
        receive: called with every message that is no answer, and with what takes the answer to it.
        lost: called once when the other end is gone.
    """

    def __init__(self, on_message: Callable[[SupervisorMessage, SendReply], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._frames = FrameDecoder(_decoder)
        self._numbers = itertools.count(1)
        self._pending_replies: dict[int, asyncio.Future[SupervisorMessage]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The link is there."""
        self._transport = transport  # type: ignore[assignment]  # of a stream socket, as it is of a socket pair

    def data_received(self, data: bytes) -> None:
        """Some messages, or parts of them."""
        for frame in self._frames.feed(data):
            self._dispatch(frame)

    def _dispatch(self, frame: _Frame) -> None:
        if not frame.is_answer:
            self._on_message(frame.body, lambda body: self._write_frame(_Frame(frame.number, True, body)))
        elif (waiting := self._pending_replies.get(frame.number)) is not None and not waiting.done():
            waiting.set_result(frame.body)

    def connection_lost(self, _error: Exception | None) -> None:
        """The other end is gone."""
        self._transport = None
        for waiting in self._pending_replies.values():
            if not waiting.done():
                waiting.set_exception(_link_lost_error())
        self._on_lost()

    def send(self, body: SupervisorMessage) -> None:
        """Send a message that wants no answer; to nobody where the other end is gone."""
        self._write_frame(_Frame(0, False, body))

    async def request(self, body: SupervisorMessage, timeout_s: float = REPLY_TIMEOUT_S) -> SupervisorMessage:
        """
        The answer to a question, waited for no longer than that.

        Raises:
            ServerError: there was none in time, or there will be none.
        """
        if self._transport is None:
            raise _link_lost_error()
        number = next(self._numbers)
        answer: asyncio.Future[SupervisorMessage] = asyncio.get_running_loop().create_future()
        self._pending_replies[number] = answer
        self._write_frame(_Frame(number, False, body))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise _link_lost_error() from None
        finally:
            del self._pending_replies[number]

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._transport is not None:
            self._transport.close()

    def _write_frame(self, frame: _Frame) -> None:
        if self._transport is not None:
            self._transport.write(add_length_prefix(_encoder.encode(frame)))


def _link_lost_error() -> ServerError:
    return ServerError(
        "The server's processes have lost touch. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="server_is_overloaded",
        retry_after_s=1,
    )
