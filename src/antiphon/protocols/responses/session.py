"""
The Responses session: one request answered, as the stream of events that the original sends.

The order of events comes from `protocols.response`; here each of its steps becomes the wire's events, numbered from 0 without a gap,
and the response object that frames them. Whether the client streams makes no difference: one that doesn't just waits for the last event.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antiphon.audio import endless_wav_head
from antiphon.engine_api import commands, events as talk_events
from antiphon.errors import Fault, UpstreamTrouble
from antiphon.protocols import output as steps, output_table as response_table
from antiphon.protocols.output import Item, Part
from antiphon.protocols.output_table import Slot
from antiphon.protocols.responses.request import SOUND_RATE_HZ, Order, ask
from antiphon.protocols.responses.response_object import Draft, error_of, item_begun, item_of, logprobs_of, part_begun, part_of
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Halted, Hangup, Keep, Mint, NotKept, Send, Tell, Tick
from antiphon.protocols.token_estimate import tokens_of
from antiphon.records import ResponseRecord
from antiphon.wire.codec.types import Extra, Unknown, encode
from antiphon.wire.responses import events
from antiphon.wire.responses.response import decode_response

Noise = Sequence[str]
"""Noise of `PAD` characters, of one less, and so on, down to one."""

PAD = 16
"""Deltas are padded to a multiple of this many characters, so that the size of a packet doesn't tell the word in it."""


class Responses:
    """
    The machine of one response.

    Args:
        noise: source of `obfuscation`; None for none.

    Attributes:
        left_out: what of the request the model is not given.

    Raises:
        ClientMistake: from the constructor alone, when the request asks for what can't be done.
    """

    def __init__(self, order: Order, mint: Mint, noise: Noise | None = None) -> None:
        asked = ask(order)
        self.left_out = asked.left_out
        self._ask = asked.respond
        self._order = order
        self._draft = Draft(order, mint)
        self._response = steps.Response(mint, is_aloud=order.is_aloud)
        self._sound_head = endless_wav_head(SOUND_RATE_HZ) if order.sound_format == "wav" else b""
        self._noise = noise
        self._streams = order.request.stream is True
        self._number = 0
        self._number_at_end = 0
        self._begun = False
        self._is_alone = False
        self._closed = False

    @property
    def tokens(self) -> int:
        """What the response came to, input and output; estimated where the engine has not said."""
        return tokens_of(self._response, self._ask, SOUND_RATE_HZ)

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""
        if not isinstance(event, FromEngine):
            return self._decide(event)
        if self._closed:
            return []
        effects: list[Effect] = []
        response, noise = self._response, self._noise
        for word in event.words:
            # Nearly every word; the rest of it costs less than a call would.
            if type(word) is talk_events.Text and not word.logprobs and (item := response.lengthen(text := word.text)) is not None:
                number = self._number
                self._number = number + 1
                if not self._streams:  # nobody would see it
                    continue
                delta = events.OutputTextDelta(
                    sequence_number=number,
                    item_id=item.id,
                    output_index=item.index,
                    content_index=len(item.parts) - 1,
                    delta=text,
                    logprobs=[],
                    obfuscation=msgspec.UNSET if noise is None else noise[len(text) % PAD],
                )
                effects.append(Send(delta))
                continue
            for step in response.take(word):
                _PERFORM[type(step)](self, step, event.at, effects)
        return effects

    def _decide(self, event: FromClient | Hangup | NotKept | Halted | Tick) -> list[Effect]:
        if self._closed and not isinstance(event, NotKept):
            return []
        match event:
            case FromClient():
                return self._begin()
            case Hangup(at):
                return self._abandon(at)
            case NotKept(record, fault, at):
                return self._not_kept(record, fault, at)
            case Tick():  # none was asked for
                return []
            case Halted(fault, at):
                broke = FromEngine([talk_events.Broke.by(self._order.id, fault)], at)
                return [Tell(commands.Cancel(self._order.id)), *self.handle(broke)]

    # The frame

    def _begin(self) -> list[Effect]:
        if self._begun:
            return []
        self._begun = True
        effects: list[Effect] = [Tell(self._ask)]
        if self._order.is_kept and self._order.request.stream:
            # Who was told an id can ask for it ever after; who waits for the whole answer is not told before it is there.
            effects.append(Keep(self._record("in_progress")))
        opened = self._draft.shown("in_progress")
        self._send(effects, events.ResponseCreated(sequence_number=self._next(), response=opened))
        self._send(effects, events.ResponseInProgress(sequence_number=self._next(), response=opened))
        return effects

    def _finish(self, step: steps.Finished, at: float, effects: list[Effect]) -> None:
        if step.outcome == "cancelled" and not self._is_alone:
            # Nobody here asked for that, and the client waits for an end.
            step = steps.Finished(
                "failed", broke=talk_events.Broke(id=self._order.id, message="The model was stopped before it had finished.")
            )
        self._draft.settle(step, self._response.used, at)
        if self._order.is_kept:
            effects.append(Keep(self._record(step.outcome)))
        self._number_at_end = self._number
        fault = None
        if step.broke is not None:
            fault = fault_of(step.broke)
            self._send(effects, self._error(fault))
        if step.outcome != "cancelled":
            terminal = _TERMINAL[step.outcome]
            self._send(effects, terminal(sequence_number=self._next(), response=self._draft.shown(step.outcome)))
        self._closed = True
        effects.append(Close(fault))

    def _abandon(self, at: float) -> list[Effect]:
        self._is_alone = True
        effects: list[Effect] = [Tell(commands.Cancel(self._order.id))]
        for step in self._response.cancel():
            if isinstance(step, steps.Finished):
                self._finish(step, at, effects)
            elif isinstance(step, steps.ItemDone):
                self._draft.output.append(item_of(step.item))
        return effects

    def _not_kept(self, record: ResponseRecord, fault: Fault, at: float) -> list[Effect]:
        """The store failed: nothing may be promised that won't be found again."""
        if record.status == "in_progress":  # nothing has left yet, whatever the engine has said since
            self._closed = True
            return [Tell(commands.Cancel(self._order.id)), Close(fault)]
        # The terminal event was never sent, so its number is still free.
        self._number = self._number_at_end
        broke = talk_events.Broke(id=self._order.id, message=fault.message)
        self._draft.settle(steps.Finished("failed", broke=broke), self._response.used, at)
        effects: list[Effect] = []
        self._send(effects, self._error(fault))
        self._send(effects, events.ResponseFailed(sequence_number=self._next(), response=self._draft.shown("failed")))
        return [*effects, Close(fault)]

    def _error(self, fault: Fault) -> events.ErrorEvent:
        code = fault.code or "server_error"
        return events.error_event(self._next(), message=fault.message, type=fault.type, code=code, param=fault.param)

    def _record(self, status: str) -> ResponseRecord:
        return ResponseRecord(
            id=self._order.id,
            tenant=self._order.tenant,
            created_at=self._order.created_at,
            status=status,
            model=self._order.model,
            previous_response_id=self._order.request.previous_response_id or None,
            body=encode(self._draft.shown(status)),
            items=self._draft.records(),
        )

    def _next(self) -> int:
        number = self._number
        self._number = number + 1
        return number

    def _send(self, effects: list[Effect], event: Any) -> None:
        effects.append(Send(event))

    def _padding(self, text: str) -> Any:
        return msgspec.UNSET if self._noise is None else self._noise[len(text) % PAD]

    # What opens, grows and closes

    def _item_added(self, step: steps.ItemAdded, _at: float, effects: list[Effect]) -> None:
        self._send(
            effects,
            events.OutputItemAdded(sequence_number=self._next(), output_index=step.item.index, item=item_begun(step.item)),
        )

    def _part_added(self, step: steps.PartAdded, _at: float, effects: list[Effect]) -> None:
        item, part = step.item, step.part
        if part.slot is Slot.SUMMARY:
            self._send(
                effects,
                events.ReasoningSummaryPartAdded(
                    sequence_number=self._next(),
                    item_id=item.id,
                    output_index=item.index,
                    summary_index=part.index,
                    part=part_begun(part),
                ),
            )
            return
        self._send(
            effects,
            events.ContentPartAdded(
                sequence_number=self._next(),
                item_id=item.id,
                output_index=item.index,
                content_index=part.index,
                part=part_begun(part),
            ),
        )

    def _grew(self, step: steps.Grew, _at: float, effects: list[Effect]) -> None:
        number = self._number
        self._number = number + 1
        effects.append(Send(_DELTAS[step.part.slot](number, step.item, step.part, step, self._padding(step.text))))
        if step.part.slot is Slot.SOUND:
            self._send(effects, events.AudioTranscriptDelta(sequence_number=self._next(), response_id=self._order.id, delta=step.text))

    def _sounded(self, step: steps.Sounded, _at: float, effects: list[Effect]) -> None:
        sound = b64encode(self._sound_head + step.pcm).decode()
        self._sound_head = b""
        self._send(effects, events.AudioDelta(sequence_number=self._next(), response_id=self._order.id, delta=sound))

    def _call_grew(self, step: steps.CallGrew, _at: float, effects: list[Effect]) -> None:
        item = step.item
        kind = events.CustomToolCallInputDelta if _is_custom(item) else events.FunctionCallArgumentsDelta
        self._send(
            effects,
            kind(
                sequence_number=self._next(),
                item_id=item.id,
                output_index=item.index,
                delta=step.text,
                obfuscation=self._padding(step.text),
            ),
        )

    def _hosted_moved(self, step: steps.HostedMoved, _at: float, effects: list[Effect]) -> None:
        place: dict[str, Any] = {"sequence_number": self._next(), "output_index": step.item.index}
        if "item_id" in step.event:
            place["item_id"] = step.item.id
        self._send(effects, Unknown(extra=Extra({**step.event, **place})))

    def _cited(self, step: steps.Cited, _at: float, effects: list[Effect]) -> None:
        cited: Any = step.annotation
        self._send(
            effects,
            events.AnnotationAdded(
                sequence_number=self._next(),
                item_id=step.item.id,
                output_index=step.item.index,
                content_index=step.part.index,
                annotation_index=step.index,
                annotation=cited,
            ),
        )

    def _part_done(self, step: steps.PartDone, _at: float, effects: list[Effect]) -> None:
        item, part = step.item, step.part
        if part.slot is Slot.SOUND:
            for kind in (events.AudioDone, events.AudioTranscriptDone):
                self._send(effects, kind(sequence_number=self._next(), response_id=self._order.id))
        self._send(effects, _DONES[part.slot](self._next(), item, part))
        whole = part_of(part)
        if part.slot is Slot.SUMMARY:
            done: Any = events.ReasoningSummaryPartDone(
                sequence_number=self._next(), item_id=item.id, output_index=item.index, summary_index=part.index, part=whole
            )
        else:
            done = events.ContentPartDone(
                sequence_number=self._next(), item_id=item.id, output_index=item.index, content_index=part.index, part=whole
            )
        self._send(effects, done)

    def _item_done(self, step: steps.ItemDone, _at: float, effects: list[Effect]) -> None:
        item = step.item
        if item.call is not None:
            self._send(effects, _call_done(self._next(), item))
        shown = item_of(item)
        self._draft.output.append(shown)
        self._send(effects, events.OutputItemDone(sequence_number=self._next(), output_index=item.index, item=shown))


_PERFORM: dict[type, Callable[[Responses, Any, float, list[Effect]], None]] = {
    steps.Grew: Responses._grew,
    steps.Sounded: Responses._sounded,
    steps.CallGrew: Responses._call_grew,
    steps.HostedMoved: Responses._hosted_moved,
    steps.ItemAdded: Responses._item_added,
    steps.PartAdded: Responses._part_added,
    steps.Cited: Responses._cited,
    steps.PartDone: Responses._part_done,
    steps.ItemDone: Responses._item_done,
    steps.Finished: Responses._finish,
}

_TERMINAL: dict[response_table.Outcome, Any] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


def _text_delta(number: int, item: Item, part: Part, step: steps.Grew, padding: Any) -> Any:
    return events.OutputTextDelta(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        content_index=part.index,
        delta=step.text,
        logprobs=logprobs_of(step.logprobs) if step.logprobs else [],
        obfuscation=padding,
    )


def _part_delta(kind: Any) -> Callable[[int, Item, Part, steps.Grew, Any], Any]:
    def delta(number: int, item: Item, part: Part, step: steps.Grew, padding: Any) -> Any:
        return kind(
            sequence_number=number,
            item_id=item.id,
            output_index=item.index,
            content_index=part.index,
            delta=step.text,
            obfuscation=padding,
        )

    return delta


def _summary_delta(number: int, item: Item, part: Part, step: steps.Grew, padding: Any) -> Any:
    return events.ReasoningSummaryTextDelta(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        summary_index=part.index,
        delta=step.text,
        obfuscation=padding,
    )


_DELTAS: dict[Slot, Callable[[int, Item, Part, steps.Grew, Any], Any]] = {
    Slot.TEXT: _text_delta,
    Slot.SOUND: _text_delta,
    Slot.REFUSAL: _part_delta(events.RefusalDelta),
    Slot.THINKING: _part_delta(events.ReasoningTextDelta),
    Slot.SUMMARY: _summary_delta,
}


def _text_done(number: int, item: Item, part: Part) -> Any:
    return events.OutputTextDone(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        content_index=part.index,
        text=part.text,
        logprobs=logprobs_of(part.logprobs),
    )


_DONES: dict[Slot, Callable[[int, Item, Part], Any]] = {
    Slot.TEXT: _text_done,
    Slot.SOUND: _text_done,
    Slot.REFUSAL: lambda number, item, part: events.RefusalDone(
        sequence_number=number, item_id=item.id, output_index=item.index, content_index=part.index, refusal=part.text
    ),
    Slot.THINKING: lambda number, item, part: events.ReasoningTextDone(
        sequence_number=number, item_id=item.id, output_index=item.index, content_index=part.index, text=part.text
    ),
    Slot.SUMMARY: lambda number, item, part: events.ReasoningSummaryTextDone(
        sequence_number=number, item_id=item.id, output_index=item.index, summary_index=part.index, text=part.text
    ),
}


def _is_custom(item: Item) -> bool:
    return item.call is not None and item.call.custom


def _call_done(number: int, item: Item) -> Any:
    if _is_custom(item):
        return events.CustomToolCallInputDone(sequence_number=number, item_id=item.id, output_index=item.index, input=item.arguments)
    assert item.call is not None
    return events.FunctionCallArgumentsDone(
        sequence_number=number,
        item_id=item.id,
        output_index=item.index,
        name=item.call.name,
        arguments=item.arguments,
    )


def fault_of(broke: talk_events.Broke) -> Fault:
    """What the engine's failure is to the client."""
    return UpstreamTrouble(
        broke.message,
        code=broke.code,
        param=broke.param,
        status=broke.status,
        type=broke.type,
        retry_after_s=broke.retry_after_s,
    )


def abandoned(record: ResponseRecord, at: int) -> ResponseRecord:
    """What is to be kept of a response whose server died over it: it failed, and says so."""
    shown = decode_response(record.body)
    broke = talk_events.Broke(id=record.id, message="The server stopped before this response was finished.")
    shown = msgspec.structs.replace(shown, status="failed", error=error_of(broke), completed_at=None)
    return msgspec.structs.replace(record, status="failed", body=encode(shown))
