"""
The contract of a protocol machine: past-tense events in, imperative effects out.

A session decides and performs nothing: it is synchronous, touches no socket, reads no clock and draws no random
numbers. Times come with the events, and ids from its `NewId`, so that a test can replay any dialogue to the byte.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.fast_path import TextSeries
from antiphon.errors import ApiError
from antiphon.records import ConversationTurn, ResponseRecord
from antiphon.tool_api import ServerToolCall, ToolEvent
from antiphon.wire.responses.tools import Tool

ClientEventT = TypeVar("ClientEventT")
ServerEventT = TypeVar("ServerEventT")

NewId = Callable[[str], str]
"""A fresh id for a prefix: `new_id("msg")` is something like `msg_68af…`."""


class FromClient(Struct, Generic[ClientEventT], frozen=True):
    """A message came from the client; `at` is in Unix seconds."""

    message: ClientEventT
    at: float


class FromEngine(Struct, frozen=True):
    """Events came from the engine, together; `at` is in Unix seconds."""

    events: Sequence[engine_events.EngineEvent]
    at: float


class ToolFailed(Struct, frozen=True):
    """The tool can't go on, and the response must fail with this error."""

    error: ApiError


class ToolsReady(Struct, frozen=True):
    """What tools do before the model is asked is done."""


class FromTool(Struct, frozen=True):
    """
    A tool of the server said this.

    Attributes:
        id: of the response that has the call, or of the `PrepareTools`.
        call_id: empty for what a tool does before the model is asked.
    """

    id: str
    call_id: str
    event: ToolEvent | ToolFailed | ToolsReady
    at: float


class Hangup(Struct, frozen=True):
    """The client has disconnected; nothing sent from now on reaches it."""

    at: float


class PersistFailed(Struct, frozen=True):
    """A `Persist` failed; `record` is its record. Every `Send` that waited for it was dropped."""

    record: ResponseRecord | None
    error: ApiError
    at: float


class Shutdown(Struct, frozen=True):
    """
    The session must end: the server stops, or the client's key was revoked. Tell the client why while it is still
    connected.
    """

    error: ApiError
    at: float


class Tick(Struct, frozen=True):
    """The time of the last `WakeAt` has come."""

    at: float


Event: TypeAlias = FromClient[ClientEventT] | FromEngine | FromTool | Hangup | PersistFailed | Shutdown | Tick


class Send(Struct, Generic[ServerEventT], frozen=True):
    """Send the client this wire event."""

    event: ServerEventT


class SendToEngine(Struct, frozen=True):
    """Send the engine this command."""

    command: commands.EngineCommand


class PrepareTools(Struct, frozen=True):
    """
    Have the tools of the server do what they do before the model is asked.

    Attributes:
        id: by which what they say is told apart.
        tools: to be opened for it, of a session that gets some while it goes on; each with its path, for errors.
    """

    id: str
    tools: tuple[tuple[str, Tool], ...] = ()


class CallTool(Struct, frozen=True):
    """Have a tool of the server run this call."""

    call: ServerToolCall


class CancelTools(Struct, frozen=True):
    """Stop the calls of this response."""

    id: str


class Persist(Struct, frozen=True):
    """
    Store a record, the turn of its conversation that ends with it, or both at once. No `Send` or `Close` after it is
    performed before they are durable.
    """

    record: ResponseRecord | None
    turn: ConversationTurn | None = None


class CountTokens(Struct, frozen=True):
    """Count a response's tokens against the client's limits."""

    tokens: int


class InputTranscript(Struct, frozen=True, kw_only=True, tag="input_transcript"):
    """
    What the person said, as the server heard it.

    Attributes:
        item_id: of the item that the speech became; None in a protocol without items.
        start_ms: where the speech starts in the client's audio; None if unknown. `end_ms` is where it ends.
    """

    transcript: str
    item_id: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


class Observe(Struct, frozen=True):
    """Show this to a recorder: the client did not ask for it, or its protocol has no event for it."""

    transcript: InputTranscript


class WakeAt(Struct, frozen=True):
    """Deliver a `Tick` at this time, in Unix seconds. Replaces the previous `WakeAt`; None cancels it."""

    at: float | None


class Close(Struct, frozen=True):
    """The session is over; `error` says why if it did not end normally."""

    error: ApiError | None = None


class ReportRetry(Struct, frozen=True):
    """Tell the transport that the engine was refused and tries again, so that it may still say so by a status."""


class ReportAttempts(Struct, frozen=True):
    """Tell the transport who answers; comes before the first output, and before a failure."""

    report: engine_events.AttemptsReported


Effect: TypeAlias = (
    Send[ServerEventT]
    | SendToEngine
    | PrepareTools
    | CallTool
    | CancelTools
    | Persist
    | CountTokens
    | Observe
    | WakeAt
    | ReportRetry
    | ReportAttempts
    | Close
)


class Session(Protocol[ClientEventT, ServerEventT]):
    """
    A protocol machine: `ClientEventT` is what its client can send, `ServerEventT` what it sends the client.

    It never raises, whatever arrives; after `Close` it returns no more effects.
    """

    def handle(self, event: Event[ClientEventT]) -> list[Effect[ServerEventT]]:
        """The effects of `event`, in the order in which to perform them."""


PADDING_PERIOD = 16
"""What hides the length of a text in an event repeats with so many characters of it."""

SAMPLE_NUMBER = 987_654_321_012
"""The number of a sample."""


class TextRun(Struct, Generic[ServerEventT], frozen=True):
    """
    Texts that follow one another, each of which would be one event of the client and nothing else.

    Attributes:
        sample: the event with a text, and with `SAMPLE_NUMBER` where events are numbered.
        texts: where the session keeps them; None where it does not.
        number: of the next event; None where they have none.
    """

    sample: Callable[[str], ServerEventT]
    texts: list[str] | None
    number: int | None = None


@runtime_checkable
class TextSession(Protocol[ServerEventT]):
    """A session whose text may take the fast path (`engine_api.fast_path`)."""

    def begin_text(self, series: TextSeries) -> TextRun[ServerEventT] | None:
        """How texts of a series are sent while nothing else happens; None if more than one event would follow from one."""

    def end_text(self, count: int) -> None:
        """So many of them were sent; called before anything else happens."""


def report_effect(event: engine_events.EngineEvent) -> ReportRetry | ReportAttempts | None:
    """What the transport is told of an engine's event; None for an event that says nothing of who answers."""
    match event:
        case engine_events.RetryScheduled():
            return ReportRetry()
        case engine_events.AttemptsReported():
            return ReportAttempts(event)
        case _:
            return None
