"""The wire events of parts of an item: their deltas, and their ends."""

from collections.abc import Callable, Iterator

from antiphon.protocols import output as steps
from antiphon.protocols.output import ContentPart, OutputItem
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.responses.response_object import wire_logprobs, wire_part
from antiphon.wire.codec.types import Opt
from antiphon.wire.responses import events, parts
from antiphon.wire.responses.events import StreamEvent

_DeltaFactory = Callable[[int, OutputItem, ContentPart, steps.TextAppended, Opt[str]], StreamEvent]


def text_delta_event(
    number: int, item: OutputItem, part: ContentPart, step: steps.TextAppended, padding: Opt[str]
) -> events.OutputTextDelta:
    """A delta of a message's text."""
    return events.OutputTextDelta(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        content_index=part.index,
        delta=step.text,
        # OpenAI's document requires the list, here and in `done`; it is empty where none was asked for.
        logprobs=wire_logprobs(step.logprobs) if step.logprobs else [],
        obfuscation=padding,
    )


def _part_delta_factory(kind: Callable[..., StreamEvent]) -> _DeltaFactory:
    def delta(number: int, item: OutputItem, part: ContentPart, step: steps.TextAppended, padding: Opt[str]) -> StreamEvent:
        return kind(
            sequence_number=number,
            item_id=item.id,
            output_index=item.index,
            content_index=part.index,
            delta=step.text,
            obfuscation=padding,
        )

    return delta


def _summary_delta_event(number: int, item: OutputItem, part: ContentPart, step: steps.TextAppended, padding: Opt[str]) -> StreamEvent:
    return events.ReasoningSummaryTextDelta(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        summary_index=part.index,
        delta=step.text,
        obfuscation=padding,
    )


DELTA_EVENTS: dict[OutputKind, _DeltaFactory] = {
    OutputKind.TEXT: text_delta_event,
    # The transcript is the message's text, so a client that knows no events of audio can show it.
    OutputKind.AUDIO: text_delta_event,
    OutputKind.REFUSAL: _part_delta_factory(events.RefusalDelta),
    OutputKind.REASONING_TEXT: _part_delta_factory(events.ReasoningTextDelta),
    OutputKind.REASONING_SUMMARY: _summary_delta_event,
}


def _text_done_event(number: int, item: OutputItem, part: ContentPart) -> StreamEvent:
    return events.OutputTextDone(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        content_index=part.index,
        text=part.text,
        logprobs=wire_logprobs(part.logprobs),
    )


DONE_EVENTS: dict[OutputKind, Callable[[int, OutputItem, ContentPart], StreamEvent]] = {
    OutputKind.TEXT: _text_done_event,
    OutputKind.AUDIO: _text_done_event,
    OutputKind.REFUSAL: lambda number, item, part: events.RefusalDone(
        sequence_number=number, item_id=item.id, output_index=item.index, content_index=part.index, refusal=part.text
    ),
    OutputKind.REASONING_TEXT: lambda number, item, part: events.ReasoningTextDone(
        sequence_number=number, item_id=item.id, output_index=item.index, content_index=part.index, text=part.text
    ),
    OutputKind.REASONING_SUMMARY: lambda number, item, part: events.ReasoningSummaryTextDone(
        sequence_number=number, item_id=item.id, output_index=item.index, summary_index=part.index, text=part.text
    ),
}


def part_done_events(number: int, item: OutputItem, part: ContentPart, response_id: str) -> Iterator[StreamEvent]:
    """The events at the end of a part, numbered from `number`."""
    if part.kind is OutputKind.AUDIO:
        yield events.AudioDone(sequence_number=number, response_id=response_id)
        yield events.AudioTranscriptDone(sequence_number=number + 1, response_id=response_id)
        number += 2
    yield DONE_EVENTS[part.kind](number, item, part)
    number += 1
    if part.kind is OutputKind.REASONING_SUMMARY:
        # Responses: parts of a summary have events and an index of their own.
        summary = parts.SummaryText(text=part.text)
        yield events.ReasoningSummaryPartDone(
            sequence_number=number, item_id=item.id, output_index=item.index, summary_index=part.index, part=summary
        )
    else:
        yield events.ContentPartDone(
            sequence_number=number, item_id=item.id, output_index=item.index, content_index=part.index, part=wire_part(part)
        )


def is_custom(item: OutputItem) -> bool:
    """Whether an item is the call of a custom tool."""
    return item.call is not None and item.call.custom


def tool_call_done_event(number: int, item: OutputItem) -> StreamEvent:
    """The end of a call's arguments, or of a custom tool's input."""
    if is_custom(item):
        return events.CustomToolCallInputDone(sequence_number=number, item_id=item.id, output_index=item.index, input=item.arguments)
    assert item.call is not None
    # OpenAI's document requires `name` in this event, though the item has it already.
    return events.FunctionCallArgumentsDone(
        sequence_number=number, item_id=item.id, output_index=item.index, name=item.call.name, arguments=item.arguments
    )
