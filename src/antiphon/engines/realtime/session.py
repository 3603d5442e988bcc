"""
One connection to a Realtime server, seen from inside: words become its client events, its server events become words.

It decides and never waits: what it sends goes to `send`, what it says is returned, and times are given to it. The upstream answers one
thing at a time in its conversation; what is asked meanwhile is answered beside it.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import UNSET, Struct

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.engines.realtime.faults import HARMLESS_ERROR_CODES, ErrorMapper, error_from_event
from antiphon.engines.realtime.input_audio import InputAudioTracker
from antiphon.engines.realtime.items import to_wire_item
from antiphon.engines.realtime.mirror import Mirror
from antiphon.engines.realtime.request import encode_audio, input_session, output_session, response_params, wire_rate_hz
from antiphon.engines.realtime.response import RealtimeResponseReader
from antiphon.errors import ApiError, ClientError, UpstreamError
from antiphon.wire.codec.types import Opt, Unknown
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import (
    ClientEvent,
    ConversationItemCreate,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.items import InputItem, Item
from antiphon.wire.realtime.server_events import ServerEvent

CANCEL_TIMEOUT_S = 5.0
"""How long an upstream may take to end an answer that was cancelled."""

MAX_UNCOMMITTED_MS = 120_000
"""How much sound is kept until it is committed by hand, for a connection that is lost before."""

MAX_APPEND_BYTES = 256 << 10

CORRELATION_KEY = "client_event_id"
"""The key, usual among clients, under which an answer's metadata says what asked for it."""

_DEFAULT_REQUEST = commands.Respond(id="", history=(), truncate=True)


class AudioLog:
    """
    What a conversation has heard, on whatever connection.

    Attributes:
        configure: how it is to be taken; None before anybody said so.
        heard_ms: all of it: the conversation's clock.
        held: what is not committed, where that is done by hand.
    """

    def __init__(self) -> None:
        self.configuration: commands.Configure | None = None
        self.duration_ms = 0.0
        self.uncommitted_pcm = bytearray()

    @property
    def rate_hz(self) -> int:
        """Samples a second."""
        return self.configuration.rate_hz if self.configuration is not None else 24_000

    @property
    def uncommitted_ms(self) -> float:
        """How long what is held sounds."""
        return duration_ms(len(self.uncommitted_pcm), self.rate_hz)

    def set_configuration(self, configuration: commands.Configure) -> None:
        """From here on it is to be taken so."""
        if configuration.turn_detection is not None or configuration.rate_hz != self.rate_hz:
            self.uncommitted_pcm.clear()
        self.configuration = configuration

    def append(self, pcm: bytes) -> None:
        """More sound."""
        self.duration_ms += duration_ms(len(pcm), self.rate_hz)
        if self.configuration is None or self.configuration.turn_detection is None:
            self.uncommitted_pcm += pcm
            del self.uncommitted_pcm[: -size_bytes(MAX_UNCOMMITTED_MS, self.rate_hz)]


class ResponseTimeouts(Struct, frozen=True):
    """How long an answer may take to begin, and between two events of it."""

    first_event_s: float
    idle_s: float


class RealtimeUpstreamSession:
    """
    What is said over one connection, from its `session.created` on.

    Args:
        send: takes what goes upstream.
        intake: what was heard before, and is from now on.
        mint_turn: a new turn's id.
        token: makes the ids of items unique.
        judge: what an error of the upstream's is to the client.
        dialect: which the upstream speaks.
    """

    def __init__(
        self,
        send: Callable[[ClientEvent], None],
        audio_log: AudioLog,
        new_turn_id: Callable[[], str],
        item_id_token: str,
        timeouts: ResponseTimeouts,
        map_error: ErrorMapper,
        dialect: DialectName,
    ) -> None:
        self._send = send
        self._audio_log = audio_log
        self._timeouts = timeouts
        self._map_error = map_error
        self._dialect = dialect
        self._event_numbers = count(1)
        item_numbers = count(1)
        self._mirror = Mirror(lambda: f"item_{item_id_token}{next(item_numbers)}")
        self._input_audio = InputAudioTracker(self._mirror, new_turn_id, audio_log.duration_ms - audio_log.uncommitted_ms)
        self._session_config = output_session(_DEFAULT_REQUEST, dialect)
        self._responses: dict[str, RealtimeResponseReader] = {}
        self._pending_responses: deque[RealtimeResponseReader] = deque()
        self._active_responses: dict[str, RealtimeResponseReader] = {}
        self._responses_by_create_id: dict[str, RealtimeResponseReader] = {}
        self._main_response: RealtimeResponseReader | None = None
        self._waiting_requests: dict[str, commands.Respond] = {}
        self._restore_input()

    def _restore_input(self) -> None:
        intake = self._audio_log
        if intake.configuration is not None:
            self._configure(intake.configuration)
        for start in range(0, len(intake.uncommitted_pcm), MAX_APPEND_BYTES):
            self._append_audio(bytes(intake.uncommitted_pcm[start : start + MAX_APPEND_BYTES]))

    # What it is told

    def handle_command(self, command: commands.EngineCommand, now: float) -> list[engine_events.EngineEvent]:
        """Take a word; what there is to say at once."""
        match command:
            case commands.AppendAudio(pcm):
                self._audio_log.append(pcm)
                self._append_audio(pcm)
            case commands.CommitAudio(id):
                self._audio_log.uncommitted_pcm.clear()
                event_id = self._new_event_id()
                self._input_audio.commit(id, event_id)
                self._send(InputAudioBufferCommit(event_id=event_id))
            case commands.ClearAudio():
                self._audio_log.uncommitted_pcm.clear()
                self._input_audio.discard_open_turn()
                self._send(InputAudioBufferClear())
            case commands.Configure():
                self._audio_log.set_configuration(command)
                self._configure(command)
            case commands.Respond():
                return self._respond(command, now)
            case commands.Cancel(id):
                return self._cancel(id, now)
            case commands.Prepare():
                pass  # a server that is told of it would answer it
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass  # its abilities say that it does no full duplex
        return []

    def _append_audio(self, pcm: bytes) -> None:
        rate_hz = self._audio_log.rate_hz
        self._send(InputAudioBufferAppend(audio=encode_audio(pcm, rate_hz, wire_rate_hz(rate_hz))))

    def _configure(self, configure: commands.Configure) -> None:
        self._input_audio.has_transcription = configure.transcription is not None
        if configure.turn_detection is None:
            self._input_audio.discard_open_turn()
        self._send(SessionUpdate(event_id=self._new_event_id(), session=input_session(configure)))

    def _respond(self, request: commands.Respond, now: float) -> list[engine_events.EngineEvent]:
        main = self._main_response
        if main is not None and (main.is_cancelled or main.is_over) and not request.out_of_band:
            self._waiting_requests[request.id] = request  # nearly over: then it is this one's turn
            return []
        answer = RealtimeResponseReader(request, None if request.out_of_band or main is not None else self._mirror, now)
        answer.event_id = self._new_event_id()
        try:
            given = self._prepare_input(answer)
        except ClientError as mistake:
            return [engine_events.ResponseFailed.from_error(request.id, mistake)]
        if (session := output_session(request, self._dialect)) != self._session_config:
            self._session_config = session
            self._send(SessionUpdate(event_id=self._new_event_id(), session=session))
        self._responses[request.id] = answer
        self._pending_responses.append(answer)
        if not answer.is_out_of_band:
            self._main_response = answer
        correlation = {CORRELATION_KEY: answer.event_id} if answer.is_out_of_band else None
        self._send(ResponseCreate(event_id=answer.event_id, response=response_params(request, given, correlation, self._dialect)))
        return []

    def _prepare_input(self, response: RealtimeResponseReader) -> Opt[list[InputItem]]:
        """What the answer is given in place of the conversation upstream, which else is made equal to its history."""
        history = response.request.history
        if response.is_out_of_band:
            return (
                UNSET
                if self._main_response is None and self._mirror.is_in_sync(history)
                else self._mirror.to_input_items(history, self._to_wire_item)
            )
        response_params(response.request, UNSET, None, self._dialect)  # what can't be asked is found out before anything is changed
        for event in self._mirror.sync(history, self._to_wire_item):
            if isinstance(event, ConversationItemCreate):
                event.event_id = self._new_event_id()
                self._responses_by_create_id[event.event_id] = response
            self._send(event)
        return UNSET

    def _to_wire_item(self, history_item: engine_history.HistoryItem, item_id: str) -> Item:
        wire_hz = wire_rate_hz(self._audio_log.rate_hz)
        return to_wire_item(history_item, item_id, lambda pcm, rate_hz: encode_audio(pcm, rate_hz, wire_hz))

    def _cancel(self, id: str, now: float) -> list[engine_events.EngineEvent]:
        if self._waiting_requests.pop(id, None) is not None:
            return [engine_events.ResponseEnded(id, "cancelled")]
        answer = self._responses.get(id)
        if answer is not None and not answer.is_cancelled:
            answer.is_cancelled = True
            answer.last_activity_at = now
            self._send_cancel(answer)
        return []

    def _send_cancel(self, response: RealtimeResponseReader) -> None:
        # One beside the conversation has no name before it has begun; it is called off then.
        if response.response_id is not None or not response.is_out_of_band:
            self._send(ResponseCancel(response_id=response.response_id or UNSET))

    # What it hears

    def handle_event(self, event: ServerEvent | Unknown, now: float) -> list[engine_events.EngineEvent]:
        """Take an event; what there is to say."""
        words: list[engine_events.EngineEvent] = []
        answer = self._active_responses.get(getattr(event, "response_id", ""))
        if answer is not None:
            answer.last_activity_at = now
            answer.read(event, words)
        elif (hearing := _EVENT_HANDLERS.get(type(event))) is not None:
            hearing(self, event, now, words)
        return words

    def _on_speech_started(self, event: events.InputAudioBufferSpeechStarted, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_speech_started(event, out)

    def _on_speech_stopped(self, event: events.InputAudioBufferSpeechStopped, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_speech_stopped(event, out)

    def _on_audio_committed(self, event: events.InputAudioBufferCommitted, _now: float, out: list[engine_events.EngineEvent]) -> None:
        for effect in self._input_audio.on_committed(event, self._audio_log.duration_ms, out):
            self._send(effect)

    def _on_transcript(self, event: ServerEvent, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_transcript(event, out)

    def _on_item_added(self, event: events.PositionedItemEvent, _now: float, _out: list[engine_events.EngineEvent]) -> None:
        item_id = getattr(event.item, "id", UNSET)
        if isinstance(item_id, str):
            self._mirror.register(item_id)

    def _on_item_deleted(self, event: events.ConversationItemDeleted, _now: float, _out: list[engine_events.EngineEvent]) -> None:
        if (placed := self._mirror.find(event.item_id)) is not None:
            self._mirror.remove(placed)

    def _on_response_created(self, event: events.ResponseCreated, now: float, _out: list[engine_events.EngineEvent]) -> None:
        response = event.response
        if response.id in self._active_responses:
            return
        answer = self._match_pending(response.metadata)
        if answer is None:
            # Nobody asked: a server that answers by itself all the same.
            self._send(ResponseCancel(response_id=response.id))
            return
        self._pending_responses.remove(answer)
        answer.last_activity_at = now
        answer.response_id = response.id
        self._active_responses[response.id] = answer
        if answer.is_cancelled and answer.is_out_of_band:
            self._send_cancel(answer)

    def _on_response_done(self, event: events.ResponseDone, now: float, out: list[engine_events.EngineEvent]) -> None:
        response = event.response
        answer = self._active_responses.pop(response.id, None)
        if answer is None and response.status == "failed" and (answer := self._match_pending(response.metadata)) is not None:
            self._pending_responses.remove(answer)  # some failures come before they have begun
        if answer is not None:
            out += answer.end(response, self._map_error)
            out += self._finish_response(answer, now)

    def _on_error(self, event: events.ErrorEvent | Unknown, now: float, out: list[engine_events.EngineEvent]) -> None:
        error = error_from_event(event)
        event_id = error.event_id or ""
        answer = next((answer for answer in self._pending_responses if answer.event_id == event_id), None)
        if answer is None and event_id in self._responses_by_create_id:
            out += self._fail_response(self._responses_by_create_id[event_id], self._map_error(error), now)
        elif answer is None and (unheard := self._input_audio.fail_commit(event_id)) is not None:
            out += unheard
        elif answer is None and error.code in HARMLESS_ERROR_CODES:
            return
        elif answer is not None or (self._pending_responses and not event_id):
            # One that says nothing of what it is about is taken to be about what is waited for.
            answer = answer or self._pending_responses[0]
            self._pending_responses.remove(answer)
            out += _end_response(answer, self._map_error(error))
            out += self._finish_response(answer, now)
        else:
            fault = self._map_error(error)
            out.append(engine_events.EngineError(message=fault.message, code=fault.code, type=fault.type))

    def _on_unknown(self, event: Unknown, now: float, out: list[engine_events.EngineEvent]) -> None:
        if event.type == "error":
            self._on_error(event, now, out)

    def _match_pending(self, metadata: Any) -> RealtimeResponseReader | None:
        """Which answer it is that begins: as it says itself, else the first that was asked for, one in the conversation before others."""
        correlation = (metadata or {}).get(CORRELATION_KEY)
        named = (answer for answer in self._pending_responses if answer.event_id == correlation)
        main = (answer for answer in self._pending_responses if not answer.is_out_of_band)
        return next(named, None) or next(main, None) or next(iter(self._pending_responses), None)

    # How answers end

    def _finish_response(self, response: RealtimeResponseReader, now: float) -> list[engine_events.EngineEvent]:
        """The upstream is done with the answer; whoever waited for that has a turn."""
        self._responses.pop(response.request.id, None)
        self._responses_by_create_id = {
            event_id: whose for event_id, whose in self._responses_by_create_id.items() if whose is not response
        }
        if response is not self._main_response:
            return []
        self._main_response = None
        words: list[engine_events.EngineEvent] = []
        waiting, self._waiting_requests = self._waiting_requests, {}
        for ask in waiting.values():
            words += self._respond(ask, now)
        return words

    def _fail_response(self, response: RealtimeResponseReader, error: ApiError, now: float) -> list[engine_events.EngineEvent]:
        """The answer is of no use, though the upstream may not know."""
        if response.is_over:
            return []
        words = _end_response(response, error)
        if not response.is_cancelled:
            response.is_cancelled = True
            response.last_activity_at = now
            self._send_cancel(response)
        return words

    def check_timeouts(self, now: float) -> list[engine_events.EngineEvent]:
        """End what takes too long."""
        words: list[engine_events.EngineEvent] = []
        for answer in [*self._pending_responses, *self._active_responses.values()]:
            if now < self._deadline(answer) - 0.001:
                continue
            if answer.is_cancelled:
                words += self._expire_response(answer, now)
                continue
            phase = "fell silent in the middle of its answer" if answer.has_output else "did not begin to answer"
            message = f"The model server {phase} for {self._deadline(answer) - answer.last_activity_at:g} seconds."
            words += self._fail_response(answer, UpstreamError(message, status=504, code="upstream_timeout"), now)
        return words

    def next_deadline(self) -> float | None:
        """When to look at the clock next."""
        return min(map(self._deadline, [*self._pending_responses, *self._active_responses.values()]), default=None)

    def reset_timeouts(self, now: float) -> None:
        """The time that has passed does not count: nothing was read."""
        for answer in [*self._pending_responses, *self._active_responses.values()]:
            answer.last_activity_at = now

    def close(self, error: ApiError) -> list[engine_events.EngineEvent]:
        """The connection is gone."""
        words: list[engine_events.EngineEvent] = []
        for answer in [*self._pending_responses, *self._active_responses.values()]:
            words += _end_response(answer, error)
        words += [engine_events.ResponseFailed.from_error(id, error) for id in self._waiting_requests]
        return words + self._input_audio.close(self._audio_log.duration_ms)

    def _deadline(self, response: RealtimeResponseReader) -> float:
        patience = self._timeouts
        patience_s = CANCEL_TIMEOUT_S if response.is_cancelled else patience.idle_s if response.has_output else patience.first_event_s
        return response.last_activity_at + patience_s

    def _expire_response(self, response: RealtimeResponseReader, now: float) -> list[engine_events.EngineEvent]:
        if response in self._pending_responses:
            self._pending_responses.remove(response)
        self._active_responses.pop(response.response_id or "", None)
        return _end_response(response, None) + self._finish_response(response, now)

    def _new_event_id(self) -> str:
        return f"event_{next(self._event_numbers)}"


def _end_response(response: RealtimeResponseReader, error: ApiError | None) -> list[engine_events.EngineEvent]:
    """The last word of an answer that the upstream did not end."""
    if response.is_over:
        return []
    response.is_over = True
    if response.is_cancelled or error is None:
        return [engine_events.ResponseEnded(response.request.id, "cancelled")]
    return [engine_events.ResponseFailed.from_error(response.request.id, error)]


_EVENT_HANDLERS: dict[type[Any], Callable[[RealtimeUpstreamSession, Any, float, list[engine_events.EngineEvent]], None]] = {
    events.InputAudioBufferSpeechStarted: RealtimeUpstreamSession._on_speech_started,
    events.InputAudioBufferSpeechStopped: RealtimeUpstreamSession._on_speech_stopped,
    events.InputAudioBufferCommitted: RealtimeUpstreamSession._on_audio_committed,
    events.InputAudioTranscriptionDelta: RealtimeUpstreamSession._on_transcript,
    events.InputAudioTranscriptionSegment: RealtimeUpstreamSession._on_transcript,
    events.InputAudioTranscriptionCompleted: RealtimeUpstreamSession._on_transcript,
    events.InputAudioTranscriptionFailed: RealtimeUpstreamSession._on_transcript,
    events.ConversationItemAdded: RealtimeUpstreamSession._on_item_added,
    events.ConversationItemCreated: RealtimeUpstreamSession._on_item_added,
    events.ConversationItemDeleted: RealtimeUpstreamSession._on_item_deleted,
    events.ResponseCreated: RealtimeUpstreamSession._on_response_created,
    events.ResponseDone: RealtimeUpstreamSession._on_response_done,
    events.ErrorEvent: RealtimeUpstreamSession._on_error,
    Unknown: RealtimeUpstreamSession._on_unknown,
}
