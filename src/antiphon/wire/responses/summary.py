"""
The Responses API in its short dialect: ten events, and a response that sums its output up.

Source: EU GPT, "Streaming events" (public preview). What it leaves open, and what was chosen: docs/decisions/0036.
"""

from typing import Literal

from msgspec import UNSET

from antiphon.errors import ClientError
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Tagged, Wire


class SummaryEvent(Tagged, kw_only=True):
    """What every event has; `sequence_number` is set when it is sent."""

    sequence_number: int = 0


class SummaryError(Wire, kw_only=True):
    """Why a response failed, or a request."""

    code: str
    message: str


class IncompleteReason(Wire, kw_only=True):
    """Why a response ended early."""

    reason: str


class SummaryRouting(Wire, kw_only=True):
    """The model that was chosen, and why."""

    model_id: str
    category: str
    source: str
    reasoning: str


class StartOfResponse(Wire, kw_only=True):
    """
    A response that has begun.

    Attributes:
        created_at: Unix milliseconds, or seconds, as the profile says.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: str


class CallSummary(Wire, kw_only=True):
    """A call in a response that is complete; `output` is absent where the client makes the call."""

    name: str
    call_id: str
    arguments: str
    output: Opt[str] = UNSET
    status: Opt[str] = UNSET


class RewriteSummary(Wire, kw_only=True):
    """What became of rewriting the text."""

    status: Literal["failed"] = "failed"


class FailureNote(Wire, kw_only=True):
    """
    Why a response failed, as its `error` event says it. The response's own `error` has only codes that the original has.
    """

    code: str | None
    type: str
    message: str


class ResponseNotes(Wire, kw_only=True):
    """
    What this dialect shows of a response and the original does not: kept beside the response.

    Attributes:
        routing: present where the server chose the model.
        answered_by: another model than the response's, if it has answered.
        rewrite: present where the text could not be rewritten.
        failure: present where the response failed; absent also where an older server stored it.
    """

    routing: Opt[SummaryRouting] = UNSET
    answered_by: Opt[str] = UNSET
    rewrite: Opt[RewriteSummary] = UNSET
    failure: Opt[FailureNote] = UNSET


_notes_reader: Reader[ResponseNotes] = Reader(ResponseNotes)


def decode_notes(body: bytes) -> ResponseNotes:
    """What is stored of them; none where only a newer server can read them."""
    try:
        return _notes_reader.read(body)
    except ClientError:
        return ResponseNotes()


class EndOfResponse(Wire, kw_only=True):
    """
    A response that is complete.

    Attributes:
        output_text: the text of all messages.
        tool_calls: absent where there were none.
        rewrite: present where the text could not be rewritten, and is the model's own.
    """

    id: str
    status: str
    model: str
    output_text: str
    tool_calls: Opt[list[CallSummary]] = UNSET
    incomplete_details: Opt[IncompleteReason] = UNSET
    rewrite: Opt[RewriteSummary] = UNSET


class SummaryResponse(Wire, kw_only=True):
    """A response that is not streamed: the fields of `StartOfResponse` and of `EndOfResponse`."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: str
    output_text: str
    tool_calls: Opt[list[CallSummary]] = UNSET
    routing: Opt[SummaryRouting] = UNSET
    incomplete_details: Opt[IncompleteReason] = UNSET
    rewrite: Opt[RewriteSummary] = UNSET
    error: Opt[SummaryError] = UNSET


class ItemSummary(Tagged, kw_only=True):
    """An output item."""


class MessageSummary(ItemSummary, kw_only=True, tag="message"):
    """A message."""

    role: Literal["assistant"] = "assistant"
    status: Opt[str] = UNSET


class FunctionCallSummary(ItemSummary, kw_only=True, tag="function_call"):
    """A call of a tool; with its `output` once the server has made it."""

    name: str
    call_id: str
    arguments: str
    output: Opt[str] = UNSET
    status: Opt[str] = UNSET


class TextPart(Tagged, kw_only=True, tag="output_text"):
    """A part of a message."""

    text: str
    annotations: Opt[list[JsonDict]] = UNSET
    logprobs: Opt[list[JsonDict]] = UNSET


class SummaryCreated(SummaryEvent, kw_only=True, tag="response.created"):
    """The response has begun: always the first event."""

    response: StartOfResponse


class SummaryCompleted(SummaryEvent, kw_only=True, tag="response.completed"):
    """The response is complete: always the last event, but for `error`."""

    response: EndOfResponse


class SummaryFailed(SummaryEvent, kw_only=True, tag="error"):
    """The response failed: always the last event."""

    code: str
    message: str


class SummaryRouted(SummaryEvent, kw_only=True, tag="response.routing.completed"):
    """A model was chosen."""

    model_id: str
    category: str
    source: str
    reasoning: str


class SummaryRewrite(SummaryEvent, kw_only=True, tag="response.rewrite.in_progress"):
    """The text is being rewritten; `response.output_text.done` has the final text."""


class SummaryItemAdded(SummaryEvent, kw_only=True, tag="response.output_item.added"):
    """An item starts."""

    output_index: int
    item: MessageSummary | FunctionCallSummary


class SummaryItemDone(SummaryEvent, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: MessageSummary | FunctionCallSummary


class SummaryPartEvent(SummaryEvent, kw_only=True):
    """An event of the part at `content_index` of the message at `output_index`."""

    item_id: Maybe[str] = UNSET
    output_index: int
    content_index: int


class SummaryPartAdded(SummaryPartEvent, kw_only=True, tag="response.content_part.added"):
    """A part starts."""

    part: TextPart


class SummaryTextDelta(SummaryPartEvent, kw_only=True, tag="response.output_text.delta"):
    """More of the text."""

    delta: str


class SummaryTextDone(SummaryPartEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str


AnySummaryEvent = (
    SummaryCreated
    | SummaryCompleted
    | SummaryFailed
    | SummaryPartAdded
    | SummaryTextDelta
    | SummaryTextDone
    | SummaryItemAdded
    | SummaryItemDone
    | SummaryRouted
    | SummaryRewrite
)
"""An event of this dialect. The page of its source lists them all."""

SUMMARY_EVENT_TYPES = frozenset(
    (
        "response.created",
        "response.completed",
        "error",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.routing.completed",
        "response.rewrite.in_progress",
    )
)
"""The types of these."""
