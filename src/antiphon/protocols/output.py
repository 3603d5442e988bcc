"""
The response: what an engine's words open, fill and close, in an order that every client accepts.

One item is open at a time and within it one part, so an item's events never interleave with another's, its position in the output is
its index, and whatever was opened is closed before the response ends. `MOVES` is the whole law: for what is open now and what the next
word needs open, what closes and what opens. Protocols turn the steps into their own events.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.engine_api import events
from antiphon.engine_api.history import Phase
from antiphon.protocols.output_table import ITEM_ID_PREFIXES, OUTPUT_TRANSITIONS, Outcome, OutputAction, OutputKind, Status

_REASONING_KINDS = (OutputKind.REASONING_TEXT, OutputKind.REASONING_SUMMARY, OutputKind.REASONING_ITEM)


class ContentPart:
    """A part being filled: `index` among the parts of its list (a reasoning item counts content and summary apart)."""

    __slots__ = ("annotations", "chunks", "index", "kind", "logprobs")

    def __init__(self, kind: OutputKind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.chunks: list[str] = []
        self.logprobs: list[events.TokenLogprob] = []
        self.annotations: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.chunks)


class OutputItem:
    """
    An item being filled: a message, a reasoning item, a call, or what a hosted tool does.

    Attributes:
        index: its position in the output.
        slot: what was first open in it, which tells its kind.
        parts: of a message or of the reasoning itself.
        summaries: of a reasoning item.
        call: what began it, for a call; its arguments are in `chunks`.
        hosted: a hosted tool's item as its engine tells it.
        phase: of a message.
    """

    __slots__ = ("call", "chunks", "encrypted_content", "hosted_item", "id", "index", "kind", "parts", "phase", "status", "summaries")

    def __init__(
        self,
        id: str,
        index: int,
        kind: OutputKind,
        call: events.ToolCallStarted | None = None,
        hosted_item: dict[str, Any] | None = None,
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
        """Whether it holds reasoning."""
        return self.kind in _REASONING_KINDS

    @property
    def arguments(self) -> str:
        """A call's arguments so far."""
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
    """The open part is heard further, by `pcm`; its words so far are those of all the sound up to the end of it."""

    item: OutputItem
    part: ContentPart
    pcm: bytes


class ArgumentsAppended(Struct):
    """The open call's arguments grew by `text`."""

    item: OutputItem
    text: str


class HostedToolProgressed(Struct):
    """The hosted tool whose item is open has come further."""

    item: OutputItem
    event: dict[str, Any]


class AnnotationAppended(Struct):
    """The open text part was annotated; `index` counts its annotations."""

    item: OutputItem
    part: ContentPart
    index: int
    annotation: dict[str, Any]


class PartDone(Struct):
    """The open part closed."""

    item: OutputItem
    part: ContentPart


class ItemDone(Struct):
    """The open item closed; its `status` says whether whole."""

    item: OutputItem


class OutputFinished(Struct):
    """The response is over. `reason` says why it is incomplete, `broke` why it failed."""

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
    The machine of one response: give it the engine's words, get the steps that follow.

    Args:
        is_aloud: whether the client can hear; for one that can't, what is spoken is text, and sound is nothing.
        is_never_empty: whether an answer of no words at all still has an item, as clients that read `output[0]` need it.

    Attributes:
        items: those that have closed, in order of their index.
        used: the token count that the engine gave last.
        outcome: how it ended; None before.
        sound_bytes: how much sound was said.
    """

    def __init__(self, new_id: Callable[[str], str], *, is_spoken: bool = False, requires_item: bool = True) -> None:
        self.items: list[OutputItem] = []
        self.usage: events.Usage | None = None
        self.outcome: Outcome | None = None
        self.audio_bytes = 0
        self._new_id = new_id
        self._is_spoken = is_spoken
        self._requires_item = requires_item
        self._kind = OutputKind.NONE
        self._item: OutputItem | None = None
        self._part: ContentPart | None = None
        self._next_boundary = events.ItemBoundary("")
        # Calls that began before the open one was complete wait here, so that events of two items never mix.
        self._waiting_calls: dict[str, list[ToolCallEvent]] = {}

    @property
    def is_over(self) -> bool:
        """Whether it has finished; it then answers every word with nothing."""
        return self.outcome is not None

    def apply(self, event: events.EngineEvent) -> list[OutputStep]:
        """What follows from `word`; never raises."""
        if self.outcome is not None or type(event) in NON_RESPONSE_EVENTS:
            return []
        return EVENT_HANDLERS[type(event)](self, event)

    def append_text(self, text: str) -> OutputItem | None:
        """
        The open message, its last part longer by `text`; None where more than that would follow, and nothing was done.

        The path of nearly every token: what `take` says of it in a step is one event, and known beforehand.
        """
        if self._kind is not OutputKind.TEXT or not text:
            return None
        part = self._part
        assert part is not None
        part.chunks.append(text)
        return self._item

    def cancel(self) -> list[OutputStep]:
        """What follows when nobody waits for the answer any more."""
        return [] if self.outcome is not None else [*self._close_all("incomplete"), self._finish("cancelled")]

    # What is said

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
        return self._add_text(OutputKind.AUDIO if self._is_spoken else OutputKind.TEXT, text)

    def _add_audio(self, pcm: bytes) -> list[OutputStep]:
        if not pcm or not self._is_spoken:
            return []
        self.audio_bytes += len(pcm)
        steps = [] if self._kind is OutputKind.AUDIO else [*self._close_calls("completed"), *self._move_to(OutputKind.AUDIO)]
        assert self._item is not None and self._part is not None
        return [*steps, AudioAppended(self._item, self._part, pcm)]

    def _add_encrypted_reasoning(self, encrypted_content: str) -> list[OutputStep]:
        at_reasoning = self._kind in _REASONING_KINDS
        steps = [] if at_reasoning else [*self._close_calls("completed"), *self._move_to(OutputKind.REASONING_ITEM)]
        assert self._item is not None
        self._item.encrypted_content = encrypted_content
        return steps

    def _add_annotation(self, annotation: dict[str, Any]) -> list[OutputStep]:
        steps = [] if self._kind is OutputKind.TEXT else [*self._close_calls("completed"), *self._move_to(OutputKind.TEXT)]
        item, part = self._item, self._part
        assert item is not None and part is not None
        part.annotations.append(annotation)
        return [*steps, AnnotationAppended(item, part, len(part.annotations) - 1, annotation)]

    # What is called

    def _handle_tool_call(self, event: ToolCallEvent) -> list[OutputStep]:
        if event.call_id in self._waiting_calls:
            self._waiting_calls[event.call_id].append(event)
            return []
        open_call = self._item.call if self._item is not None else None
        mine = open_call is not None and open_call.call_id == event.call_id
        match event:
            case events.ToolCallStarted() if open_call is None:
                return self._move_to(OutputKind.TOOL_CALL, event)
            case events.ToolCallStarted() if not mine:
                self._waiting_calls[event.call_id] = [event]
                return []
            case events.ToolArgumentsDelta(_, _, text) if mine:
                return self._append_arguments(text)
            case events.ToolCallDone():
                return [*self._move_to(OutputKind.NONE), *self._flush_waiting_calls()] if mine else []
            case _:
                return self._fail_on_garbled_call(event)

    def _append_arguments(self, text: str) -> list[OutputStep]:
        if not text or self._item is None:
            return []
        self._item.chunks.append(text)
        return [ArgumentsAppended(self._item, text)]

    def _flush_waiting_calls(self) -> list[OutputStep]:
        """The calls that waited, as far as they are complete, and the next of them as far as it came."""
        steps: list[OutputStep] = []
        while self._waiting_calls and self._kind is OutputKind.NONE:
            words = self._waiting_calls.pop(next(iter(self._waiting_calls)))
            for word in words:
                match word:
                    case events.ToolCallStarted():
                        steps += self._move_to(OutputKind.TOOL_CALL, word)
                    case events.ToolArgumentsDelta(_, _, text):
                        steps += self._append_arguments(text)
                    case events.ToolCallDone():
                        steps += self._move_to(OutputKind.NONE)
        return steps

    def _close_calls(self, status: Status) -> list[OutputStep]:
        """Close the open call and all that wait behind it."""
        if self._kind is not OutputKind.TOOL_CALL:
            return []
        steps = self._move_to(OutputKind.NONE, status=status)
        while self._waiting_calls:
            steps += self._flush_waiting_calls()
            steps += self._move_to(OutputKind.NONE, status=status)
        return steps

    def _fail_on_garbled_call(self, event: events.ToolCallStarted | events.ToolArgumentsDelta) -> list[OutputStep]:
        what = "began twice" if isinstance(event, events.ToolCallStarted) else "went on after its end, or before its beginning"
        broke = events.ResponseFailed(id=event.id, message=f"The model server garbled a tool call: '{event.call_id}' {what}.", status=502)
        return [*self._close_all("incomplete"), self._finish("failed", failure=broke)]

    # What hosted tools do

    def _handle_hosted_tool(self, event: HostedToolEvent) -> list[OutputStep]:
        if isinstance(event, events.HostedToolStarted):
            return [*self._close_calls("completed"), *self._move_to(OutputKind.HOSTED_TOOL, hosted_item=event.item)]
        item = self._item
        if self._kind is not OutputKind.HOSTED_TOOL or item is None:
            return []
        if isinstance(event, events.HostedToolProgress):
            return [HostedToolProgressed(item, event.event)]
        item.hosted_item = event.item
        return self._move_to(OutputKind.NONE)

    # What ends

    def _begin_next_item(self, event: events.ItemBoundary) -> list[OutputStep]:
        steps = [*self._close_calls("completed"), *self._move_to(OutputKind.NONE)]
        self._next_boundary = event
        return steps

    def _set_usage(self, usage: events.Usage) -> list[OutputStep]:
        self.usage = usage
        return []

    def _end_response(self, reason: events.EndReason) -> list[OutputStep]:
        outcome, why = OUTCOMES[reason]
        steps = self._close_all("completed" if outcome == "completed" else "incomplete")
        if outcome == "completed" and not self.items and self._requires_item:
            steps += [*self._move_to(OutputKind.TEXT), *self._move_to(OutputKind.NONE)]
        return [*steps, self._finish(outcome, why)]

    def _close_all(self, status: Status) -> list[OutputStep]:
        return [*self._close_calls(status), *self._move_to(OutputKind.NONE, status=status)]

    def _finish(self, outcome: Outcome, reason: str | None = None, failure: events.ResponseFailed | None = None) -> OutputFinished:
        self.outcome = outcome
        return OutputFinished(outcome, reason, failure)

    # What opens and closes

    def _move_to(
        self,
        kind: OutputKind,
        call: events.ToolCallStarted | None = None,
        status: Status = "completed",
        hosted_item: dict[str, Any] | None = None,
    ) -> list[OutputStep]:
        steps: list[OutputStep] = []
        for move in OUTPUT_TRANSITIONS[self._kind][kind]:
            match move:
                case OutputAction.END_PART:
                    steps.append(self._end_part())
                case OutputAction.END_ITEM:
                    steps.append(self._end_item(status))
                case OutputAction.BEGIN_ITEM:
                    steps.append(self._open_item(kind, call, hosted_item))
                case OutputAction.BEGIN_PART:
                    steps.append(self._open_part(kind))
        self._kind = kind
        return steps

    def _open_item(self, kind: OutputKind, call: events.ToolCallStarted | None, hosted_item: dict[str, Any] | None) -> OutputStep:
        given, self._next_boundary = self._next_boundary, events.ItemBoundary("")
        id = given.item_id
        if id is None:
            prefix = (
                "ctc"
                if call is not None and call.custom
                else ITEM_ID_PREFIXES[kind]
                if hosted_item is None
                else _hosted_item_prefix(hosted_item)
            )
            id = self._new_id(prefix)
        self._item = OutputItem(id, len(self.items), kind, call, hosted_item, given.phase)
        return ItemAdded(self._item)

    def _open_part(self, kind: OutputKind) -> OutputStep:
        assert self._item is not None
        parts = self._item.summaries if kind is OutputKind.REASONING_SUMMARY else self._item.parts
        self._part = ContentPart(kind, len(parts))
        parts.append(self._part)
        return PartAdded(self._item, self._part)

    def _end_part(self) -> OutputStep:
        assert self._item is not None and self._part is not None
        done = PartDone(self._item, self._part)
        self._part = None
        return done

    def _end_item(self, status: Status) -> OutputStep:
        assert self._item is not None
        self._item.status = status
        self.items.append(self._item)
        done = ItemDone(self._item)
        self._item = None
        return done


def _hosted_item_prefix(item: dict[str, Any]) -> str:
    """What ids of such items begin with, by the id that the engine gave this one."""
    prefix = str(item.get("id", "")).partition("_")[0]
    return prefix if prefix.isascii() and prefix.isalpha() and len(prefix) <= 8 else ITEM_ID_PREFIXES[OutputKind.HOSTED_TOOL]


EVENT_HANDLERS: dict[type, Callable[[OutputMachine, Any], list[OutputStep]]] = {
    events.ItemBoundary: lambda response, word: response._begin_next_item(word),
    events.TextDelta: lambda response, word: response._add_text(OutputKind.TEXT, word.text, word.logprobs),
    events.RefusalDelta: lambda response, word: response._add_text(OutputKind.REFUSAL, word.text),
    events.ReasoningDelta: lambda response, word: response._add_text(
        OutputKind.REASONING_SUMMARY if word.summary else OutputKind.REASONING_TEXT, word.text
    ),
    events.ReasoningBoundary: lambda response, _: (
        response._move_to(OutputKind.REASONING_ITEM) if response._kind is OutputKind.REASONING_SUMMARY else []
    ),
    events.EncryptedReasoning: lambda response, word: response._add_encrypted_reasoning(word.content),
    events.AnnotationAdded: lambda response, word: response._add_annotation(word.annotation),
    events.ToolCallStarted: OutputMachine._handle_tool_call,
    events.ToolArgumentsDelta: OutputMachine._handle_tool_call,
    events.ToolCallDone: OutputMachine._handle_tool_call,
    events.HostedToolStarted: OutputMachine._handle_hosted_tool,
    events.HostedToolProgress: OutputMachine._handle_hosted_tool,
    events.HostedToolDone: OutputMachine._handle_hosted_tool,
    events.Usage: OutputMachine._set_usage,
    events.AudioTranscriptDelta: lambda response, word: response._add_transcript(word.text),
    events.AudioDelta: lambda response, word: response._add_audio(word.pcm),
    events.ResponseEnded: lambda response, word: response._end_response(word.reason),
    events.ResponseFailed: lambda response, word: [*response._close_all("incomplete"), response._finish("failed", failure=word)],
}
"""What each word of an answer does; a word of an engine that is missing here and in `NOT_OF_AN_ANSWER` fails a test."""

ENGINE_STATUS_EVENTS = frozenset(
    {events.DuplexStarted, events.Listening, events.EngineMetrics, events.QueueUpdate, events.WorkerAssigned, events.EngineLost}
)
"""What an engine says of itself."""

NON_RESPONSE_EVENTS = ENGINE_STATUS_EVENTS.union(
    (
        events.SpeechStarted,
        events.SpeechStopped,
        events.InputTranscriptDelta,
        events.InputTranscriptSegment,
        events.InputTranscriptDone,
        events.InputTranscriptFailed,
        events.EngineError,
    )
)
"""That, and what it says of what it hears."""
