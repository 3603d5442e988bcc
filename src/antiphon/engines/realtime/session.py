"""
The session on one connection to a Realtime server: engine commands become client events, server events become engine
events.

It does no I/O and reads no clock: client events go to `send`, engine events are returned, and the time is a parameter.
A Realtime conversation has one response at a time; further requests get out-of-band responses.
"""

from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any

from msgspec import UNSET, Struct

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.engine_api.engine import deliver_nowhere
from antiphon.engines.realtime.faults import HARMLESS_ERROR_CODES, ErrorMapper, error_from_event
from antiphon.engines.realtime.input_audio import InputAudioTracker
from antiphon.engines.realtime.items import to_wire_item
from antiphon.engines.realtime.mirror import Mirror
from antiphon.engines.realtime.request import encode_audio, input_session, output_session, response_params, wire_rate_hz
from antiphon.engines.realtime.response import RealtimeResponseReader
from antiphon.engines.upstream.http_exchange import OVERRUN_BYTES, ResponseLimits
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
"""How long the server may take to end a cancelled response."""

MAX_UNCOMMITTED_MS = 120_000
"""Uncommitted audio that is kept, to be sent again on the next connection."""

MAX_APPEND_BYTES = 256 << 10

CORRELATION_KEY = "client_event_id"
"""The metadata key, customary among clients, that links a response to its `response.create`."""

DEFAULT_LIMITS = ResponseLimits()

_DEFAULT_REQUEST = commands.Respond(id="", history=(), truncate=True)


class AudioLog:
    """
    The client's audio, across connections.

    Attributes:
        configuration: the latest; None before the first.
        duration_ms: of all audio; the conversation's clock.
        uncommitted_pcm: the audio since the last commit, while the client commits by itself (no turn detection).
    """

    def __init__(self) -> None:
        self.configuration: commands.Configure | None = None
        self.duration_ms = 0.0
        self.uncommitted_pcm = bytearray()

    @property
    def rate_hz(self) -> int:
        return self.configuration.rate_hz if self.configuration is not None else 24_000

    @property
    def uncommitted_ms(self) -> float:
        return duration_ms(len(self.uncommitted_pcm), self.rate_hz)

    def set_configuration(self, configuration: commands.Configure) -> None:
        """Apply a configuration to the audio that follows."""
        # With turn detection the server commits; and audio of another rate can't be sent again as it is.
        if configuration.turn_detection is not None or configuration.rate_hz != self.rate_hz:
            self.uncommitted_pcm.clear()
        self.configuration = configuration

    def append(self, pcm: bytes) -> None:
        self.duration_ms += duration_ms(len(pcm), self.rate_hz)
        if self.configuration is None or self.configuration.turn_detection is None:
            self.uncommitted_pcm += pcm
            del self.uncommitted_pcm[: -size_bytes(MAX_UNCOMMITTED_MS, self.rate_hz)]


class ResponseTimeouts(Struct, frozen=True):
    """How long a response may take to begin, and between two of its events."""

    first_event_s: float
    idle_s: float


class RealtimeUpstreamSession:
    """
    A session, from its `session.created` on.

    Args:
        send: takes the client events.
        audio_log: the client's audio before and from now on.
        new_turn_id: makes the id of a turn.
        item_id_token: makes item ids unique among connections.
        map_error: maps a server's error to one for the client.
        dialect: the server's.
        limits: on each response.

    Attributes:
        cut_count: of responses that came to more than they may.
        has_overrun: whether the server goes on with such a response, although it was told to stop.
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
        limits: ResponseLimits = DEFAULT_LIMITS,
    ) -> None:
        self.cut_count = 0
        self.has_overrun = False
        self._limits = limits
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
        audio_log = self._audio_log
        if audio_log.configuration is not None:
            self._configure(audio_log.configuration)
        for start in range(0, len(audio_log.uncommitted_pcm), MAX_APPEND_BYTES):
            self._append_audio(bytes(audio_log.uncommitted_pcm[start : start + MAX_APPEND_BYTES]))

    # Commands

    def handle_command(self, command: commands.EngineCommand, now: float) -> list[engine_events.EngineEvent]:
        """Send what the command needs; returns the events that follow at once."""
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
                pass  # the API has no preparation: a `response.create` would be answered
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen() | commands.Relay():
                pass  # by its capabilities it has no full duplex
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
            self._waiting_requests[request.id] = request  # it waits for `response.done`: a conversation has one response at a time
            return []
        response = RealtimeResponseReader(request, None if request.out_of_band or main is not None else self._mirror, now)
        response.event_id = self._new_event_id()
        try:
            input_items = self._prepare_input(response)
        except ClientError as error:
            return [engine_events.ResponseFailed.from_error(request.id, error)]
        if (session := output_session(request, self._dialect)) != self._session_config:
            self._session_config = session
            self._send(SessionUpdate(event_id=self._new_event_id(), session=session))
        self._responses[request.id] = response
        self._pending_responses.append(response)
        if not response.is_out_of_band:
            self._main_response = response
        correlation = {CORRELATION_KEY: response.event_id} if response.is_out_of_band else None
        params = response_params(request, input_items, correlation, self._dialect)
        self._send(ResponseCreate(event_id=response.event_id, response=params))
        return []

    def _prepare_input(self, response: RealtimeResponseReader) -> Opt[list[InputItem]]:
        """
        The input of an out-of-band response; for any other the conversation is made equal to its history, and there is
        none.
        """
        history = response.request.history
        if response.is_out_of_band:
            return (
                UNSET
                if self._main_response is None and self._mirror.is_in_sync(history)
                else self._mirror.to_input_items(history, self._to_wire_item)
            )
        response_params(response.request, UNSET, None, self._dialect)  # raises for what the API can't express, before anything is sent
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
        response = self._responses.get(id)
        if response is not None and not response.is_cancelled:
            response.is_cancelled = True
            response.last_activity_at = now
            self._send_cancel(response)
        return []

    def _send_cancel(self, response: RealtimeResponseReader) -> None:
        # `response.cancel` without an id cancels the response in the conversation. So an out-of-band response is
        # cancelled when its id is known, at `response.created`.
        if response.response_id is not None or not response.is_out_of_band:
            self._send(ResponseCancel(response_id=response.response_id or UNSET))

    # Server events

    def handle_event(self, event: ServerEvent | Unknown, now: float, size_bytes: int = 0) -> list[engine_events.EngineEvent]:
        """The engine events of a server event, which came in so many bytes."""
        batch: list[engine_events.EngineEvent] = []
        response = self._active_responses.get(getattr(event, "response_id", ""))
        if response is not None:
            if not response.is_cut:  # else it has `CANCEL_TIMEOUT_S`, however much still comes
                response.last_activity_at = now
            response.read(event, batch)
            batch += self._count(response, size_bytes, now)
        elif (handle := _EVENT_HANDLERS.get(type(event))) is not None:
            handle(self, event, now, batch)
        return batch

    def _count(self, response: RealtimeResponseReader, size_bytes: int, now: float) -> list[engine_events.EngineEvent]:
        """Count an event of a response; the last event of one that comes to more than it may."""
        response.received_bytes += size_bytes
        response.received_count += 1
        limits = self._limits
        if not response.is_cut and response.received_bytes <= limits.max_bytes and response.received_count <= limits.max_events:
            return []
        if response.is_cut:
            self.has_overrun = self.has_overrun or response.received_bytes > OVERRUN_BYTES
            return []
        response.is_cut = True
        response.received_bytes = 0
        self.cut_count += 1
        batch = _end_response(response, None, "length")
        if not response.is_cancelled:
            response.is_cancelled = True
            response.last_activity_at = now
            self._send_cancel(response)
        return batch

    def _on_speech_started(self, event: events.InputAudioBufferSpeechStarted, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_speech_started(event, out)

    def _on_speech_stopped(self, event: events.InputAudioBufferSpeechStopped, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_speech_stopped(event, out)

    def _on_audio_committed(self, event: events.InputAudioBufferCommitted, _now: float, out: list[engine_events.EngineEvent]) -> None:
        for client_event in self._input_audio.on_committed(event, self._audio_log.duration_ms, out):
            self._send(client_event)

    def _on_transcript(self, event: ServerEvent, _now: float, out: list[engine_events.EngineEvent]) -> None:
        self._input_audio.on_transcript(event, out)

    def _on_item_added(self, event: events.PositionedItemEvent, _now: float, _out: list[engine_events.EngineEvent]) -> None:
        item_id = getattr(event.item, "id", UNSET)
        if isinstance(item_id, str):
            self._mirror.register(item_id)

    def _on_item_deleted(self, event: events.ConversationItemDeleted, _now: float, _out: list[engine_events.EngineEvent]) -> None:
        if (item := self._mirror.find(event.item_id)) is not None:
            self._mirror.remove(item)

    def _on_response_created(self, event: events.ResponseCreated, now: float, _out: list[engine_events.EngineEvent]) -> None:
        wire_response = event.response
        if wire_response.id in self._active_responses:
            return
        response = self._match_pending(wire_response.metadata)
        if response is None:
            # A server that responds without a request, although `create_response` is false.
            self._send(ResponseCancel(response_id=wire_response.id))
            return
        self._pending_responses.remove(response)
        response.last_activity_at = now
        response.response_id = wire_response.id
        self._active_responses[wire_response.id] = response
        if response.is_cancelled and response.is_out_of_band:
            self._send_cancel(response)

    def _on_response_done(self, event: events.ResponseDone, now: float, out: list[engine_events.EngineEvent]) -> None:
        wire_response = event.response
        response = self._active_responses.pop(wire_response.id, None)
        if response is None and wire_response.status == "failed":
            # Some failures come without `response.created`.
            response = self._match_pending(wire_response.metadata)
            if response is not None:
                self._pending_responses.remove(response)
        if response is not None:
            out += response.end(wire_response, self._map_error)
            out += self._finish_response(response, now)

    def _on_error(self, event: events.ErrorEvent | Unknown, now: float, out: list[engine_events.EngineEvent]) -> None:
        error = error_from_event(event)
        event_id = error.event_id or ""
        response = next((response for response in self._pending_responses if response.event_id == event_id), None)
        if response is None and event_id in self._responses_by_create_id:
            out += self._fail_response(self._responses_by_create_id[event_id], self._map_error(error), now)
        elif response is None and (failures := self._input_audio.fail_commit(event_id)) is not None:
            out += failures
        elif response is None and error.code in HARMLESS_ERROR_CODES:
            return
        elif response is not None or (self._pending_responses and not event_id):
            # An error without an `event_id` is taken for one about the oldest request.
            response = response or self._pending_responses[0]
            self._pending_responses.remove(response)
            out += _end_response(response, self._map_error(error))
            out += self._finish_response(response, now)
        else:
            api_error = self._map_error(error)
            out.append(engine_events.EngineError(message=api_error.message, code=api_error.code, type=api_error.type))

    def _on_unknown(self, event: Unknown, now: float, out: list[engine_events.EngineEvent]) -> None:
        # An error in a shape that the dialect does not have.
        if event.type == "error":
            self._on_error(event, now, out)

    def _match_pending(self, metadata: Opt[dict[str, str] | None]) -> RealtimeResponseReader | None:
        """
        The request that a response belongs to: by its metadata, else the oldest one, in the conversation before
        out-of-band.
        """
        correlation = (metadata or {}).get(CORRELATION_KEY)
        correlation_matches = (response for response in self._pending_responses if response.event_id == correlation)
        main = (response for response in self._pending_responses if not response.is_out_of_band)
        return next(correlation_matches, None) or next(main, None) or next(iter(self._pending_responses), None)

    # The end of responses

    def _finish_response(self, response: RealtimeResponseReader, now: float) -> list[engine_events.EngineEvent]:
        """The server is done with the response; waiting requests follow."""
        self._responses.pop(response.request.id, None)
        self._responses_by_create_id = {
            event_id: creator for event_id, creator in self._responses_by_create_id.items() if creator is not response
        }
        if response is not self._main_response:
            return []
        self._main_response = None
        batch: list[engine_events.EngineEvent] = []
        requests, self._waiting_requests = self._waiting_requests, {}
        for request in requests.values():
            batch += self._respond(request, now)
        return batch

    def _fail_response(self, response: RealtimeResponseReader, error: ApiError, now: float) -> list[engine_events.EngineEvent]:
        """Fail a response and cancel it upstream."""
        if response.is_over:
            return []
        batch = _end_response(response, error)
        if not response.is_cancelled:
            response.is_cancelled = True
            response.last_activity_at = now
            self._send_cancel(response)
        return batch

    def check_timeouts(self, now: float) -> list[engine_events.EngineEvent]:
        """Fail the responses that are overdue."""
        batch: list[engine_events.EngineEvent] = []
        for response in [*self._pending_responses, *self._active_responses.values()]:
            # The event loop may call a timer up to a millisecond early.
            if now < self._deadline(response) - 0.001:
                continue
            if response.is_cancelled:
                batch += self._expire_response(response, now)
                continue
            phase = "sent nothing more of its answer" if response.has_output else "did not begin to answer"
            message = f"The model server {phase} for {self._deadline(response) - response.last_activity_at:g} seconds."
            batch += self._fail_response(response, UpstreamError(message, status=504, code="upstream_timeout"), now)
        return batch

    def next_deadline(self) -> float:
        """When to call `check_timeouts` next; infinite without a response."""
        return min(map(self._deadline, [*self._pending_responses, *self._active_responses.values()]), default=inf)

    def reset_timeouts(self, now: float) -> None:
        """Start the timeouts again, because nothing was read while the client was behind."""
        for response in [*self._pending_responses, *self._active_responses.values()]:
            response.last_activity_at = now

    def close(self, error: ApiError) -> list[engine_events.EngineEvent]:
        """The connection is lost: end everything with this error, and send nothing more."""
        self._send = deliver_nowhere  # it refers to the connection, which has this
        batch: list[engine_events.EngineEvent] = []
        for response in [*self._pending_responses, *self._active_responses.values()]:
            batch += _end_response(response, error)
        batch += [engine_events.ResponseFailed.from_error(id, error) for id in self._waiting_requests]
        return batch + self._input_audio.close(self._audio_log.duration_ms)

    def _deadline(self, response: RealtimeResponseReader) -> float:
        timeouts = self._timeouts
        timeout_s = CANCEL_TIMEOUT_S if response.is_cancelled else timeouts.idle_s if response.has_output else timeouts.first_event_s
        return response.last_activity_at + timeout_s

    def _expire_response(self, response: RealtimeResponseReader, now: float) -> list[engine_events.EngineEvent]:
        if response in self._pending_responses:
            self._pending_responses.remove(response)
        self._active_responses.pop(response.response_id or "", None)
        self.has_overrun = self.has_overrun or response.is_cut
        return _end_response(response, None) + self._finish_response(response, now)

    def _new_event_id(self) -> str:
        return f"event_{next(self._event_numbers)}"


def _end_response(
    response: RealtimeResponseReader, error: ApiError | None, reason: engine_events.EndReason = "cancelled"
) -> list[engine_events.EngineEvent]:
    """The last event of a response that the server did not end; without an error it ends for that reason."""
    if response.is_over:
        return []
    response.is_over = True
    if response.is_cancelled or error is None:
        return [engine_events.ResponseEnded(response.request.id, "cancelled" if response.is_cancelled else reason)]
    return [engine_events.ResponseFailed.from_error(response.request.id, error)]


_EVENT_HANDLERS: dict[
    type[ServerEvent | Unknown], Callable[[RealtimeUpstreamSession, Any, float, list[engine_events.EngineEvent]], None]
] = {
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
