"""
A MiniCPM-o session: what the client, the engine and the clock say in, events and words out.

A session waits for a place, begins when the client says how, goes on until someone ends it, and is closed: `_CLIENT` and `_ENGINE` are
that as tables. A client that is early is not refused: what it says is kept until it can be taken. One event that can't be used costs that
event, and the client is told; what makes the session useless closes it.

Source: OpenBMB's documentation of the Realtime API of MiniCPM-o 4.5, and what its gateway does.
"""

import re
from collections.abc import Callable
from enum import Enum
from operator import itemgetter
from typing import Any

from msgspec import UNSET, Struct

from antiphon.engine_api import events as engine_events
from antiphon.errors import ApiError, ClientError, ServerError, UpstreamError, unsupported_value
from antiphon.protocols.minicpmo.chat import MinicpmoChat
from antiphon.protocols.minicpmo.duplex import MinicpmoDuplex, start_duplex_command
from antiphon.protocols.minicpmo.opening import MinicpmoSessionConfig as MinicpmoSessionConfig
from antiphon.protocols.minicpmo.outbox import MinicpmoOutbox
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Hangup, NewId, Shutdown, Tick, WakeAt
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import ChatAppend, DuplexAppend, SessionClose, SessionInit

PENDING_EVENTS_LIMIT = 16
"""The most events of an early client that are kept."""

PENDING_EVENTS_LIMIT_BYTES = 8 << 20
"""The most sound and pictures in them."""

CLIENT_ERRORS_LIMIT = 32
"""Events that can't be used, one after another, until the client is taken for broken."""

CLOSE_CODES: dict[str, int] = {
    "queue_full": 1013,
    "worker_busy": 1013,
    "service_unavailable": 1012,
    "server_shutting_down": 1012,
    "unsupported_value": 1008,
    "too_many_errors": 1008,
    "rate_limit_exceeded": 1013,
}
"""The WebSocket's close codes by the code of a `Close`'s fault. Without a fault it is 1000, with any other 1011."""

_SHUTDOWN_CODES = frozenset({"shutdown", "server_shutting_down"})
"""Codes of a `EngineLost` by which it is the server that goes away."""

_START_ERROR_CODES: dict[str, str] = {"backend_error": "session_failed"} | dict.fromkeys(_SHUTDOWN_CODES, "service_unavailable")
"""What a client that has not begun is told of a `EngineLost`; other codes it knows by their own names."""

_CLOSE_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SERVER_CLOSE_REASONS = frozenset(
    {"timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "too_many_errors", "unauthorized"}
)
"""Reasons that are the server's to give."""


class UnreadableMinicpmoEvent(Struct, frozen=True):
    """The client sent what is no event; `fault` says why."""

    error: ApiError


class ConnectionResumed(Struct, frozen=True):
    """The client is back on another connection."""


class ClientThrottled(Struct, frozen=True):
    """Nothing more of the client's is read for so many seconds: it sends too fast, and is not to be taken for silent."""

    duration_s: float


class MinicpmoState(Enum):
    """How far a session is."""

    WAITING = "waiting"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    LIVE = "live"
    CLOSED = "closed"


class MinicpmoSession:
    """
    The machine of one session; begun by its `Opening`, which comes as from the client.

    Attributes:
        state: how far it is.
        has_ended: why it is over; None while it isn't.
    """

    def __init__(self, config: MinicpmoSessionConfig, new_id: NewId) -> None:
        self.state = MinicpmoState.WAITING
        self.end_reason: str | None = None
        self._config = config
        self._new_id = new_id
        self._outbox = MinicpmoOutbox(config.session_id)
        self._init = SessionInit()
        self._mode_session: MinicpmoChat | MinicpmoDuplex | None = None
        self._pending_events: list[SessionInit | DuplexAppend | ChatAppend] = []
        self._pending_bytes = 0
        self._has_sent_queued = False
        self._client_errors = 0
        self._init_due_at = 0.0
        self._idle_since = 0.0
        self._wakes_at: float | None = None
        self._has_warned = False

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""
        if self.state is MinicpmoState.CLOSED:
            return []
        self._outbox.at = event.at
        if isinstance(event, FromEngine):
            for word in event.events:
                self._handle_engine_event(word)
        elif isinstance(event, FromClient):
            self._handle_client_event(event.message)
        else:
            self._handle_control_event(event)
        self._schedule_wake()
        return self._outbox.drain()

    def _handle_control_event(self, event: Event) -> None:
        match event:
            case Tick(at):
                self._wake(at)
            case Hangup():
                self._end("client_left", None)
            case Shutdown(fault):
                self._close_session("shutdown" if fault.code == "server_shutting_down" else "unauthorized", fault, fault.message)
            case _:
                pass

    def _handle_client_event(self, message: Any) -> None:
        taken = _ANY_STATE_HANDLERS.get(type(message)) or _CLIENT_HANDLERS[self.state].get(type(message))
        if taken is None:
            return
        try:
            taken(self, message)
        except ApiError as fault:
            self._outbox.send_error(fault)
            self._client_errors += 1
            if self._client_errors >= CLIENT_ERRORS_LIMIT:
                why = "Too many events one after another could not be used."
                self._close_session("too_many_errors", ClientError(why, code="too_many_errors"), why)
        else:
            if type(message) is not ClientThrottled:
                self._client_errors = 0

    def _handle_engine_event(self, event: engine_events.EngineEvent) -> None:
        taken = _ENGINE_HANDLERS[self.state].get(type(event))
        if taken is not None:
            taken(self, event)
        elif self.state is MinicpmoState.LIVE and self._mode_session is not None:
            if not self._mode_session.is_idle:  # the client's time to say something begins when its question was answered
                self._idle_since = self._outbox.at
            self._mode_session.handle_event(event)
            if self._mode_session.failure_message is not None:
                self._fail_session(self._mode_session.failure_message)

    # Waiting

    def _open(self, config: MinicpmoSessionConfig) -> None:
        if config.mode != "chat" and not config.capabilities.full_duplex:
            fault = unsupported_value("mode", config.mode, config.model, ["chat"])
            self._outbox.send_error(fault)
            self._end("refused", fault)
        elif not config.is_queued:
            self._on_worker_assigned(None)

    def _reject_event(self, event: UnreadableMinicpmoEvent) -> None:
        raise event.error

    def _on_connection_resumed(self, _event: ConnectionResumed) -> None:
        self._outbox.send(events.SessionResumed, session_id=self._config.session_id, metrics={"remaining_s": self._outbox.remaining_s})

    def _on_client_throttled(self, event: ClientThrottled) -> None:
        self._idle_since = max(self._idle_since, self._outbox.at + event.duration_s)

    def _on_queue_update(self, event: engine_events.QueueUpdate) -> None:
        kind = events.SessionQueueUpdate if self._has_sent_queued else events.SessionQueued
        self._has_sent_queued = True
        wait_s = UNSET if event.wait_s is None else round(event.wait_s, 1)
        self._outbox.send(kind, position=event.position, estimated_wait_s=wait_s, ticket_id=event.id, queue_length=event.queue_length)

    def _on_worker_assigned(self, _event: engine_events.WorkerAssigned | None) -> None:
        self.state = MinicpmoState.ASSIGNED
        self._outbox.send(events.SessionQueueDone)
        self._outbox.ends_at = self._outbox.at + self._config.max_duration_s
        self._init_due_at = self._outbox.at + self._config.init_timeout_s
        self._handle_pending_events()

    def _defer_event(self, message: SessionInit | DuplexAppend | ChatAppend) -> None:
        """Until there is a place, and the engine is there, what the client says waits."""
        size_bytes = _size_bytes(message)
        if len(self._pending_events) >= PENDING_EVENTS_LIMIT or self._pending_bytes + size_bytes > PENDING_EVENTS_LIMIT_BYTES:
            raise ClientError("The session has not begun: wait for 'session.created'. This event was dropped.", code="not_ready")
        self._pending_events.append(message)
        self._pending_bytes += size_bytes

    def _handle_pending_events(self) -> None:
        kept, self._pending_events, self._pending_bytes = self._pending_events, [], 0
        for message in kept:
            self._handle_client_event(message)

    def _on_engine_lost(self, event: engine_events.EngineLost) -> None:
        is_stopping = event.code in _SHUTDOWN_CODES
        if self.state is MinicpmoState.LIVE:
            code = "server_shutting_down" if is_stopping else "backend_error"
            self._close_session("shutdown" if is_stopping else "backend_error", UpstreamError(event.message, code=code), event.message)
        else:
            fault = ServerError(event.message, code=_START_ERROR_CODES.get(event.code, event.code))
            self._outbox.send_error(fault)
            self._end("lost", fault)

    # Beginning

    def _begin(self, init: SessionInit) -> None:
        self._init = init
        if self._config.mode == "chat":
            self._create_session({})
        else:
            self.state = MinicpmoState.PREPARING
            self._outbox.send_to_engine(start_duplex_command(self._config, init, self._outbox))

    def _begin_with_defaults(self, message: DuplexAppend | ChatAppend) -> None:
        """A client that begins with what it has to say wants the session as it usually is."""
        self._begin(SessionInit())
        self._handle_client_event(message)

    def _reject_second_init(self, _init: SessionInit) -> None:
        raise ClientError("The session has begun: 'session.init' comes once.", code="unexpected_event", param="type")

    def _on_ready(self, event: engine_events.DuplexStarted) -> None:
        self._create_session(event.metrics)

    def _create_session(self, metrics: dict[str, Any]) -> None:
        out, opening = self._outbox, self._config
        self.state = MinicpmoState.LIVE
        self._idle_since = out.at
        out.has_begun = True
        out.shows_remaining_at = (out.ends_at or out.at) - opening.warning_s
        side = MinicpmoChat if opening.mode == "chat" else MinicpmoDuplex
        self._mode_session = side(opening, self._init, out, self._new_id)
        out.send(
            events.SessionCreated,
            session_id=opening.session_id,
            mode="turn_based" if opening.mode == "chat" else "full_duplex",
            metrics=out.take_metrics({**metrics, "remaining_s": out.remaining_s}),
            resume_token=opening.resume_token if opening.resume_token is not None else UNSET,
        )
        self._handle_pending_events()

    def _on_start_failed(self, event: engine_events.ResponseFailed | engine_events.EngineError) -> None:
        self._on_engine_lost(engine_events.EngineLost(code="backend_error", message=event.message))

    # Going on

    def _append(self, message: Any) -> None:
        assert self._mode_session is not None
        self._mode_session.append(message)
        self._idle_since = self._outbox.at

    # Ending

    def _close_for_client(self, message: SessionClose) -> None:
        reason = message.reason or ""
        self._close_session(reason if _CLOSE_REASON.fullmatch(reason) and reason not in _SERVER_CLOSE_REASONS else "client_closed", None)

    def _fail_session(self, message: str) -> None:
        self._close_session("backend_error", UpstreamError(message, code="backend_error"), message)

    def _close_session(self, reason: str, fault: ApiError | None, message: str | None = None) -> None:
        """Tell the client that it is over, and end."""
        self._outbox.send(
            events.SessionClosed,
            session_id=self._config.session_id if self._outbox.has_begun else None,
            reason=reason,
            diagnostic=events.Diagnostic(message=message) if message else UNSET,
            usage=self._outbox.token_totals.wire_usage(),
        )
        self._end(reason, fault)

    def _end(self, reason: str, fault: ApiError | None) -> None:
        if self._mode_session is not None:
            self._mode_session.stop()
        self.state, self.end_reason = MinicpmoState.CLOSED, reason
        self._outbox.effects.append(Close(fault))

    # The clock

    def _wake(self, at: float) -> None:
        self._wakes_at = None
        due = self._next_deadline()
        if due is None or at < due[0]:
            return
        _, what = due
        if what == "warning":
            self._warn()
        else:
            self._close_session(what, None, _TIMEOUT_MESSAGES[what])

    def _warn(self) -> None:
        """Say once that the end is near: answers say so too, but there may be none."""
        out = self._outbox
        self._has_warned = True
        out.send(events.SessionWarning, session_id=out.session_id, remaining_s=out.remaining_s, metrics={"remaining_s": out.remaining_s})

    def _next_deadline(self) -> tuple[float, str] | None:
        """What comes next of itself, and when; None while the session only waits for a place."""
        out, opening = self._outbox, self._config
        if out.ends_at is None:
            return None
        dues = [(out.ends_at, "timeout")]
        if self.state is MinicpmoState.ASSIGNED:
            dues.append((self._init_due_at, "init_timeout"))
        if self._mode_session is not None and self._mode_session.is_idle:
            dues.append((self._idle_since + opening.idle_timeout_s, "idle_timeout"))
        if out.shows_remaining_at is not None and not self._has_warned:
            dues.append((out.shows_remaining_at, "warning"))
        return min(dues, key=itemgetter(0))

    def _schedule_wake(self) -> None:
        """Be woken for what comes next. Who is woken too early looks again: sound that goes on moves its end with every piece of it."""
        due = None if self.state is MinicpmoState.CLOSED else self._next_deadline()
        if due is not None and (self._wakes_at is None or due[0] < self._wakes_at):
            self._wakes_at = due[0]
            self._outbox.effects.append(WakeAt(due[0]))


_TIMEOUT_MESSAGES: dict[str, str] = {
    "timeout": "The session has reached its time limit.",
    "init_timeout": "The session was not begun in time.",
    "idle_timeout": "Nothing was said for too long.",
}
"""What clients are told of why the clock ended their session."""


def _size_bytes(message: SessionInit | DuplexAppend | ChatAppend) -> int:
    """About how much there is to keep of a message."""
    match message:
        case SessionInit(reference=reference, voice_reference=voice_reference):
            return len(reference or b"") + len(voice_reference or b"")
        case DuplexAppend(pcm=pcm, frames=frames):
            return len(pcm) + sum(len(frame.jpeg) for frame in frames)
        case ChatAppend(messages=messages):
            held = (getattr(part, name, None) for each in messages for part in each.parts for name in part.__struct_fields__)
            return sum(len(value) for value in held if isinstance(value, str | bytes))


# What is done about what, by how far the session is

_ANY_STATE_HANDLERS: dict[type, Callable[[MinicpmoSession, Any], None]] = {
    MinicpmoSessionConfig: MinicpmoSession._open,
    UnreadableMinicpmoEvent: MinicpmoSession._reject_event,
    ConnectionResumed: MinicpmoSession._on_connection_resumed,
    ClientThrottled: MinicpmoSession._on_client_throttled,
}

_CLIENT_HANDLERS: dict[MinicpmoState, dict[type, Callable[[MinicpmoSession, Any], None]]] = {
    MinicpmoState.WAITING: {
        SessionInit: MinicpmoSession._defer_event,
        DuplexAppend: MinicpmoSession._defer_event,
        ChatAppend: MinicpmoSession._defer_event,
        SessionClose: MinicpmoSession._close_for_client,
    },
    MinicpmoState.ASSIGNED: {
        SessionInit: MinicpmoSession._begin,
        DuplexAppend: MinicpmoSession._begin_with_defaults,
        ChatAppend: MinicpmoSession._begin_with_defaults,
        SessionClose: MinicpmoSession._close_for_client,
    },
    MinicpmoState.PREPARING: {
        SessionInit: MinicpmoSession._reject_second_init,
        DuplexAppend: MinicpmoSession._defer_event,
        ChatAppend: MinicpmoSession._defer_event,
        SessionClose: MinicpmoSession._close_for_client,
    },
    MinicpmoState.LIVE: {
        SessionInit: MinicpmoSession._reject_second_init,
        DuplexAppend: MinicpmoSession._append,
        ChatAppend: MinicpmoSession._append,
        SessionClose: MinicpmoSession._close_for_client,
    },
    MinicpmoState.CLOSED: {},
}
"""What a client says."""

_ENGINE_HANDLERS: dict[MinicpmoState, dict[type, Callable[[MinicpmoSession, Any], None]]] = {
    MinicpmoState.WAITING: {
        engine_events.QueueUpdate: MinicpmoSession._on_queue_update,
        engine_events.WorkerAssigned: MinicpmoSession._on_worker_assigned,
        engine_events.EngineLost: MinicpmoSession._on_engine_lost,
    },
    MinicpmoState.ASSIGNED: {engine_events.EngineLost: MinicpmoSession._on_engine_lost},
    MinicpmoState.PREPARING: {
        engine_events.DuplexStarted: MinicpmoSession._on_ready,
        engine_events.ResponseFailed: MinicpmoSession._on_start_failed,
        engine_events.EngineError: MinicpmoSession._on_start_failed,
        engine_events.EngineLost: MinicpmoSession._on_engine_lost,
    },
    MinicpmoState.LIVE: {engine_events.EngineLost: MinicpmoSession._on_engine_lost},
    MinicpmoState.CLOSED: {},
}
"""What an engine says of itself; of what it says to a client, the session's mode has its own table."""
