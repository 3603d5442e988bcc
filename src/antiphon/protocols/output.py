"""
The output machine of a response: which items and parts an engine's events open, fill and close, in an order that every
client accepts.

One item is open at a time, and within it one part, so the events of two items never interleave, an item's index is its
position in the output, and everything that opens is closed before the response ends. `OUTPUT_TRANSITIONS` is the whole
law: given what is open and what the next event needs open, it says what closes and what opens. Protocols turn the steps
into their own events.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from antiphon.engine_api import events
from antiphon.engine_api.history import Phase
from antiphon.errors import invalid_tool_call
from antiphon.protocols.dispatch import HandlerTable, on, table
from antiphon.protocols.output_table import ITEM_ID_PREFIXES, OUTPUT_TRANSITIONS, Outcome, OutputAction, OutputKind, Status
from antiphon.wire.codec.types import JsonDict

# A member of an enumeration costs ten times as much as a name: Python 3.11 asks the class of its class first.
_NONE = OutputKind.NONE
_TEXT = OutputKind.TEXT
_AUDIO = OutputKind.AUDIO
_REFUSAL = OutputKind.REFUSAL
_REASONING_TEXT = OutputKind.REASONING_TEXT
_REASONING_SUMMARY = OutputKind.REASONING_SUMMARY
_REASONING_ITEM = OutputKind.REASONING_ITEM
_TOOL_CALL = OutputKind.TOOL_CALL
_HOSTED_TOOL = OutputKind.HOSTED_TOOL
_END_PART = OutputAction.END_PART
_END_ITEM = OutputAction.END_ITEM
_BEGIN_ITEM = OutputAction.BEGIN_ITEM

_REASONING_KINDS = (_REASONING_TEXT, _REASONING_SUMMARY, _REASONING_ITEM)


class ContentPart:
    """A part being filled; `index` is its place in its list (a reasoning item counts content and summary apart)."""

    __slots__ = ("annotations", "chunks", "index", "kind", "logprobs")

    def __init__(self, kind: OutputKind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.chunks: list[str] = []
        self.logprobs: list[events.TokenLogprob] = []
        self.annotations: list[JsonDict] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.chunks)


class OutputItem:
    """
    An item being filled: a message, a reasoning item, a tool call, or a hosted tool's item.

    Attributes:
        index: its position in the output.
        kind: what was open first in it; tells which kind of item it is.
        parts: of a message, or of the reasoning text.
        summaries: of a reasoning item.
        call: the event that started a tool call; its arguments are in `chunks`.
        hosted_item: a hosted tool's item, as its engine sends it.
        phase: of a message.
    """

    __slots__ = ("call", "chunks", "encrypted_content", "hosted_item", "id", "index", "kind", "parts", "phase", "status", "summaries")

    def __init__(
        self,
        id: str,
        index: int,
        kind: OutputKind,
        call: events.ToolCallStarted | None = None,
        hosted_item: JsonDict | None = None,
        phase: Phase | None = None,
    ) -> None:
        self.id = id
        self.index = index
        self.kind = kind
        self.call = call
        self.hosted_item = hosted_item
        self.phase = phase
        self.status: Status = "in_progress"
        self.parts: list[ContentPart] = []
        self.summaries: list[ContentPart] = []
        self.chunks: list[str] = []
        self.encrypted_content: str | None = None

    @property
    def is_reasoning(self) -> bool:
        """Whether this is a reasoning item."""
        return self.kind in _REASONING_KINDS

    @property
    def reasoning_text(self) -> str:
        """The reasoning so far; its summary where there is no more of it."""
        return "".join(part.text for part in self.parts or self.summaries) if self.is_reasoning else ""

    @property
    def arguments(self) -> str:
        """A tool call's arguments so far."""
        return "".join(self.chunks)


class ItemAdded(Struct):
    """An item opened."""

    item: OutputItem


class PartAdded(Struct):
    """A part of the open item opened."""

    item: OutputItem
    part: ContentPart


class TextAppended(Struct):
    """The open part grew by `text`."""

    item: OutputItem
    part: ContentPart
    text: str
    logprobs: tuple[events.TokenLogprob, ...]


class AudioAppended(Struct):
    """The open part's audio grew by `pcm`; its text so far is the transcript of all its audio up to here."""

    item: OutputItem
    part: ContentPart
    pcm: bytes


class ArgumentsAppended(Struct):
    """The open call's arguments grew by `text`."""

    item: OutputItem
    text: str


class HostedToolProgressed(Struct):
    """The hosted tool whose item is open reported progress."""

    item: OutputItem
    event: JsonDict


class AnnotationAppended(Struct):
    """The open text part was annotated; `index` counts its annotations."""

    item: OutputItem
    part: ContentPart
    index: int
    annotation: JsonDict


class PartDone(Struct):
    """The open part closed."""

    item: OutputItem
    part: ContentPart


class ItemDone(Struct):
    """The open item closed; its `status` says whether it is complete."""

    item: OutputItem


class OutputFinished(Struct):
    """The response is over. `reason` says why it is incomplete, `failure` why it failed."""

    outcome: Outcome
    reason: str | None = None
    failure: events.ResponseFailed | None = None


ToolCallEvent = events.ToolCallStarted | events.ToolArgumentsDelta | events.ToolCallDone
HostedToolEvent = events.HostedToolStarted | events.HostedToolProgress | events.HostedToolDone
OutputStep = (
    ItemAdded
    | PartAdded
    | TextAppended
    | AudioAppended
    | ArgumentsAppended
    | HostedToolProgressed
    | AnnotationAppended
    | PartDone
    | ItemDone
    | OutputFinished
)

OUTCOMES: dict[events.EndReason, tuple[Outcome, str | None]] = {
    "stop": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "content_filter": ("incomplete", "content_filter"),
    "cancelled": ("cancelled", None),
}


class OutputMachine:
    """
    The machine of one response: it takes the engine's events and returns the steps that follow.

    Args:
        is_spoken: whether the client gets audio; if not, transcripts become text and audio is dropped.
        requires_item: whether a response without output still gets an empty message, for clients that read `output[0]`.
        made_summary: how a summary is made of reasoning, for clients that read no more of it: `instead`, the text itself
            is sent as the summary; `after`, it follows as the summary of an item that came without; None, not at all.
        call_prefix: the prefix of the ids of a call's item, where it is no function's.

    Attributes:
        items: the closed items, in order of their index.
        usage: the last token count from the engine.
        outcome: how the response ended; None before.
        audio_bytes: how much audio the output has.
        rewrite_status: what became of rewriting its text; None where that was not tried.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        is_spoken: bool = False,
        requires_item: bool = True,
        made_summary: Literal["instead", "after"] | None = None,
        call_prefix: Callable[[events.ToolCallStarted], str | None] = lambda _call: None,
    ) -> None:
        self.items: list[OutputItem] = []
        self.usage: events.Usage | None = None
        self.outcome: Outcome | None = None
        self.audio_bytes = 0
        self.rewrite_status: events.RewriteStatus | None = None
        self._new_id = new_id
        self._call_prefix = call_prefix
        self._is_spoken = is_spoken
        self._requires_item = requires_item
        self._made_summary = made_summary
        self._kind = _NONE
        self._item: OutputItem | None = None
        self._part: ContentPart | None = None
        self._next_boundary = events.ItemBoundary("")
        # A call that starts before the open one is complete waits here, so that events of two items never mix.
        self._waiting_calls: dict[str, list[ToolCallEvent]] = {}

    @property
    def is_over(self) -> bool:
        """Whether the response has ended; further events then have no steps."""
        return self.outcome is not None

    def apply(self, event: events.EngineEvent) -> list[OutputStep]:
        """The steps that follow from `event`; never raises."""
        if self.outcome is not None or type(event) in NON_RESPONSE_EVENTS:
            return []
        return EVENT_HANDLERS[type(event)](self, event)

    def append_text(self, text: str) -> OutputItem | None:
        """
        Append `text` to the open message's last part.

        The fast path of nearly every token: `apply` would return one `TextAppended`, which the caller can build itself.

        Returns:
            The open message, or None if more steps than that would follow: then nothing was done.
        """
        if self._kind is not _TEXT or not text:
            return None
        part = self._part
        assert part is not None
        part.chunks.append(text)
        return self._item

    @property
    def open_item(self) -> OutputItem | None:
        """The open item; None if none is."""
        return self._item

    def open_text(self) -> tuple[OutputItem, list[str]] | None:
        """The open message and the text of its last part, for as long as `append_text` is all that happens; None if it is not."""
        part = self._part
        return None if self._kind is not _TEXT or self._item is None or part is None else (self._item, part.chunks)

    def cancel(self) -> list[OutputStep]:
        """The steps that end the response early, when its client has left or cancelled it."""
        return [] if self.outcome is not None else [*self._close_all("incomplete"), self._finish("cancelled")]

    # Text, audio, reasoning

    def _add_text(self, kind: OutputKind, text: str, logprobs: tuple[events.TokenLogprob, ...] = ()) -> list[OutputStep]:
        if not text and not logprobs:
            return []
        steps = self._close_calls("completed")
        steps += self._move_to(kind)
        return steps + self._append_to_part(text, logprobs)

    def _append_to_part(self, text: str, logprobs: tuple[events.TokenLogprob, ...] = ()) -> list[OutputStep]:
        item, part = self._item, self._part
        assert item is not None and part is not None
        part.chunks.append(text)
        if logprobs:
            part.logprobs.extend(logprobs)
        return [TextAppended(item, part, text, logprobs)]

    def _add_transcript(self, text: str) -> list[OutputStep]:
        # A client that gets no audio reads the words instead.
        return self._add_text(_AUDIO if self._is_spoken else _TEXT, text)

    def _add_audio(self, pcm: bytes) -> list[OutputStep]:
        if not pcm or not self._is_spoken:
            return []
        self.audio_bytes += len(pcm)
        steps = [] if self._kind is _AUDIO else [*self._close_calls("completed"), *self._move_to(_AUDIO)]
        assert self._item is not None and self._part is not None
        return [*steps, AudioAppended(self._item, self._part, pcm)]

    def _add_reasoning(self, event: events.ReasoningDelta) -> list[OutputStep]:
        is_summary = event.summary or self._made_summary == "instead"
        return self._add_text(_REASONING_SUMMARY if is_summary else _REASONING_TEXT, event.text)

    def _end_summary_part(self, _event: events.ReasoningBoundary) -> list[OutputStep]:
        return self._move_to(_REASONING_ITEM) if self._kind is _REASONING_SUMMARY else []

    def _add_encrypted_reasoning(self, encrypted_content: str) -> list[OutputStep]:
        steps = [] if self._kind in _REASONING_KINDS else [*self._close_calls("completed"), *self._move_to(_REASONING_ITEM)]
        assert self._item is not None
        self._item.encrypted_content = encrypted_content
        return steps

    def _add_annotation(self, annotation: JsonDict) -> list[OutputStep]:
        steps = [] if self._kind is _TEXT else [*self._close_calls("completed"), *self._move_to(_TEXT)]
        item, part = self._item, self._part
        assert item is not None and part is not None
        part.annotations.append(annotation)
        return [*steps, AnnotationAppended(item, part, len(part.annotations) - 1, annotation)]

    def _replace_text(self, event: events.RewriteEnded) -> list[OutputStep]:
        """Put the final text in the place of a draft; what was said of the draft's tokens does not hold for it."""
        self.rewrite_status = event.status
        if event.text is not None and self._kind is _TEXT and self._part is not None:
            self._part.chunks = [event.text]
            self._part.logprobs = []
            self._part.annotations = list(event.annotations)
        return []

    # Tool calls

    def _handle_tool_call(self, event: ToolCallEvent) -> list[OutputStep]:
        if (waiting := self._waiting_calls.get(event.call_id)) is not None:
            return self._add_to_waiting_call(waiting, event)
        open_call = self._item.call if self._item is not None else None
        is_open_call = open_call is not None and open_call.call_id == event.call_id
        match event:
            case events.ToolCallStarted() if open_call is None:
                return self._move_to(_TOOL_CALL, event)
            case events.ToolCallStarted() if not is_open_call:
                self._waiting_calls[event.call_id] = [event]
                return []
            case events.ToolArgumentsDelta(_, _, text) if is_open_call:
                return self._append_arguments(text)
            case events.ToolCallDone():
                return [*self._move_to(_NONE), *self._flush_waiting_calls()] if is_open_call else []
            case _:
                return self._fail_on_invalid_call(event)

    def _add_to_waiting_call(self, waiting: list[ToolCallEvent], event: ToolCallEvent) -> list[OutputStep]:
        """Keep an event of a call that is told after the open one; it may no more go on after its end than any other."""
        is_done = isinstance(waiting[-1], events.ToolCallDone)
        if not isinstance(event, events.ToolCallDone) and (is_done or isinstance(event, events.ToolCallStarted)):
            return self._fail_on_invalid_call(event)
        waiting.append(event)
        return []

    def _append_arguments(self, text: str) -> list[OutputStep]:
        if not text or self._item is None:
            return []
        self._item.chunks.append(text)
        return [ArgumentsAppended(self._item, text)]

    def _flush_waiting_calls(self) -> list[OutputStep]:
        """Replay the waiting calls, up to and including the first that is not complete yet."""
        steps: list[OutputStep] = []
        while self._waiting_calls and self._kind is _NONE:
            batch = self._waiting_calls.pop(next(iter(self._waiting_calls)))
            for event in batch:
                match event:
                    case events.ToolCallStarted():
                        steps += self._move_to(_TOOL_CALL, event)
                    case events.ToolArgumentsDelta(_, _, text):
                        steps += self._append_arguments(text)
                    case events.ToolCallDone():
                        steps += self._move_to(_NONE)
        return steps

    def _close_calls(self, status: Status) -> list[OutputStep]:
        """Close the open call and all that wait for it."""
        if self._kind is not _TOOL_CALL:
            return []
        steps = self._move_to(_NONE, status=status)
        while self._waiting_calls:
            steps += self._flush_waiting_calls()
            steps += self._move_to(_NONE, status=status)
        return steps

    def _fail_on_invalid_call(self, event: events.ToolCallStarted | events.ToolArgumentsDelta) -> list[OutputStep]:
        what = "started twice" if isinstance(event, events.ToolCallStarted) else "continued after its end or before its start"
        failure = events.ResponseFailed.from_error(event.id, invalid_tool_call(f"'{event.call_id}' {what}"))
        return [*self._close_all("incomplete"), self._finish("failed", failure=failure)]

    # Hosted tools

    def _handle_hosted_tool(self, event: HostedToolEvent) -> list[OutputStep]:
        if isinstance(event, events.HostedToolStarted):
            return [*self._close_calls("completed"), *self._move_to(_HOSTED_TOOL, hosted_item=event.item)]
        item = self._item
        if self._kind is not _HOSTED_TOOL or item is None:
            return []
        if isinstance(event, events.HostedToolProgress):
            # An item is added without its arguments; one that is cut off after they came keeps them.
            arguments = event.event.get("arguments") if event.event.get("type") == "response.mcp_call_arguments.done" else None
            if item.hosted_item is not None and isinstance(arguments, str):
                item.hosted_item = item.hosted_item | {"arguments": arguments}
            return [HostedToolProgressed(item, event.event)]
        item.hosted_item = event.item
        return self._move_to(_NONE)

    # The end

    def _begin_next_item(self, event: events.ItemBoundary) -> list[OutputStep]:
        steps = [*self._close_calls("completed"), *self._move_to(_NONE)]
        self._next_boundary = event
        return steps

    def _set_usage(self, usage: events.Usage) -> list[OutputStep]:
        self.usage = usage
        return []

    def _end_response(self, end_reason: events.EndReason) -> list[OutputStep]:
        outcome, incomplete_reason = OUTCOMES[end_reason]
        # Responses: an item that is cut off is `incomplete`, whatever becomes of the response.
        steps = self._close_all("completed" if outcome == "completed" else "incomplete")
        if outcome == "completed" and not self.items and self._requires_item:
            steps += [*self._move_to(_TEXT), *self._move_to(_NONE)]
        return [*steps, self._finish(outcome, incomplete_reason)]

    def _close_all(self, status: Status) -> list[OutputStep]:
        return [*self._close_calls(status), *self._move_to(_NONE, status=status)]

    def _finish(self, outcome: Outcome, reason: str | None = None, failure: events.ResponseFailed | None = None) -> OutputFinished:
        self.outcome = outcome
        return OutputFinished(outcome, reason, failure)

    # Opening and closing

    def _move_to(
        self,
        kind: OutputKind,
        call: events.ToolCallStarted | None = None,
        status: Status = "completed",
        hosted_item: JsonDict | None = None,
    ) -> list[OutputStep]:
        steps: list[OutputStep] = []
        for move in OUTPUT_TRANSITIONS[self._kind][kind]:
            if move is _END_PART:
                steps.append(self._end_part())
            elif move is _END_ITEM:
                steps += self._end_item(status)
            elif move is _BEGIN_ITEM:
                steps.append(self._open_item(kind, call, hosted_item))
            else:
                steps.append(self._open_part(kind))
        self._kind = kind
        return steps

    def _open_item(self, kind: OutputKind, call: events.ToolCallStarted | None, hosted_item: JsonDict | None) -> OutputStep:
        boundary, self._next_boundary = self._next_boundary, events.ItemBoundary("")
        id = boundary.item_id if boundary.item_id is not None else self._new_id(self._id_prefix(kind, call, hosted_item))
        self._item = OutputItem(id, len(self.items), kind, call, hosted_item, boundary.phase)
        return ItemAdded(self._item)

    def _id_prefix(self, kind: OutputKind, call: events.ToolCallStarted | None, hosted_item: JsonDict | None) -> str:
        if call is not None:
            return self._call_prefix(call) or ("ctc" if call.custom else ITEM_ID_PREFIXES[kind])
        if hosted_item is None:
            return ITEM_ID_PREFIXES[kind]
        prefix = str(hosted_item.get("id", "")).partition("_")[0]  # the engine's own, such as `ws` for a web search
        return prefix if prefix.isascii() and prefix.isalpha() and len(prefix) <= 8 else ITEM_ID_PREFIXES[_HOSTED_TOOL]

    def _open_part(self, kind: OutputKind) -> OutputStep:
        assert self._item is not None
        parts = self._item.summaries if kind is _REASONING_SUMMARY else self._item.parts
        self._part = ContentPart(kind, len(parts))
        parts.append(self._part)
        return PartAdded(self._item, self._part)

    def _end_part(self) -> OutputStep:
        assert self._item is not None and self._part is not None
        step = PartDone(self._item, self._part)
        self._part = None
        return step

    def _end_item(self, status: Status) -> list[OutputStep]:
        item = self._item
        assert item is not None
        steps = self._add_missing_summary(item) if self._made_summary == "after" else []
        item.status = status
        self.items.append(item)
        self._item = None
        return [*steps, ItemDone(item)]

    def _add_missing_summary(self, item: OutputItem) -> list[OutputStep]:
        text = "".join(part.text for part in item.parts) if item.is_reasoning and not item.summaries else ""
        if not text:
            return []
        part = ContentPart(_REASONING_SUMMARY, 0)
        part.chunks.append(text)
        item.summaries.append(part)
        return [PartAdded(item, part), TextAppended(item, part, text, ()), PartDone(item, part)]


EVENT_HANDLERS: HandlerTable[OutputMachine, list[OutputStep]] = table(
    on(events.ItemBoundary, OutputMachine._begin_next_item),
    on(events.TextDelta, lambda output, event: output._add_text(_TEXT, event.text, event.logprobs)),
    on(events.RefusalDelta, lambda output, event: output._add_text(_REFUSAL, event.text)),
    on(events.ReasoningDelta, OutputMachine._add_reasoning),
    on(events.ReasoningBoundary, OutputMachine._end_summary_part),
    on(events.EncryptedReasoning, lambda output, event: output._add_encrypted_reasoning(event.content)),
    on(events.AnnotationAdded, lambda output, event: output._add_annotation(event.annotation)),
    on(events.RewriteEnded, OutputMachine._replace_text),
    on(events.ToolCallStarted, OutputMachine._handle_tool_call),
    on(events.ToolArgumentsDelta, OutputMachine._handle_tool_call),
    on(events.ToolCallDone, OutputMachine._handle_tool_call),
    on(events.HostedToolStarted, OutputMachine._handle_hosted_tool),
    on(events.HostedToolProgress, OutputMachine._handle_hosted_tool),
    on(events.HostedToolDone, OutputMachine._handle_hosted_tool),
    on(events.Usage, OutputMachine._set_usage),
    on(events.AudioTranscriptDelta, lambda output, event: output._add_transcript(event.text)),
    on(events.AudioDelta, lambda output, event: output._add_audio(event.pcm)),
    on(events.ResponseEnded, lambda output, event: output._end_response(event.reason)),
    on(events.ResponseFailed, lambda output, event: [*output._close_all("incomplete"), output._finish("failed", failure=event)]),
)
"""
What each event of a response does. A test fails for an engine event that is neither here nor in `NON_RESPONSE_EVENTS`.
"""

ENGINE_STATUS_EVENTS = frozenset(
    {
        events.DuplexStarted,
        events.Listening,
        events.EngineMetrics,
        events.QueueUpdate,
        events.WorkerAssigned,
        events.EngineLost,
        events.CompactionProgress,
        events.RewriteStarted,
        events.RetryScheduled,
        events.AttemptsReported,
    }
)
"""Events about the engine itself."""

NON_RESPONSE_EVENTS = ENGINE_STATUS_EVENTS.union(
    (
        events.SpeechStarted,
        events.SpeechStopped,
        events.InputTranscriptDelta,
        events.InputTranscriptSegment,
        events.InputTranscriptDone,
        events.InputTranscriptFailed,
        events.EngineError,
        events.RelayData,
    )
)
"""Those, events about the client's audio, and answers that are passed on as they come."""
