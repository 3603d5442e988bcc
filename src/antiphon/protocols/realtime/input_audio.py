"""
The input audio of a Realtime session: the buffer, the turns, their items and their transcripts.

The engine says where turns start and end; here every turn becomes one item, and no audio is in two items.
"""

from msgspec import UNSET

from antiphon.audio import size_bytes
from antiphon.engine_api import commands, events as engine_events
from antiphon.errors import ClientError
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import ConversationEntry, ConversationItems, ItemAudio
from antiphon.protocols.realtime.input_buffer import PCM_CODEC, InputBuffer
from antiphon.protocols.realtime.settings import (
    AnySession,
    RealtimeSessionConfig,
    audio_input,
    codec_of,
    configure_command,
    has_audio_input,
)
from antiphon.protocols.realtime.turn import SpeechTurn, TurnAction, TurnEvent
from antiphon.protocols.session import InputTranscript, NewId, SendToEngine
from antiphon.wire.codec.types import Opt
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.items import InputAudio, MessageItem, Part
from antiphon.wire.realtime.session import Transcription
from antiphon.wire.responses.parts import Logprob

APPEND_LIMIT_BYTES = 15 * (1 << 20) * 3 // 4
"""How much audio one event may have: 15 MiB of base64 (Realtime reference: `input_audio_buffer.append`)."""

MAX_PENDING_TRANSCRIPTS = 64
"""How many turns back a transcript may still arrive."""

InputTranscriptEvent = (
    engine_events.InputTranscriptDelta
    | engine_events.InputTranscriptSegment
    | engine_events.InputTranscriptDone
    | engine_events.InputTranscriptFailed
)


class InputAudioStream:
    """
    The client's audio, on its way to items of the conversation.

    Attributes:
        buffer: the audio that is no item yet.
        turn: the open turn, or the next.
    """

    def __init__(
        self,
        config: RealtimeSessionConfig,
        session: AnySession,
        outbox: Outbox[events.ServerEvent],
        new_id: NewId,
        conversation: ConversationItems,
    ) -> None:
        self.buffer = InputBuffer(PCM_CODEC)
        self.turn = SpeechTurn()
        self._config = config
        self._outbox = outbox
        self._new_id = new_id
        self._conversation = conversation
        self._takes_audio = has_audio_input(config.capabilities)
        self._engine_listens = config.capabilities.listens
        self._last_configure: commands.Configure | None = None
        self._item_ids_by_turn: dict[str, str] = {}
        self._detects_turns = False
        self.configure(session)

    def configure(self, session: AnySession) -> None:
        """
        Apply the session's audio settings.

        Raises:
            ClientError: they change the sample rate while the buffer holds audio.
        """
        command = configure_command(session, self._config.capabilities)
        codec = codec_of(audio_input(session).format)
        holds_audio = self.turn.is_open or (not self._detects_turns and self.buffer.buffered_bytes)
        if codec.rate_hz != self.buffer.rate_hz and holds_audio:
            raise ClientError(
                "Cannot change the input audio format while there is audio in the input audio buffer. Commit or clear it first.",
                code="invalid_value",
                param="session.audio.input.format",
            )
        self.buffer.set_codec(codec)
        self._detects_turns = command.turn_detection is not None and self._engine_listens
        if not self._detects_turns and TurnAction.SEND_SPEECH_STOPPED in self.turn.apply(TurnEvent.DETECTION_DISABLED):
            self._send_speech_stopped(self.buffer.now_ms)
        if self._engine_listens and command != self._last_configure:
            self._last_configure = command
            self._outbox.send_to_engine(command)

    @property
    def announced_item_id(self) -> str | None:
        """The id that `speech_started` gave the item of the open turn; no other item may take it."""
        return self.turn.item_id if self.turn.is_open else None

    # Client events

    def append(self, event: InputAudioBufferAppend) -> None:
        """
        Buffer audio and pass it on to an engine that listens.

        Raises:
            ClientError: the model takes no audio, or it is too much; none of it was used.
        """
        if not self._takes_audio:
            raise audio_unsupported(self._config.model)
        if len(event.audio) > APPEND_LIMIT_BYTES:
            raise ClientError(
                f"Invalid 'audio': {len(event.audio)} bytes of audio are too many for one event. "
                f"The maximum is {APPEND_LIMIT_BYTES} bytes.",
                code="invalid_value",
                param="audio",
            )
        # Realtime: an append has no answer.
        pcm = self.buffer.append(event.audio)
        if self._detects_turns and not self.turn.is_open:
            self.buffer.trim()
        if self._engine_listens and pcm:
            self._outbox.effects.append(SendToEngine(commands.AppendAudio(pcm)))  # fifty a second

    def commit(self) -> None:
        """
        Make the buffered audio a turn.

        Raises:
            ClientError: there is too little of it.
        """
        pcm = self.buffer.commit()
        was_open = self.turn.is_open
        if TurnAction.SEND_SPEECH_STOPPED in self.turn.apply(TurnEvent.AUDIO_COMMITTED):
            self._send_speech_stopped(self.buffer.now_ms)
        # Realtime: a client may commit while the user speaks. The item then has the id that `speech_started` gave it.
        turn_id = self.turn.id if was_open else self._new_id("turn")
        item_id = self.turn.item_id if was_open else self._new_id("item")
        if self._engine_listens:
            self._outbox.send_to_engine(commands.CommitAudio(turn_id))
        self._add_item(item_id, turn_id, pcm)

    def clear(self) -> None:
        """Drop the buffered audio."""
        if TurnAction.SEND_SPEECH_STOPPED in self.turn.apply(TurnEvent.AUDIO_CLEARED):
            self._send_speech_stopped(self.buffer.now_ms)
        self.buffer.clear()
        if self._engine_listens:
            self._outbox.send_to_engine(commands.ClearAudio())
        self._outbox.send(events.InputAudioBufferCleared)

    # Engine events

    def start_turn(self, event: engine_events.SpeechStarted) -> bool:
        """Open a turn; False if turn detection is off or a turn is open already."""
        if not self._detects_turns or TurnAction.SEND_SPEECH_STARTED not in self.turn.apply(TurnEvent.SPEECH_STARTED):
            return False
        turn = self.turn
        turn.id, turn.item_id = event.id, self._new_id("item")
        # Realtime: `audio_start_ms` counts all audio of the session, and includes the padding before the speech.
        turn.start_ms = min(max(0, event.at_ms), self.buffer.now_ms)
        self._remember(event.id, turn.item_id)
        # Realtime: names the item that the speech will become.
        self._outbox.send(events.InputAudioBufferSpeechStarted, audio_start_ms=turn.start_ms, item_id=turn.item_id)
        return True

    def stop_turn(self, event: engine_events.SpeechStopped) -> bool:
        """Close the turn and add its item; False if it is not the open turn."""
        turn = self.turn
        if turn.id != event.id or TurnAction.COMMIT_TURN not in turn.apply(TurnEvent.SPEECH_STOPPED):
            return False
        end_ms = min(max(event.at_ms, turn.start_ms), self.buffer.now_ms)
        self._send_speech_stopped(end_ms)
        # If audio came faster than the engine could listen, the buffer has lost some of it; the engine still knows all
        # of the turn.
        length_bytes = size_bytes(end_ms - turn.start_ms, self.buffer.rate_hz)
        self._add_item(turn.item_id, event.id, self.buffer.commit_turn(turn.start_ms, end_ms), length_bytes)
        return True

    def time_out(self, since_ms: int) -> None:
        """Add an empty turn, so that the model may speak up after `idle_timeout_ms` of silence."""
        item_id = self._new_id("item")
        now_ms = self.buffer.now_ms
        self._outbox.send(
            events.InputAudioBufferTimeoutTriggered, audio_start_ms=min(since_ms, now_ms), audio_end_ms=now_ms, item_id=item_id
        )
        self.buffer.clear()
        if self._engine_listens:
            self._outbox.send_to_engine(commands.ClearAudio())
        # Realtime: `timeout_triggered` is followed by an empty audio item, and by a response to it.
        self._add_item(item_id, None, b"")

    def handle_transcript(
        self,
        event: InputTranscriptEvent,
        session: AnySession,
    ) -> None:
        """Store a transcript with its item, and send it to the client if the session transcribes."""
        # Realtime: a transcript comes in its own time, maybe after the response, or after that of a later item.
        item_id = self._item_ids_by_turn.get(event.id)
        is_over = isinstance(event, engine_events.InputTranscriptDone | engine_events.InputTranscriptFailed)
        if is_over:
            self._item_ids_by_turn.pop(event.id, None)
        is_open = self.turn.is_open and self.turn.item_id == item_id
        entry = self._conversation.find(item_id) if item_id is not None else None
        if item_id is None or (entry is None and (not is_open or is_over)):
            return
        is_requested = bool(audio_input(session).transcription)
        if entry is not None and isinstance(event, engine_events.InputTranscriptDone):
            _set_transcript(entry, event.transcript, is_visible=is_requested)
        if is_requested:
            _TRANSCRIPT_SENDERS[type(event)](self, event, item_id)
        elif isinstance(event, engine_events.InputTranscriptDone):
            # Realtime: without `transcription` the client gets no transcripts, though the engine may need them.
            self._outbox.observe(InputTranscript(item_id=item_id, transcript=event.transcript))

    # From turns to items

    def _send_speech_stopped(self, at_ms: int) -> None:
        self._outbox.send(events.InputAudioBufferSpeechStopped, audio_end_ms=at_ms, item_id=self.turn.item_id)

    def _add_item(self, item_id: str, turn_id: str | None, pcm: bytes, length_bytes: int = 0) -> None:
        if turn_id is not None:
            self._remember(turn_id, item_id)
        recording = ItemAudio(self.buffer.rate_hz, pcm, max(len(pcm), length_bytes), turn_id if self._engine_listens else None)
        # Realtime: the transcript is null until there is one; the audio itself is only in
        # `conversation.item.retrieved`.
        content: list[Part] = [InputAudio(transcript=None)]
        item = MessageItem(id=item_id, object="realtime.item", status="completed", role="user", content=content)
        previous_id = self._conversation.last_id
        # Realtime: `committed` comes for every item of audio, also for turns that the server found; clients that wait
        # for it hang otherwise.
        self._outbox.send(events.InputAudioBufferCommitted, previous_item_id=previous_id, item_id=item_id)
        self._conversation.add(ConversationEntry(item, {0: recording}))
        self._outbox.send(events.ConversationItemAdded, previous_item_id=previous_id, item=item)
        self._outbox.send(events.ConversationItemDone, previous_item_id=previous_id, item=item)

    def _remember(self, turn_id: str, item_id: str) -> None:
        self._item_ids_by_turn[turn_id] = item_id
        if len(self._item_ids_by_turn) > MAX_PENDING_TRANSCRIPTS:
            del self._item_ids_by_turn[next(iter(self._item_ids_by_turn))]

    def report_missing_transcription(self, session: AnySession) -> None:
        """
        Fail the transcription of the turn just committed, if the session wants it and the engine can't transcribe.
        """
        item_id = self._conversation.last_id
        is_requested = isinstance(audio_input(session).transcription, Transcription)
        if not is_requested or self._config.capabilities.transcribes or item_id is None:
            return
        failure = engine_events.InputTranscriptFailed(
            id="",
            message=f"The model '{self._config.model}' does not transcribe.",
            code="unsupported_parameter",
            type="invalid_request_error",
        )
        self._send_transcript_failed(failure, item_id)

    # Transcript events for the client

    def _send_transcript_delta(self, event: engine_events.InputTranscriptDelta, item_id: str) -> None:
        self._outbox.send(
            events.InputAudioTranscriptionDelta, item_id=item_id, content_index=0, delta=event.text, logprobs=_wire_logprobs(event.logprobs)
        )

    def _send_transcript_segment(self, event: engine_events.InputTranscriptSegment, item_id: str) -> None:
        fields = {"text": event.text, "id": f"seg_{item_id}_{event.start_s:.3f}", "speaker": event.speaker}
        self._outbox.send(
            events.InputAudioTranscriptionSegment, item_id=item_id, content_index=0, **fields, start=event.start_s, end=event.end_s
        )

    def _send_transcript_done(self, event: engine_events.InputTranscriptDone, item_id: str) -> None:
        # Realtime GA: `usage` is required; openai-agents loses the transcript without it.
        usage = events.DurationUsage(seconds=event.seconds) if event.seconds is not None else _token_usage(event)
        languages = [events.Language(code=code) for code in event.languages] if event.languages else UNSET
        fields = {"transcript": event.transcript, "usage": usage, "languages": languages, "logprobs": _wire_logprobs(event.logprobs)}
        self._outbox.send(events.InputAudioTranscriptionCompleted, item_id=item_id, content_index=0, **fields)

    def _send_transcript_failed(self, event: engine_events.InputTranscriptFailed, item_id: str) -> None:
        type = "transcription_error" if event.type == "server_error" else event.type
        error = events.TranscriptionError(type=type, code=event.code or UNSET, message=event.message)  # clients reject a null code
        self._outbox.send(events.InputAudioTranscriptionFailed, item_id=item_id, content_index=0, error=error)


def audio_unsupported(model: str) -> ClientError:
    """The error for audio that is sent to a model without audio input."""
    return ClientError(
        f"Unsupported content type: audio input is not supported with the '{model}' model.", code="unsupported_content_type", param="audio"
    )


def _set_transcript(entry: ConversationEntry, transcript: str, *, is_visible: bool) -> None:
    """Keep the transcript for the model, and for the client if it asked for transcripts."""
    recording = entry.audio_by_part.get(0)
    if recording is None or not isinstance(entry.item, MessageItem):
        return
    recording.transcript = transcript
    if not is_visible:
        return
    item = entry.item
    content: list[Part] = [InputAudio(transcript=transcript), *item.content[1:]]
    entry.item = MessageItem(id=item.id, object=item.object, status=item.status, role=item.role, content=content)


# Transcript events for the client


def _wire_logprobs(logprobs: tuple[engine_events.TokenLogprob, ...]) -> Opt[list[Logprob]]:
    if not logprobs:
        return UNSET
    return [
        Logprob(token=each.token.token, logprob=each.token.logprob, bytes=list(each.token.bytes or each.token.token.encode()))
        for each in logprobs
    ]


def _token_usage(event: engine_events.InputTranscriptDone) -> events.TokensUsage:
    return events.TokensUsage(
        total_tokens=event.input_tokens + event.output_tokens,
        input_tokens=event.input_tokens,
        input_token_details=events.TokenDetails(
            text_tokens=max(0, event.input_tokens - event.input_audio_tokens), audio_tokens=event.input_audio_tokens
        ),
        output_tokens=event.output_tokens,
    )


_TRANSCRIPT_SENDERS = table(
    on(engine_events.InputTranscriptDelta, InputAudioStream._send_transcript_delta),
    on(engine_events.InputTranscriptSegment, InputAudioStream._send_transcript_segment),
    on(engine_events.InputTranscriptDone, InputAudioStream._send_transcript_done),
    on(engine_events.InputTranscriptFailed, InputAudioStream._send_transcript_failed),
)
