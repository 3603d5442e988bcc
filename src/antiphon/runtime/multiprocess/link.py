"""
The link between the processes of one server: typed messages over a socket pair, with requests paired to their replies.

The supervisor has one link to each process that serves. No output text goes over it: a request of a key with limits
costs a message or two, a token none.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct, msgpack

from antiphon.errors import ServerError, overloaded_error
from antiphon.link import LinkEndpoint
from antiphon.records import KeyRecord
from antiphon.runtime.access.keys import KeyAccess
from antiphon.runtime.access.rate_limits import LimitKind, LimitState
from antiphon.runtime.core.metrics import Snapshot
from antiphon.subprocesses import resolve
from antiphon.weights.watch import WeightsView
from antiphon.wire.http.reload import ReloadReport
from antiphon.wire.internal.failure import Failure

REPLY_TIMEOUT_S = 5.0
"""Time limit for a reply; the other end is on the same machine and does nothing that takes long."""


RELOAD_TIMEOUT_S = 900.0
"""Time limit for a reload, in which models are loaded."""


class _Message(Struct, tag=True, array_like=True):
    pass


class ProcessSetup(_Message):
    """
    To a new process: its settings.

    Attributes:
        config: packed by `antiphon.config.load.pack`.
        listener: the file descriptor to accept connections on.
        numbers: of all processes in the store, the receiver's own first.
        is_final: whether weights are there; if not, `FinalConfiguration` follows.
    """

    config: bytes
    listener: int
    numbers: tuple[int, ...]
    is_final: bool = True


class WeightsReport(_Message):
    """
    To a process that waits for its final configuration: how far the weights are.

    Attributes:
        failure: why they could not be fetched; None while they can.
    """

    weights: tuple[WeightsView, ...]
    failure: str | None


class FinalConfiguration(_Message):
    """
    To a process that waits for it: all weights are there.

    Attributes:
        config: as in `ProcessSetup`.
    """

    config: bytes


class ProcessNumbers(_Message):
    """
    To a process: another one was replaced.

    Attributes:
        numbers: as in `ProcessSetup`.
    """

    numbers: tuple[int, ...]


class ProcessReady(_Message):
    """From a process: it accepts connections, from those who have `access`."""

    access: KeyAccess


class ProcessFailed(_Message):
    """From a process: it can't serve and ends."""

    message: str


class OperatorNotice(_Message):
    """From a process: a line for the operator."""

    line: str


class ProcessAlive(_Message):
    """The sender is alive. From a process, the first time as soon as it has its settings."""


class ProcessIdle(_Message):
    """From a process that stops: it has nothing under way, and takes nothing more."""


class AllProcessesIdle(_Message):
    """To a process: the others have nothing under way either."""


class StopAtOnce(_Message):
    """
    To a process that was told to stop: don't wait for what is under way; when sent again, don't tell its clients either.
    """


class StopResponse(_Message):
    """
    From a process, and to all others: a background response was ended or deleted in the store, so stop making it.
    """

    response_id: str


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
    """From a process: a stream has ended, which used so many tokens. It has no reply."""

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
    """Reply to `BeginRequest`, `BeginStream` and `GetLimits`: what is left, and the error if a limit is reached."""

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


Subject = Literal["facts", "close_session"]
"""What the processes ask one another, for operators: what each knows, and to close a session of a given id."""


class AskOthers(_Message):
    """
    Request to the supervisor: ask all other processes. Answered by `OtherAnswers`.

    Attributes:
        question: as the one who answers reads it.
    """

    subject: Subject
    question: bytes


class AskProcess(_Message):
    """Request to a process: the question of another one (`AskOthers`). Answered by `ProcessAnswer`."""

    subject: Subject
    question: bytes


class ProcessAnswer(_Message):
    """Reply to `AskProcess`."""

    answer: bytes


class OtherAnswers(_Message):
    """Reply to `AskOthers`: of those that answered in time."""

    answers: list[bytes]


class RequestReload(_Message):
    """Request to the supervisor: have all processes read the configuration again. Answered by `ReloadResult`."""


class NewConfiguration(_Message):
    """
    Request to a process: a new configuration. Answered by `ReloadResult`.

    Attributes:
        config: as in `ProcessSetup`.
    """

    config: bytes


class ReloadResult(_Message):
    """Reply to `RequestReload` and `NewConfiguration`: what changed, or why nothing did."""

    report: ReloadReport | None
    failure: Failure | None = None


SupervisorMessage: TypeAlias = (
    ProcessSetup
    | WeightsReport
    | FinalConfiguration
    | ProcessNumbers
    | ProcessReady
    | ProcessFailed
    | OperatorNotice
    | ProcessAlive
    | ProcessIdle
    | AllProcessesIdle
    | StopAtOnce
    | StopResponse
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
    | AskOthers
    | AskProcess
    | ProcessAnswer
    | OtherAnswers
    | RequestReload
    | NewConfiguration
    | ReloadResult
)


class _Envelope(Struct, frozen=True, array_like=True):
    """A message as it is sent; `number` pairs a reply with its request, and is 0 if none is expected."""

    number: int
    is_reply: bool
    body: SupervisorMessage


_decoder: msgpack.Decoder[_Envelope] = msgpack.Decoder(_Envelope)

SendReply: TypeAlias = Callable[[SupervisorMessage], None]


class SupervisorLink:
    """
    One end of a link.

    Args:
        on_message: called with each message that is no reply, and with a function that sends the reply to it.
        on_lost: called once when the link is over.

    Attributes:
        endpoint: this end of the link, for its transport.
    """

    def __init__(self, on_message: Callable[[SupervisorMessage, SendReply], None], on_lost: Callable[[], None]) -> None:
        self.endpoint: LinkEndpoint[_Envelope, _Envelope] = LinkEndpoint(
            _decoder, self._dispatch, self._on_endpoint_lost, heartbeat=_Envelope(0, False, ProcessAlive())
        )
        self._on_message = on_message
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._pending_replies: dict[int, asyncio.Future[SupervisorMessage]] = {}

    def send(self, body: SupervisorMessage) -> None:
        """Send a message that expects no reply; dropped when the link is over."""
        self.endpoint.send(_Envelope(0, False, body))

    async def request(self, body: SupervisorMessage, timeout_s: float = REPLY_TIMEOUT_S) -> SupervisorMessage:
        """
        Send a request and wait for its reply.

        Raises:
            ServerError: none came in time, or the link is over.
        """
        if self.endpoint.is_over:
            raise _link_lost_error()
        number = next(self._numbers)
        reply: asyncio.Future[SupervisorMessage] = asyncio.get_running_loop().create_future()
        self._pending_replies[number] = reply
        self.endpoint.send(_Envelope(number, False, body))
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise _link_lost_error() from None
        finally:
            del self._pending_replies[number]

    def close(self) -> None:
        """Close the link; idempotent."""
        self.endpoint.abort("closed")

    def _dispatch(self, message: _Envelope) -> None:
        if not message.is_reply:
            self._on_message(message.body, lambda body: self.endpoint.send(_Envelope(message.number, True, body)))
        # A reply that comes after its timeout has no waiter any more, and is dropped.
        elif (reply := self._pending_replies.get(message.number)) is not None:
            resolve(reply, message.body)

    def _on_endpoint_lost(self, _reason: str) -> None:
        for reply in self._pending_replies.values():
            resolve(reply, _link_lost_error())
        self._on_lost()


def _link_lost_error() -> ServerError:
    return overloaded_error("The server's processes lost their connection. Please try again.")
