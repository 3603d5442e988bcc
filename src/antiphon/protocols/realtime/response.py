"""
One answer of a Realtime session: what it is to be, and the events that tell it, from `response.created` to `response.done`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from antiphon.audio import bytes_of, ms_of, to_alaw, to_ulaw
from antiphon.engine_api import commands, events as talk_events
from antiphon.protocols import output as steps, output_table as response_table
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.output_table import Slot
from antiphon.protocols.realtime.conversation import Conversation, Entry, Recording, usage_kinds
from antiphon.protocols.realtime.output_buffer import Playout
from antiphon.protocols.realtime.plan import Plan
from antiphon.protocols.realtime.settings import coding_of, voice_name
from antiphon.protocols.session import Mint
from antiphon.protocols.token_estimate import tokens_of
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.items import AudioContent, FunctionCallItem, MessageItem, OutputAudio, OutputText, Part, TextContent
from antiphon.wire.realtime.response import (
    CachedTokensDetails,
    InputTokenDetails,
    OutputTokenDetails,
    Response,
    ResponseAudio,
    ResponseAudioOutput,
    StatusDetails,
    StatusError,
    Usage,
)

DELTA_MS = 200
"""The most sound in one event; some clients take no message over 1 MiB, and a player wants to begin."""

MOST_CHARACTERS = 1_000
"""The most characters of words in one event; more is rare, and split so that no message is large."""

TOLD_LIMIT_BYTES = 900 << 10
"""The most JSON of an item, an answer or a session; each is told in one event, and some clients take no message over 1 MiB."""

ITEM_BYTES = 256
"""What an item or a part of it takes beyond its words, at most."""

ENCODE: dict[str, Callable[[bytes], bytes]] = {"audio/pcm": bytes, "audio/pcmu": to_ulaw, "audio/pcma": to_alaw}
"""From s16le to what stands on the wire."""


class Answer:
    """
    An answer under way.

    Args:
        conversation: what its items are added to; None where it is out of band.
        playout: what plays its sound; None where the client does.

    Attributes:
        has_sounded: whether any of it was heard.
        sound_ms: how much sound was sent.
        sounded_at: when the first of it was; 0 before.
    """

    def __init__(self, plan: Plan, outbox: Outbox, mint: Mint, conversation: Conversation | None, playout: Playout | None = None) -> None:
        self.plan = plan
        self.has_sounded = False
        self.sound_ms = 0.0
        self.sounded_at = 0.0
        self._outbox = outbox
        self._conversation = conversation
        self._playout = playout
        self._is_aloud = list(plan.modalities) == ["audio"]
        self._steps = steps.Response(lambda _prefix: mint("item"), is_aloud=self._is_aloud, is_never_empty=False)
        self._output: list[Any] = []
        self._entry = Entry(None)
        self._rate_hz = coding_of(plan.format).rate_hz
        self._encode = ENCODE[getattr(plan.format, "type", "audio/pcm")]
        self._most_bytes = bytes_of(DELTA_MS, self._rate_hz)
        self._place: dict[str, Any] = {}
        self._told_bytes = 0
        self._awaited: steps.Step | None = None

    @property
    def tokens(self) -> int:
        """What it came to, input and output; estimated where the engine has not said."""
        return tokens_of(self._steps, self.plan.respond, self._rate_hz)

    def begin(self) -> None:
        """Say that it has begun, and tell the engine."""
        if self._playout is not None:
            self._playout.begin(self.plan.id)
        self._outbox.send(events.ResponseCreated, response=self._shown("in_progress", None))
        self._outbox.tell(self.plan.respond)

    def refuse(self, broke: talk_events.Broke, at: float) -> None:
        """Say that it has begun and failed; the engine is told nothing."""
        self._outbox.send(events.ResponseCreated, response=self._shown("in_progress", None))
        self.take(broke, at)

    def take(self, word: talk_events.FromEngine, at: float) -> bool:
        """Tell what follows from a word of the engine; whether it is over."""
        word = self._limited(_AS[type(word)](word) if type(word) in _AS else word)
        if type(word) not in _UNTOLD:
            self._perform(self._steps.take(word), at)
        return self._steps.over

    def cancel(self, reason: Literal["turn_detected", "client_cancelled"], at: float) -> None:
        """End it here, closing all that is open."""
        self._outbox.tell(commands.Cancel(self.plan.id))
        self._perform(self._steps.cancel(), at, reason)

    def abandon(self) -> None:
        """End it where nobody is there any more to be told."""
        self._outbox.tell(commands.Cancel(self.plan.id))
        self._steps.cancel()

    def _limited(self, word: talk_events.FromEngine) -> talk_events.FromEngine:
        """The word, or the end of an answer that has become too long to be told whole."""
        text = getattr(word, "text", None)
        if text is None:
            return word
        self._told_bytes += len(msgspec.json.encode(text))
        if self._told_bytes <= TOLD_LIMIT_BYTES or self._steps.over:
            return word
        self._outbox.tell(commands.Cancel(self.plan.id))
        return talk_events.Ended(self.plan.id, "length")

    # What follows from the engine's words

    def _perform(self, done: Sequence[steps.Step], at: float, cancelled_by: str | None = None) -> None:
        if self._awaited is not None:
            done, self._awaited = [self._awaited, *done], None
        for step in done:
            if isinstance(step, steps.Finished):
                self._finish(step, cancelled_by)
                if self._playout is not None:
                    self._playout.finish(self.plan.id, at)
            elif isinstance(step, steps.ItemDone) and step.item.call is not None and step is done[-1]:
                # Clients answer a call, and ask for the next response, as soon as it is complete: that has to find this response over.
                self._awaited = step
            else:
                _PERFORM[type(step)](self, step, at)

    def _item_added(self, step: steps.ItemAdded, _at: float) -> None:
        self._told_bytes += ITEM_BYTES
        item = self._wire(step.item, "in_progress")
        self._place = {"response_id": self.plan.id, "item_id": step.item.id, "output_index": step.item.index}
        self._entry = Entry(item, is_open=True)
        self._outbox.send(events.ResponseOutputItemAdded, response_id=self.plan.id, output_index=step.item.index, item=item)
        if self._conversation is not None:
            previous_id = self._conversation.add(self._entry)
            self._outbox.send(events.ConversationItemAdded, previous_item_id=previous_id, item=item)

    def _part_added(self, step: steps.PartAdded, _at: float) -> None:
        self._told_bytes += ITEM_BYTES
        part: AudioContent | TextContent = TextContent(text="")
        if step.part.slot is Slot.SOUND:
            self._entry.recordings[step.part.index] = Recording(self._rate_hz)
            part = AudioContent(transcript="")
        self._outbox.send(events.ResponseContentPartAdded, **self._place, content_index=step.part.index, part=part)

    def _grew(self, step: steps.Grew, _at: float) -> None:
        index = step.part.index
        kind: Any = events.ResponseOutputTextDelta
        if step.part.slot is Slot.SOUND:
            kind = events.ResponseOutputAudioTranscriptDelta
            recording = self._entry.recordings[index]
            recording.words.append((recording.length_bytes, step.text))
        for at in range(0, len(step.text), MOST_CHARACTERS):
            self._outbox.send(kind, **self._place, content_index=index, delta=step.text[at : at + MOST_CHARACTERS])

    def _sounded(self, step: steps.Sounded, at: float) -> None:
        if not self.has_sounded:
            self.has_sounded, self.sounded_at = True, at
        self._entry.recordings[step.part.index].add(step.pcm)
        length_ms = ms_of(len(step.pcm), self._rate_hz)
        self.sound_ms += length_ms
        playout = self._playout
        if playout is not None and not playout.queue(self.plan.id, self._place["item_id"], step.part.index, length_ms, at):
            return
        for pcm in _split(step.pcm, self._most_bytes):
            self._outbox.send(events.ResponseOutputAudioDelta, **self._place, content_index=step.part.index, delta=self._encode(pcm))

    def _call_grew(self, step: steps.CallGrew, _at: float) -> None:
        assert step.item.call is not None
        for at in range(0, len(step.text), MOST_CHARACTERS):
            delta = step.text[at : at + MOST_CHARACTERS]
            self._outbox.send(events.ResponseFunctionCallArgumentsDelta, **self._place, call_id=step.item.call.call_id, delta=delta)

    def _part_done(self, step: steps.PartDone, at: float) -> None:
        place = {**self._place, "content_index": step.part.index}
        text = step.part.text
        part: AudioContent | TextContent
        if step.part.slot is Slot.SOUND:
            if self._playout is not None:
                self._playout.close(self._place["item_id"], step.part.index, at)
            self._outbox.send(events.ResponseOutputAudioDone, **place)
            self._outbox.send(events.ResponseOutputAudioTranscriptDone, **place, transcript=text)
            part = AudioContent(transcript=text)
        else:
            self._outbox.send(events.ResponseOutputTextDone, **place, text=text)
            part = TextContent(text=text)
        self._outbox.send(events.ResponseContentPartDone, **place, part=part)

    def _item_done(self, step: steps.ItemDone, _at: float) -> None:
        item = self._wire(step.item, step.item.status)
        if isinstance(item, FunctionCallItem):
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            self._outbox.send(events.ResponseFunctionCallArgumentsDone, **self._place, **call)
        self._output.append(item)
        entry, conversation = self._entry, self._conversation
        entry.is_open = False
        entry.item = cut_short(item, entry)
        if conversation is not None and conversation.find(item.id) is entry:
            self._outbox.send(events.ConversationItemDone, previous_item_id=conversation.previous_id(step.item.id), item=item)
        self._outbox.send(events.ResponseOutputItemDone, response_id=self.plan.id, output_index=step.item.index, item=item)

    def _finish(self, step: steps.Finished, cancelled_by: str | None) -> None:
        details: StatusDetails | None = None
        match step.outcome:
            case "cancelled":
                details = StatusDetails(type="cancelled", reason=cancelled_by or "client_cancelled")
            case "incomplete":
                details = StatusDetails(type="incomplete", reason=step.reason or UNSET)
            case "failed":
                assert step.broke is not None
                error = StatusError(type=step.broke.type, code=step.broke.code, message=step.broke.message)
                details = StatusDetails(type="failed", error=error)
            case "completed":
                pass
        self._outbox.send(events.ResponseDone, response=self._shown(step.outcome, details))

    # How it looks

    def _shown(self, status: Any, details: StatusDetails | None) -> Response:
        plan = self.plan
        return Response(
            object="realtime.response",
            id=plan.id,
            status=status,
            status_details=details,
            output=list(self._output),
            conversation_id=plan.conversation_id,
            output_modalities=list(plan.modalities),
            max_output_tokens=plan.max_output_tokens,
            temperature=UNSET if plan.temperature is None else plan.temperature,
            audio=ResponseAudio(output=ResponseAudioOutput(format=plan.format, voice=voice_name(plan.voice))),
            usage=_usage(self._steps.used),
            metadata=plan.metadata,
        )

    def _wire(self, item: steps.Item, status: response_table.Status) -> Any:
        if item.call is not None:
            return FunctionCallItem(
                id=item.id,
                object="realtime.item",
                status=status,
                name=item.call.name,
                call_id=item.call.call_id,
                arguments=item.arguments,
            )
        content: list[Part] = [
            OutputAudio(transcript=part.text) if part.slot is Slot.SOUND else OutputText(text=part.text)
            for part in (item.parts if status != "in_progress" else ())
        ]
        return MessageItem(id=item.id, object="realtime.item", status=status, role="assistant", content=content)


def cut_short(item: Any, entry: Entry) -> Any:
    """An item as it is kept: where the client stopped listening, what was said is not known to the word, so that no transcript is left."""
    cut = [index for index, recording in entry.recordings.items() if recording.cut_ms is not None]
    if not cut:
        return item
    content: list[Part] = [OutputAudio() if index in cut else part for index, part in enumerate(item.content)]
    return MessageItem(id=item.id, object=item.object, status=item.status, role=item.role, content=content)


def _split(pcm: bytes, most: int) -> Iterator[bytes]:
    if len(pcm) <= most:
        yield pcm
        return
    for at in range(0, len(pcm), most):
        yield pcm[at : at + most]


def _usage(used: talk_events.Used | None) -> Usage | None:
    if used is None:
        return None
    text_in, text_out = usage_kinds(used)
    cached_text = max(0, used.cached_tokens - used.cached_audio_tokens)
    return Usage(
        total_tokens=used.input_tokens + used.output_tokens,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        input_token_details=InputTokenDetails(
            cached_tokens=used.cached_tokens,
            text_tokens=text_in,
            audio_tokens=used.input_audio_tokens,
            image_tokens=used.input_image_tokens,
            cached_tokens_details=CachedTokensDetails(text_tokens=cached_text, audio_tokens=used.cached_audio_tokens, image_tokens=0),
        ),
        output_token_details=OutputTokenDetails(text_tokens=text_out, audio_tokens=used.output_audio_tokens),
    )


_PERFORM: dict[type, Callable[[Answer, Any, float], None]] = {
    steps.ItemAdded: Answer._item_added,
    steps.PartAdded: Answer._part_added,
    steps.Grew: Answer._grew,
    steps.Sounded: Answer._sounded,
    steps.CallGrew: Answer._call_grew,
    steps.PartDone: Answer._part_done,
    steps.ItemDone: Answer._item_done,
}

_AS: dict[type, Callable[[Any], talk_events.FromEngine]] = {
    talk_events.Refusal: lambda word: talk_events.Text(word.id, word.text),
    talk_events.ItemBreak: lambda word: talk_events.ItemBreak(word.id),
}
"""What the protocol has no form of its own for; and items, whose names an engine can't know to be new in the conversation."""

_UNTOLD = frozenset(
    {
        talk_events.Reasoning,
        talk_events.ReasoningBreak,
        talk_events.Sealed,
        talk_events.Annotated,
        talk_events.HostedBegan,
        talk_events.HostedMoved,
        talk_events.HostedDone,
    }
)
"""What the protocol has no place for."""
