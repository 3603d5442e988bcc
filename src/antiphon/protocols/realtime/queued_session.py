"""
A Realtime session whose client asked for the queue: it is told its place until there is a worker, and only then does
the session begin.

The Realtime API knows no queue. `antiphon.queued` is ours, and comes only where the client asks for it, before
`session.created`: clients that check types would stumble over it.
"""

from collections.abc import Sequence

from antiphon.engine_api import events as engine_events
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.protocols.realtime.outbox import RealtimeOutbox
from antiphon.protocols.realtime.session import RealtimeMessage, RealtimeSession, UnreadableRealtimeEvent
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Hangup, NewId, Shutdown
from antiphon.wire.codec.types import encode
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import InputAudioBufferAppend

EARLY_EVENTS_LIMIT, EARLY_BYTES_LIMIT = 64, 512 << 10
"""How many events, and how much of them, are kept for the session to come."""


class QueuedRealtimeSession:
    """
    The machine of a session with a queue before it.

    Attributes:
        end_reason: why the session ended; None before.
    """

    def __init__(self, config: RealtimeSessionConfig, new_id: NewId) -> None:
        self._session = RealtimeSession(config, new_id)
        self._config = config
        self._outbox = RealtimeOutbox(new_id)
        self._is_waiting = True
        self._wait_end: str | None = None
        self._early: list[RealtimeMessage] = []
        self._early_bytes = 0

    @property
    def end_reason(self) -> str | None:
        return self._wait_end or self._session.end_reason

    def handle(self, event: Event[RealtimeMessage]) -> list[Effect[events.ServerEvent]]:
        if not self._is_waiting:
            is_config = isinstance(event, FromClient) and isinstance(event.message, RealtimeSessionConfig)
            return [] if is_config else self._session.handle(event)
        if self._wait_end is not None:
            return []
        match event:
            case FromEngine(batch, at):
                return self._handle_engine(batch, at)
            case FromClient(message):
                self._keep(message)
            case Hangup():
                self._end("client_left", None)
            case Shutdown(error):
                self._end("halted", error)
            case _:
                pass
        return self._outbox.drain()

    def _handle_engine(self, batch: Sequence[engine_events.EngineEvent], at: float) -> list[Effect[events.ServerEvent]]:
        for index, event in enumerate(batch):
            match event:
                case engine_events.QueueUpdate():
                    self._outbox.send(
                        events.QueuePosition,
                        ticket_id=event.id,
                        position=event.position,
                        queue_length=event.queue_length,
                        estimated_wait_s=round(event.wait_s, 1),
                    )
                case engine_events.WorkerAssigned():
                    return [*self._outbox.drain(), *self._begin(at), *self._session.handle(FromEngine(batch[index + 1 :], at))]
                case engine_events.EngineError() | engine_events.EngineLost():
                    error = ServerError(event.message, code=event.code)
                    self._send_error(error)
                    self._end("no_worker", error)
                    break
                case _:
                    pass
        return self._outbox.drain()

    def _begin(self, at: float) -> list[Effect[events.ServerEvent]]:
        """Let the session begin, with what the client has sent so far."""
        self._is_waiting = False
        messages: list[RealtimeMessage] = [self._config, *self._early]
        self._early.clear()
        return [effect for message in messages for effect in self._session.handle(FromClient(message, at))]

    def _keep(self, message: RealtimeMessage) -> None:
        if isinstance(message, RealtimeSessionConfig):  # it starts the session, which is not yet to begin
            return
        if isinstance(message, UnreadableRealtimeEvent):
            self._send_error(message.error, message.event_id)
            return
        # What is said before anybody listens would be answered as if it had just been said.
        is_audio = isinstance(message, InputAudioBufferAppend)
        if is_audio and self._config.has_output_buffer:  # a call's microphone sends whether it is its turn or not
            return
        size_bytes = len(encode(message))
        if is_audio or len(self._early) >= EARLY_EVENTS_LIMIT or self._early_bytes + size_bytes > EARLY_BYTES_LIMIT:
            error = ClientError("The session has not begun: wait for 'session.created'. This event was dropped.", code="not_ready")
            event_id = getattr(message, "event_id", None)
            self._send_error(error, event_id if isinstance(event_id, str) else None)
            return
        self._early.append(message)
        self._early_bytes += size_bytes

    def _send_error(self, error: ApiError, event_id: str | None = None) -> None:
        body = events.RealtimeError(type=error.type, code=error.code, message=error.message, param=error.param, event_id=event_id)
        self._outbox.send(events.ErrorEvent, error=body)

    def _end(self, reason: str, error: ApiError | None) -> None:
        self._wait_end = reason
        self._early.clear()
        self._outbox.effects.append(Close(error))
