"""
What a Realtime session does with a person's sound: the buffer, the turns, their items and their transcripts.

Where turns lie is the engine's to say; here every turn becomes one item, and its sound is in no other.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from antiphon.audio import bytes_of
from antiphon.engine_api import commands, events as talk_events
from antiphon.errors import ClientMistake
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import Conversation, Entry, Recording
from antiphon.protocols.realtime.input_buffer import PCM, InputBuffer
from antiphon.protocols.realtime.settings import AnySession, Opening, can_hear, coding_of, heard_as, sound_in
from antiphon.protocols.realtime.turn import Sign, Step, Turn
from antiphon.protocols.session import Mint
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.items import InputAudio, MessageItem, Part
from antiphon.wire.realtime.session import Transcription
from antiphon.wire.responses.parts import Logprob

APPEND_LIMIT_BYTES = 15 * (1 << 20) * 3 // 4
"""The most sound in one event: 15 MiB of base64."""

TURNS_REMEMBERED = 64
"""How many turns back a transcript may still come."""


class Speech:
    """
    A person's sound, from the client's events and the engine's words to items of the conversation.

    Attributes:
        buffer: what is no item yet.
        turn: the one that is open, or the next.
    """

    def __init__(self, opening: Opening, session: AnySession, outbox: Outbox, mint: Mint, conversation: Conversation) -> None:
        self.buffer = InputBuffer(PCM)
        self.turn = Turn()
        self._opening = opening
        self._outbox = outbox
        self._mint = mint
        self._conversation = conversation
        self._listens = opening.abilities.listens
        self._told: commands.Configure | None = None
        self._item_ids: dict[str, str] = {}
        self._detects = False
        self.configure(session)

    def configure(self, session: AnySession) -> None:
        """
        The session has been set; what is heard from here on is taken so.

        Raises:
            ClientMistake: the sound in the buffer stands in the way.
        """
        wanted = heard_as(session)
        coding = coding_of(sound_in(session).format)
        is_waiting = self.turn.is_open or (not self._detects and self.buffer.held_bytes)
        if coding.rate_hz != self.buffer.rate_hz and is_waiting:
            raise ClientMistake(
                "Cannot change the input audio format while there is audio in the input audio buffer. Commit or clear it first.",
                code="invalid_value",
                param="session.audio.input.format",
            )
        self.buffer.recode(coding)
        self._detects = wanted.turn_detection is not None and self._listens
        if not self._detects and Step.TELL_STOP in self.turn.take(Sign.UNWATCHED):
            self._tell_stop(self.buffer.now_ms)
        if self._listens and wanted != self._told:
            self._told = wanted
            self._outbox.tell(wanted)

    # What the client does

    def append(self, event: InputAudioBufferAppend) -> None:
        """
        More sound.

        Raises:
            ClientMistake: nobody here can hear, or it is too much; none of it was taken.
        """
        if not can_hear(self._opening.abilities):
            raise deaf(self._opening.model)
        if len(event.audio) > APPEND_LIMIT_BYTES:
            raise ClientMistake(
                f"Invalid 'audio': {len(event.audio)} bytes of audio are too many for one event. "
                f"The maximum is {APPEND_LIMIT_BYTES} bytes.",
                code="invalid_value",
                param="audio",
            )
        pcm = self.buffer.append(event.audio)
        if self._detects and not self.turn.is_open:
            self.buffer.let_go()
        if self._listens and pcm:
            self._outbox.tell(commands.Hear(pcm))

    def commit(self) -> None:
        """
        The sound so far is a turn.

        Raises:
            ClientMistake: there is too little of it.
        """
        pcm = self.buffer.commit()
        was_open = self.turn.is_open
        if Step.TELL_STOP in self.turn.take(Sign.COMMITTED):
            self._tell_stop(self.buffer.now_ms)
        turn_id = self.turn.id if was_open else self._mint("turn")
        item_id = self.turn.item_id if was_open else self._mint("item")
        if self._listens:
            self._outbox.tell(commands.Commit(turn_id))
        self._commit(item_id, turn_id, pcm)

    def clear(self) -> None:
        """The sound so far is dropped."""
        if Step.TELL_STOP in self.turn.take(Sign.DROPPED):
            self._tell_stop(self.buffer.now_ms)
        self.buffer.clear()
        if self._listens:
            self._outbox.tell(commands.Forget())
        self._outbox.send(events.InputAudioBufferCleared)

    # What the engine says

    def started(self, word: talk_events.SpeechStarted) -> bool:
        """Someone speaks; whether that is news."""
        if not self._detects or Step.TELL_START not in self.turn.take(Sign.STARTED):
            return False
        turn = self.turn
        turn.id, turn.item_id = word.id, self._mint("item")
        turn.start_ms = min(max(0, word.at_ms), self.buffer.now_ms)
        self._remember(word.id, turn.item_id)
        self._outbox.send(events.InputAudioBufferSpeechStarted, audio_start_ms=turn.start_ms, item_id=turn.item_id)
        return True

    def stopped(self, word: talk_events.SpeechStopped) -> bool:
        """The turn is over and an item; False where it had been over before."""
        turn = self.turn
        if turn.id != word.id or Step.COMMIT not in turn.take(Sign.STOPPED):
            return False
        end_ms = min(max(word.at_ms, turn.start_ms), self.buffer.now_ms)
        self._tell_stop(end_ms)
        # Of sound that came faster than it could be listened to, not all is held; the engine knows the words of it all the same.
        length_bytes = bytes_of(end_ms - turn.start_ms, self.buffer.rate_hz)
        self._commit(turn.item_id, word.id, self.buffer.commit_turn(turn.start_ms, end_ms), length_bytes)
        return True

    def time_out(self, since_ms: int) -> None:
        """Nobody has said anything since then: an empty turn, that the model may answer."""
        item_id = self._mint("item")
        now_ms = self.buffer.now_ms
        self._outbox.send(
            events.InputAudioBufferTimeoutTriggered, audio_start_ms=min(since_ms, now_ms), audio_end_ms=now_ms, item_id=item_id
        )
        self.buffer.clear()
        if self._listens:
            self._outbox.tell(commands.Forget())
        self._commit(item_id, None, b"")

    def heard(
        self, word: talk_events.Heard | talk_events.HeardSegment | talk_events.HeardAll | talk_events.NotHeard, session: AnySession
    ) -> None:
        """Tell what was heard in a turn, if anyone wants to know and its item is still there."""
        item_id = self._item_ids.get(word.id)
        is_over = isinstance(word, talk_events.HeardAll | talk_events.NotHeard)
        if is_over:
            self._item_ids.pop(word.id, None)
        is_open = self.turn.is_open and self.turn.item_id == item_id
        entry = self._conversation.find(item_id) if item_id is not None else None
        if item_id is None or (entry is None and (not is_open or is_over)):
            return
        if entry is not None and isinstance(word, talk_events.HeardAll):
            _write_down(entry, word.transcript)
        if sound_in(session).transcription:
            _TOLD[type(word)](self._outbox, {"item_id": item_id, "content_index": 0}, word)

    # How a turn becomes an item

    def _tell_stop(self, at_ms: int) -> None:
        self._outbox.send(events.InputAudioBufferSpeechStopped, audio_end_ms=at_ms, item_id=self.turn.item_id)

    def _commit(self, item_id: str, turn_id: str | None, pcm: bytes, length_bytes: int = 0) -> None:
        if turn_id is not None:
            self._remember(turn_id, item_id)
        recording = Recording(self.buffer.rate_hz, pcm, max(len(pcm), length_bytes), turn_id if self._listens else None)
        content: list[Part] = [InputAudio(transcript=None)]
        item = MessageItem(id=item_id, object="realtime.item", status="completed", role="user", content=content)
        previous_id = self._conversation.last_id
        self._outbox.send(events.InputAudioBufferCommitted, previous_item_id=previous_id, item_id=item_id)
        self._conversation.add(Entry(item, {0: recording}))
        self._outbox.send(events.ConversationItemAdded, previous_item_id=previous_id, item=item)
        self._outbox.send(events.ConversationItemDone, previous_item_id=previous_id, item=item)

    def _remember(self, turn_id: str, item_id: str) -> None:
        self._item_ids[turn_id] = item_id
        if len(self._item_ids) > TURNS_REMEMBERED:
            del self._item_ids[next(iter(self._item_ids))]

    def not_transcribed(self, session: AnySession) -> None:
        """Tell of the turn just committed that nobody writes it down, where that was asked of an engine that can't."""
        item_id = self._conversation.last_id
        wanted = isinstance(sound_in(session).transcription, Transcription)
        if not wanted or self._opening.abilities.transcribes or item_id is None:
            return
        word = talk_events.NotHeard(
            id="",
            message=f"The model '{self._opening.model}' does not transcribe.",
            code="unsupported_parameter",
            type="invalid_request_error",
        )
        _not_heard(self._outbox, {"item_id": item_id, "content_index": 0}, word)


def deaf(model: str) -> ClientMistake:
    """Sound was sent to a model that can't hear."""
    return ClientMistake(
        f"Unsupported content type: audio input is not supported with the '{model}' model.", code="unsupported_content_type", param="audio"
    )


def _write_down(entry: Entry, transcript: str) -> None:
    recording = entry.recordings.get(0)
    if recording is None or not isinstance(entry.item, MessageItem):
        return
    recording.transcript = transcript
    item = entry.item
    content: list[Part] = [InputAudio(transcript=transcript), *item.content[1:]]
    entry.item = MessageItem(id=item.id, object=item.object, status=item.status, role=item.role, content=content)


# How it is told


def _logprobs(logprobs: tuple[talk_events.TokenLogprob, ...]) -> Any:
    if not logprobs:
        return UNSET
    return [
        Logprob(token=each.chosen.token, logprob=each.chosen.logprob, bytes=list(each.chosen.bytes or each.chosen.token.encode()))
        for each in logprobs
    ]


def _heard(outbox: Outbox, place: dict[str, Any], word: talk_events.Heard) -> None:
    outbox.send(events.InputAudioTranscriptionDelta, **place, delta=word.text, logprobs=_logprobs(word.logprobs))


def _segment(outbox: Outbox, place: dict[str, Any], word: talk_events.HeardSegment) -> None:
    fields = {"text": word.text, "id": f"seg_{place['item_id']}_{word.start_s:.3f}", "speaker": word.speaker}
    outbox.send(events.InputAudioTranscriptionSegment, **place, **fields, start=word.start_s, end=word.end_s)


def _heard_all(outbox: Outbox, place: dict[str, Any], word: talk_events.HeardAll) -> None:
    usage: Any = events.DurationUsage(seconds=word.seconds) if word.seconds is not None else _tokens(word)
    languages = [events.Language(code=code) for code in word.languages] if word.languages else UNSET
    fields = {"transcript": word.transcript, "usage": usage, "languages": languages, "logprobs": _logprobs(word.logprobs)}
    outbox.send(events.InputAudioTranscriptionCompleted, **place, **fields)


def _tokens(word: talk_events.HeardAll) -> Any:
    return events.TokensUsage(
        total_tokens=word.input_tokens + word.output_tokens,
        input_tokens=word.input_tokens,
        input_token_details=events.TokenDetails(
            text_tokens=max(0, word.input_tokens - word.input_audio_tokens), audio_tokens=word.input_audio_tokens
        ),
        output_tokens=word.output_tokens,
    )


def _not_heard(outbox: Outbox, place: dict[str, Any], word: talk_events.NotHeard) -> None:
    type = "transcription_error" if word.type == "server_error" else word.type
    error = events.TranscriptionError(type=type, code=word.code or UNSET, message=word.message)  # a null is none of their values
    outbox.send(events.InputAudioTranscriptionFailed, **place, error=error)


_TOLD: dict[type, Callable[[Outbox, dict[str, Any], Any], None]] = {
    talk_events.Heard: _heard,
    talk_events.HeardSegment: _segment,
    talk_events.HeardAll: _heard_all,
    talk_events.NotHeard: _not_heard,
}
