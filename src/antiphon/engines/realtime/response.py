"""One answer of an upstream: what its events say, as words."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from antiphon.audio import ms_of
from antiphon.engine_api import commands, events as talk_events
from antiphon.engines.chat.request import flat_name
from antiphon.engines.realtime.faults import Judge
from antiphon.engines.realtime.items import call_likeness
from antiphon.engines.realtime.mirror import Mirror, Placed, Words
from antiphon.engines.realtime.request import Decoder
from antiphon.wire.realtime.items import FunctionCallItem, MessageItem
from antiphon.wire.realtime.response import Response, Usage
from antiphon.wire.realtime.server_events import (
    ItemEvent,
    ResponseFunctionCallArgumentsDelta,
    ResponseFunctionCallArgumentsDone,
    ResponseOutputAudioDelta,
    ResponseOutputAudioTranscriptDelta,
    ResponseOutputAudioTranscriptDone,
    ResponseOutputItemAdded,
    ResponseOutputItemDone,
    ResponseOutputTextDelta,
    ResponseOutputTextDone,
)

END_REASONS: dict[str, talk_events.EndReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


class Answer:
    """
    The answer to one `Respond`.

    Args:
        mirror: has the items that it leaves; None for an answer that leaves none.

    Attributes:
        event_id: of the event that asked for it; "" before that.
        response_id: what the upstream calls it, once it has begun.
        is_cancelled: whether nobody wants to hear more of it.
        is_over: whether its last word was said.
        touched_at: when it was asked for, or something of it came.
        is_delivering: whether something of it came since it was asked for.
    """

    def __init__(self, ask: commands.Respond, mirror: Mirror | None, now: float) -> None:
        self.ask = ask
        self.event_id = ""
        self.response_id: str | None = None
        self.is_cancelled = False
        self.is_over = False
        self.touched_at = now
        self.is_delivering = False
        self._mirror = mirror
        self._tools = {flat_name(tool.name, tool.namespace): tool for tool in ask.tools}
        self._placed: dict[str, Placed] = {}
        self._parts: dict[tuple[str, int], _Part] = {}
        self._calls: dict[str, _Call] = {}
        self._message_id: str | None = None

    @property
    def is_aside(self) -> bool:
        """Whether it leaves the conversation upstream as it is."""
        return self._mirror is None

    def read(self, event: Any, words: list[talk_events.FromEngine]) -> None:
        """Add to `words` what an event of it says, save for its end."""
        self.is_delivering = True
        if not self.is_over and (reading := _READ.get(type(event))) is not None:
            reading(self, event, words)

    def end(self, response: Response, judge: Judge) -> list[talk_events.FromEngine]:
        """The last words, by what the upstream says that it came to."""
        words: list[talk_events.FromEngine] = []
        if self.is_over:
            return words
        self.is_over = True
        id, details = self.ask.id, response.status_details
        if response.usage is not None:
            words.append(_used(id, response.usage))
        match response.status:
            case "failed" if not self.is_cancelled:
                words.append(talk_events.Broke.by(id, judge(details.error or None if details is not None else None)))
            case "incomplete" if not self.is_cancelled:
                words.append(talk_events.Ended(id, END_REASONS.get((details.reason or "") if details is not None else "", "length")))
            case "completed":
                words.append(talk_events.Ended(id))
            case _:
                words.append(talk_events.Ended(id, "cancelled"))
        return words

    # What its events say

    def _added(self, event: ResponseOutputItemAdded, words: list[talk_events.FromEngine]) -> None:
        match event.item:
            case FunctionCallItem(id=str(item_id), call_id=str(call_id), name=name):
                self._call(item_id, call_id, name, words)
            case MessageItem(id=str(item_id)):
                self._message(item_id, words)
            case _:
                pass  # nothing that a word tells

    def _text(self, event: ResponseOutputTextDelta | ResponseOutputAudioTranscriptDelta, words: list[talk_events.FromEngine]) -> None:
        if self.is_cancelled:
            return
        part = self._part(event, words)
        part.words.pieces.append((part.words.sound_ms, event.delta))
        is_aloud = isinstance(event, ResponseOutputAudioTranscriptDelta) and self.ask.voice is not None
        words.append((talk_events.Spoken if is_aloud else talk_events.Text)(self.ask.id, event.delta))

    def _whole_text(self, event: ResponseOutputTextDone | ResponseOutputAudioTranscriptDone, words: list[talk_events.FromEngine]) -> None:
        """All the words of a part: some servers say them only now, or only now all of them."""
        is_aloud = isinstance(event, ResponseOutputAudioTranscriptDone)
        said, text = self._part(event, words).words.text, event.transcript if is_aloud else event.text  # type: ignore[union-attr]
        if len(text) > len(said) and text.startswith(said):
            kind = ResponseOutputAudioTranscriptDelta if is_aloud else ResponseOutputTextDelta
            places = {name: getattr(event, name) for name in ("event_id", "response_id", "item_id", "output_index", "content_index")}
            self._text(kind(**places, delta=text[len(said) :]), words)

    def _sound(self, event: ResponseOutputAudioDelta, words: list[talk_events.FromEngine]) -> None:
        voice = self.ask.voice
        if self.is_cancelled or voice is None:
            return
        part = self._part(event, words)
        if part.decoder is None:
            part.decoder = Decoder(voice.rate_hz)
        if pcm := part.decoder.take(event.delta):
            part.words.sound_ms += ms_of(len(pcm), voice.rate_hz)
            words.append(talk_events.Sound(self.ask.id, pcm))

    def _arguments(self, event: ResponseFunctionCallArgumentsDelta, words: list[talk_events.FromEngine]) -> None:
        # A call that nothing has begun has no name yet; what completes it says all of its arguments.
        call = self._calls.get(event.item_id)
        if call is not None and not self.is_cancelled and not call.is_whole:
            call.arguments += event.delta
            words.append(talk_events.Arguments(self.ask.id, call.call_id, event.delta))

    def _called(self, event: ResponseFunctionCallArgumentsDone, words: list[talk_events.FromEngine]) -> None:
        if event.name or event.item_id in self._calls:
            self._complete(self._call(event.item_id, event.call_id, event.name, words), event.item_id, event.arguments, words)

    def _item_done(self, event: ResponseOutputItemDone, words: list[talk_events.FromEngine]) -> None:
        item = event.item
        if isinstance(item, FunctionCallItem) and item.id is not UNSET and item.call_id is not UNSET and item.status != "incomplete":
            self._complete(self._call(item.id, item.call_id, item.name, words), item.id, item.arguments, words)

    # Its items

    def _message(self, item_id: str, words: list[talk_events.FromEngine]) -> None:
        if item_id == self._message_id:
            return
        if self._message_id is not None and not self.is_cancelled:
            words.append(talk_events.ItemBreak(self.ask.id))
        self._message_id = item_id
        self._place(item_id)

    def _part(self, event: Any, words: list[talk_events.FromEngine]) -> "_Part":
        key = event.item_id, event.content_index
        part = self._parts.get(key)
        if part is None:
            self._message(event.item_id, words)
            part = self._parts[key] = _Part()
            self._place(event.item_id).parts[event.content_index] = part.words
        return part

    def _call(self, item_id: str, call_id: str, name: str, words: list[talk_events.FromEngine]) -> "_Call":
        call = self._calls.get(item_id)
        if call is None:
            call = self._calls[item_id] = _Call(call_id, name)
            self._place(item_id)
            if not self.is_cancelled:
                tool = self._tools.get(name)
                known = (tool.name, tool.namespace) if tool is not None else (name, None)
                words.append(talk_events.Calling(self.ask.id, call_id, known[0], namespace=known[1]))
        return call

    def _complete(self, call: "_Call", item_id: str, arguments: str, words: list[talk_events.FromEngine]) -> None:
        if call.is_whole or self.is_cancelled:
            return
        call.is_whole = True
        if not call.arguments and arguments:
            call.arguments = arguments
            words.append(talk_events.Arguments(self.ask.id, call.call_id, arguments))
        words.append(talk_events.Called(self.ask.id, call.call_id))
        self._place(item_id).fixed = call_likeness(call.call_id, call.name, call.arguments)

    def _place(self, item_id: str) -> Placed:
        placed = self._placed.get(item_id)
        if placed is None:
            placed = Placed(item_id) if self._mirror is None else self._mirror.find(item_id) or self._mirror.expect(None, item_id)
            self._placed[item_id] = placed
        return placed


class _Part:
    """A part of a message: its words, and the way of its sound."""

    def __init__(self) -> None:
        self.words = Words()
        self.decoder: Decoder | None = None


class _Call:
    """A call, as far as it is known."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.arguments = ""
        self.is_whole = False


_READ: dict[type[ItemEvent] | type[Any], Callable[[Answer, Any, list[talk_events.FromEngine]], None]] = {
    ResponseOutputItemAdded: Answer._added,
    ResponseOutputTextDelta: Answer._text,
    ResponseOutputTextDone: Answer._whole_text,
    ResponseOutputAudioTranscriptDelta: Answer._text,
    ResponseOutputAudioTranscriptDone: Answer._whole_text,
    ResponseOutputAudioDelta: Answer._sound,
    ResponseFunctionCallArgumentsDelta: Answer._arguments,
    ResponseFunctionCallArgumentsDone: Answer._called,
    ResponseOutputItemDone: Answer._item_done,
}


def _used(id: str, usage: Usage) -> talk_events.Used:
    given, made = usage.input_token_details or None, usage.output_token_details or None
    cached = (given.cached_tokens_details or None) if given is not None else None
    return talk_events.Used(
        id=id,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=given.cached_tokens if given is not None else 0,
        input_audio_tokens=given.audio_tokens if given is not None else 0,
        input_image_tokens=given.image_tokens if given is not None else 0,
        output_audio_tokens=made.audio_tokens if made is not None else 0,
        cached_audio_tokens=cached.audio_tokens if cached is not None else 0,
    )
