"""The output of a response that is ended from outside its session, as far as its events tell it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import structs

from antiphon.engine_api.events import TokenCandidate, TokenLogprob
from antiphon.engine_api.history import Phase
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.output import ContentPart, OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.responses.part_events import part_done_events
from antiphon.protocols.responses.response_object import wire_item
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Extra, Unknown
from antiphon.wire.responses import events, items, parts
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.hosted_calls import ApplyPatchCall, CreateFile, ShellCall, UpdateFile

_DIFF_DELTA = "response.apply_patch_call_operation_diff.delta"

_PART_KINDS: Mapping[type, OutputKind] = {
    parts.OutputText: OutputKind.TEXT,
    parts.Refusal: OutputKind.REFUSAL,
    parts.ReasoningText: OutputKind.REASONING_TEXT,
}


class PartialOutput:
    """
    The output that a response's events build up, in order from its first one.

    Args:
        response_id: the response's.

    Attributes:
        done_items: the items that are done.
    """

    def __init__(self, response_id: str) -> None:
        self.done_items: list[items.Item] = []
        self._response_id = response_id
        self._item: items.Item | None = None  # the open one, as it was added
        self._content = OutputItem("", 0, OutputKind.TEXT)  # what has come of it since
        self._part: ContentPart | None = None
        self._chunks: list[str] = []
        self._commands: list[str] = []

    def read(self, stream_events: Iterable[StreamEvent]) -> None:
        """Take the next events; those that have no part in the output change nothing."""
        for event in stream_events:
            if (take := _EVENT_HANDLERS.get(type(event))) is not None:
                take(self, event)

    def all_items(self) -> list[items.Item]:
        """All items; the open one as incomplete."""
        return self.done_items if self._item is None else [*self.done_items, self._cut_item(self._item)]

    def closing_events(self, first: int) -> list[StreamEvent]:
        """The events that end the open part and the open item, as a session sends them; `first` is the number of the first."""
        if self._item is None:
            return []
        cut_item = self._cut_item(self._item)
        closing: list[StreamEvent] = []
        if self._part is not None:
            closing += part_done_events(first, self._content, self._part, self._response_id)
        closing += _arguments_done(first + len(closing), self._content, cut_item)
        number = first + len(closing)
        return [*closing, events.OutputItemDone(sequence_number=number, output_index=self._content.index, item=cut_item)]

    def _cut_item(self, item: items.Item) -> items.Item:
        match item:
            case items.Message() | items.Reasoning():
                self._content.status = "incomplete"
                return wire_item(self._content)
            case items.FunctionCall():
                return structs.replace(item, arguments="".join(self._chunks), status="incomplete")
            case items.CustomToolCall():
                return structs.replace(item, input="".join(self._chunks), status="incomplete")
            case ShellCall():
                action = structs.replace(item.action, commands=self._commands or item.action.commands)
                return structs.replace(item, action=action, status="incomplete")
            case ApplyPatchCall(operation=CreateFile() | UpdateFile() as operation):
                # A patch knows no other status than `in_progress` for one that was cut off.
                return structs.replace(item, operation=structs.replace(operation, diff="".join(self._chunks)))
            case _:
                return _with_status(item)

    def _open(self, event: events.OutputItemAdded) -> None:
        item = self._item = event.item
        kind = OutputKind.REASONING_ITEM if isinstance(item, items.Reasoning) else OutputKind.TEXT
        phase: Phase | None = value_or(item.phase, None) if isinstance(item, items.Message) else None
        self._content = OutputItem(items.id_of(item) or "", event.output_index, kind, phase=phase)
        if isinstance(item, items.Reasoning):
            self._content.encrypted_content = value_or(item.encrypted_content, None)
        self._part, self._chunks, self._commands = None, [], []

    def _end(self, event: events.OutputItemDone) -> None:
        self.done_items.append(event.item)
        self._item = self._part = None

    def _open_part(self, event: events.ContentPartAdded) -> None:
        self._part = ContentPart(_PART_KINDS.get(type(event.part), OutputKind.TEXT), len(self._content.parts))
        self._content.parts.append(self._part)

    def _open_summary(self, _event: events.ReasoningSummaryPartAdded) -> None:
        self._part = ContentPart(OutputKind.REASONING_SUMMARY, len(self._content.summaries))
        self._content.summaries.append(self._part)

    def _end_part(self, event: events.ContentPartDone | events.ReasoningSummaryPartDone) -> None:
        if self._part is not None:
            # A rewritten text is not that of its deltas.
            text = event.part.refusal if isinstance(event.part, parts.Refusal) else event.part.text
            self._part.chunks = [text]
            self._part = None

    def _append(self, event: events.RefusalDelta | events.ReasoningTextDelta | events.ReasoningSummaryTextDelta) -> None:
        if self._part is not None:
            self._part.chunks.append(event.delta)

    def _append_text(self, event: events.OutputTextDelta) -> None:
        if self._part is not None:
            self._part.chunks.append(event.delta)
            self._part.logprobs += map(_token_logprob, event.logprobs)

    def _annotate(self, event: events.AnnotationAdded) -> None:
        if self._part is not None:
            self._part.annotations.append(msgspec.to_builtins(value_or(event.annotation, None)))

    def _note_audio(self, _event: events.AudioDelta | events.AudioTranscriptDelta) -> None:
        if self._part is not None:
            self._part.kind = OutputKind.AUDIO

    def _append_chunk(self, event: events.FunctionCallArgumentsDelta | events.CustomToolCallInputDelta) -> None:
        self._chunks.append(event.delta)

    def _append_unknown(self, event: Unknown) -> None:
        if event.extra.get("type") == _DIFF_DELTA:
            self._chunks.append(str(event.extra.get("delta", "")))

    def _open_command(self, event: events.ShellCallCommandAdded) -> None:
        self._commands.append(event.command)

    def _append_command(self, event: events.ShellCallCommandDelta) -> None:
        if self._commands:
            self._commands[-1] += event.delta


def _arguments_done(number: int, content: OutputItem, item: items.Item) -> Iterator[StreamEvent]:
    place: dict[str, Any] = {"sequence_number": number, "item_id": content.id, "output_index": content.index}
    if isinstance(item, items.FunctionCall):
        yield events.FunctionCallArgumentsDone(**place, name=item.name, arguments=item.arguments)
    elif isinstance(item, items.CustomToolCall):
        yield events.CustomToolCallInputDone(**place, input=item.input)


def _with_status(item: items.Item) -> items.Item:
    """A tool's item, which is incomplete if it has a status at all."""
    if isinstance(item, Unknown):
        return Unknown(extra=Extra({**item.extra, "status": "incomplete"})) if "status" in item.extra else item
    if isinstance(item, ApplyPatchCall) or not is_set(getattr(item, "status", msgspec.UNSET)):
        return item
    cut_item: items.Item = structs.replace(item, status="incomplete")
    return cut_item


def _token_logprob(token: parts.Logprob) -> TokenLogprob:
    return TokenLogprob(_candidate(token), tuple(map(_candidate, value_or(token.top_logprobs, ()))))


def _candidate(token: parts.Logprob | parts.TopLogprob) -> TokenCandidate:
    return TokenCandidate(value_or(token.token, ""), value_or(token.logprob, 0.0), tuple(value_or(token.bytes, ())))


_EVENT_HANDLERS: Mapping[type, Callable[[PartialOutput, Any], None]] = table(
    on(events.OutputItemAdded, PartialOutput._open),
    on(events.OutputItemDone, PartialOutput._end),
    on(events.ContentPartAdded, PartialOutput._open_part),
    on(events.ReasoningSummaryPartAdded, PartialOutput._open_summary),
    on(events.ContentPartDone, PartialOutput._end_part),
    on(events.ReasoningSummaryPartDone, PartialOutput._end_part),
    on(events.OutputTextDelta, PartialOutput._append_text),
    on(events.RefusalDelta, PartialOutput._append),
    on(events.ReasoningTextDelta, PartialOutput._append),
    on(events.ReasoningSummaryTextDelta, PartialOutput._append),
    on(events.AnnotationAdded, PartialOutput._annotate),
    on(events.AudioDelta, PartialOutput._note_audio),
    on(events.AudioTranscriptDelta, PartialOutput._note_audio),
    on(events.FunctionCallArgumentsDelta, PartialOutput._append_chunk),
    on(events.CustomToolCallInputDelta, PartialOutput._append_chunk),
    on(events.ShellCallCommandAdded, PartialOutput._open_command),
    on(events.ShellCallCommandDelta, PartialOutput._append_command),
    on(Unknown, PartialOutput._append_unknown),
)
