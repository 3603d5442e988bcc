"""
A MiniCPM-o session: events of the client, the engine and the clock in; effects out.

A session waits for a worker, begins with the client's `session.init`, and runs until something closes it:
`_CLIENT_HANDLERS` and `_ENGINE_HANDLERS` say this as tables. Early events are deferred, not refused. An unusable event
is dropped with an `error` event; an error that makes the session useless closes it.

Source: OpenBMB's documentation of the Realtime API of MiniCPM-o 4.5, and what its gateway does.
"""

import re
from enum import Enum
from operator import itemgetter
from typing import TypeAlias

from msgspec import UNSET, Struct

from antiphon.engine_api import events as engine_events
from antiphon.errors import SESSION_CLOSED_CODE, SHUTTING_DOWN_CODE, ApiError, ClientError, ServerError, UpstreamError, unsupported_value
from antiphon.protocols.dispatch import on, table
from antiphon.protocols.minicpmo.chat import MinicpmoChat
from antiphon.protocols.minicpmo.config import MinicpmoSessionConfig as MinicpmoSessionConfig
from antiphon.protocols.minicpmo.duplex import MinicpmoDuplex, start_duplex_command
from antiphon.protocols.minicpmo.outbox import MinicpmoOutbox
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Hangup, NewId, Shutdown, Tick, WakeAt
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import ChatAppend, DuplexAppend, SessionClose, SessionInit

PENDING_EVENTS_LIMIT = 16
"""How many events that come too early are deferred."""

PENDING_EVENTS_LIMIT_BYTES = 8 << 20
"""How much audio and image data they may hold."""

CLIENT_ERRORS_LIMIT = 32
"""How many unusable events in a row before the session is closed."""

CLOSE_CODES: dict[str, int] = {
    "queue_full": 1013,
    "worker_busy": 1013,
    SHUTTING_DOWN_CODE: 1012,
    "unsupported_value": 1008,
    "too_many_errors": 1008,
    "rate_limit_exceeded": 1013,
}
"""
WebSocket close codes (RFC 6455 7.4) by the code of the `Close` effect's error: 1000 without an error, 1011 for any
other.
"""

_SHUTDOWN_REASONS = {SHUTTING_DOWN_CODE: "shutdown", SESSION_CLOSED_CODE: "closed"}
"""Why a session is ended from outside, by the code of the error; any other is about its key."""

_CLOSE_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SERVER_CLOSE_REASONS = frozenset(
    {"timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "too_many_errors", "unauthorized", "closed"}
)
"""Close reasons that only the server gives; a client's own reason may not pose as one."""


class UnreadableMinicpmoEvent(Struct, frozen=True):
    """The client sent a frame that is not a valid event; `error` says why."""

    error: ApiError


class ConnectionResumed(Struct, frozen=True):
    """The client resumed the session on a new connection."""


class ClientThrottled(Struct, frozen=True):
    """The client sends too fast and is not read for this many seconds; that time does not count as silence."""

    duration_s: float


class MinicpmoState(Enum):
    """The stages of a session, in order."""

    WAITING = "waiting"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    LIVE = "live"
    CLOSED = "closed"

    __hash__ = object.__hash__  # Enum's own is a call in Python, and each event looks for its handler by the state


_LIVE, _CLOSED, _ASSIGNED = MinicpmoState.LIVE, MinicpmoState.CLOSED, MinicpmoState.ASSIGNED  # docs/decisions/0063 says why

_Deferrable: TypeAlias = SessionInit | DuplexAppend | ChatAppend
MinicpmoMessage: TypeAlias = (
    _Deferrable | SessionClose | MinicpmoSessionConfig | UnreadableMinicpmoEvent | ConnectionResumed | ClientThrottled
)
"""What the client of a session, or its connection, can send it."""


class MinicpmoSession:
    """
    The machine of one session. The first `FromClient` carries its `MinicpmoSessionConfig`, which starts it.

    Attributes:
        end_reason: why the session ended; None before.
    """

    def __init__(self, config: MinicpmoSessionConfig, new_id: NewId) -> None:
        self.state = MinicpmoState.WAITING
        self.end_reason: str | None = None
        self._config = config
        self._new_id = new_id
        self._outbox = MinicpmoOutbox(config.session_id)
        self._init = SessionInit()
        self._mode_session: MinicpmoChat | MinicpmoDuplex | None = None
        self._pending_events: list[_Deferrable] = []
        self._pending_bytes = 0
        self._has_sent_queued = False
        self._client_errors = 0
        self._init_due_at = 0.0
        self._idle_since = 0.0
        self._wakes_at: float | None = None
        self._has_warned = False

    def handle(self, event: Event[MinicpmoMessage]) -> list[Effect[events.ServerEvent]]:
        if self.state is _CLOSED:
            return []
        self._outbox.at = event.at
        if isinstance(event, FromEngine):
            for engine_event in event.events:
                self._handle_engine_event(engine_event)
        elif isinstance(event, FromClient):
            self._handle_client_event(event.message)
        else:
            self._handle_control_event(event)
        self._schedule_wake()
        return self._outbox.drain()

    def _handle_control_event(self, event: Event[MinicpmoMessage]) -> None:
        match event:
            case Tick(at):
                self._wake(at)
            case Hangup():
                self._end("client_left", None)
            case Shutdown(error):
                self._close_session(_SHUTDOWN_REASONS.get(error.code or "", "unauthorized"), error, error.message)
            case _:
                pass

    def _handle_client_event(self, message: MinicpmoMessage) -> None:
        handler = _ANY_STATE_HANDLERS.get(type(message)) or _CLIENT_HANDLERS[self.state].get(type(message))
        if handler is None:
            return
        try:
            handler(self, message)
        except ApiError as error:
            self._outbox.send_error(error)
            # openbmb-realtime takes any `error` for the end of the session. It sends nothing that leads to one; other
            # clients may go on.
            self._client_errors += 1
            if self._client_errors >= CLIENT_ERRORS_LIMIT:
                text = "Too many invalid events in a row."
                self._close_session("too_many_errors", ClientError(text, code="too_many_errors"), text)
        else:
            if type(message) is not ClientThrottled:
                self._client_errors = 0

    def _handle_engine_event(self, event: engine_events.EngineEvent) -> None:
        handler = _ENGINE_HANDLERS[self.state].get(type(event))
        if handler is not None:
            handler(self, event)
        elif self.state is _LIVE and self._mode_session is not None:
            if not self._mode_session.is_idle:  # the idle timeout starts when the client's question was answered
                self._idle_since = self._outbox.at
            self._mode_session.handle_event(event)
            if self._mode_session.failure_message is not None:
                self._fail_session(self._mode_session.failure_message)

    # Waiting

    def _open(self, config: MinicpmoSessionConfig) -> None:
        if config.mode != "chat" and not config.capabilities.full_duplex:
            error = unsupported_value("mode", config.mode, config.model, ["chat"])
            self._outbox.send_error(error)
            self._end("refused", error)
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
        self._outbox.send(
            kind,
            position=event.position,
            # MiniCPM-o: the original's page shows `NaNs` where it is absent.
            estimated_wait_s=round(event.wait_s, 1),
            ticket_id=event.id,
            queue_length=event.queue_length,
        )

    def _on_worker_assigned(self, _event: engine_events.WorkerAssigned | None) -> None:
        self.state = MinicpmoState.ASSIGNED
        # MiniCPM-o: `session.queue_done` comes always, also without a queue: clients send `session.init` when they get
        # it.
        self._outbox.send(events.SessionQueueDone)
        # As the original's gateway does it, the time in the queue doesn't count.
        self._outbox.ends_at = self._outbox.at + self._config.max_duration_s
        self._init_due_at = self._outbox.at + self._config.init_timeout_s
        self._handle_pending_events()

    def _defer_event(self, message: _Deferrable) -> None:
        """Keep an event until a worker is assigned and its engine is ready."""
        # MiniCPM-o: a client is to be silent until `session.created`, but not every client is.
        size_bytes = _size_bytes(message)
        if len(self._pending_events) >= PENDING_EVENTS_LIMIT or self._pending_bytes + size_bytes > PENDING_EVENTS_LIMIT_BYTES:
            raise ClientError("The session has not started: wait for 'session.created'. This event was dropped.", code="not_ready")
        self._pending_events.append(message)
        self._pending_bytes += size_bytes

    def _handle_pending_events(self) -> None:
        batch, self._pending_events, self._pending_bytes = self._pending_events, [], 0
        for message in batch:
            self._handle_client_event(message)

    def _on_engine_lost(self, event: engine_events.EngineLost) -> None:
        if event.code == SHUTTING_DOWN_CODE:
            self._close_session("shutdown", ServerError(event.message, code=SHUTTING_DOWN_CODE), event.message)
        elif self.state is _LIVE:
            self._close_session("backend_error", UpstreamError(event.message, code="backend_error"), event.message)
        else:
            # MiniCPM-o: before `session.created` a failure is an `error`, after it `session.closed` says so.
            error = ServerError(event.message, code="session_failed" if event.code == "backend_error" else event.code)
            self._outbox.send_error(error)
            self._end("lost", error)

    # Beginning

    def _begin(self, init: SessionInit) -> None:
        self._init = init
        if self._config.mode == "chat":
            self._create_session({})
        else:
            self.state = MinicpmoState.PREPARING
            self._outbox.send_to_engine(start_duplex_command(self._config, init, self._outbox))

    def _begin_with_defaults(self, message: DuplexAppend | ChatAppend) -> None:
        """Begin without `session.init`, as clients may that want the defaults."""
        self._begin(SessionInit())
        self._handle_client_event(message)

    def _reject_second_init(self, _init: SessionInit) -> None:
        # The original closes a session for this; here only the event is lost.
        raise ClientError("The session has started: send 'session.init' only once.", code="unexpected_event", param="type")

    def _on_ready(self, event: engine_events.DuplexStarted) -> None:
        self._create_session(event.metrics)

    def _create_session(self, metrics: JsonDict) -> None:
        out, config = self._outbox, self._config
        self.state = MinicpmoState.LIVE
        self._idle_since = out.at
        out.has_begun = True
        out.shows_remaining_at = (out.ends_at or out.at) - config.warning_s
        kind = MinicpmoChat if config.mode == "chat" else MinicpmoDuplex
        self._mode_session = kind(config, self._init, out, self._new_id)
        resumable = {} if config.resume_token is None else {"resume_s": config.resume_s}
        out.send(
            events.SessionCreated,
            session_id=config.session_id,
            # MiniCPM-o: the two kinds of session have other names here than in the address.
            mode="turn_based" if config.mode == "chat" else "full_duplex",
            metrics=out.take_metrics({**metrics, "remaining_s": out.remaining_s, **resumable}),
            resume_token=config.resume_token if config.resume_token is not None else UNSET,
        )
        self._handle_pending_events()

    def _on_start_failed(self, event: engine_events.ResponseFailed | engine_events.EngineError) -> None:
        self._on_engine_lost(engine_events.EngineLost(code="backend_error", message=event.message))

    # Running

    def _append(self, message: DuplexAppend | ChatAppend) -> None:
        match self._mode_session, message:
            case MinicpmoChat() as chat, ChatAppend():
                chat.append(message)
            case MinicpmoDuplex() as duplex, DuplexAppend():
                duplex.append(message)
            case _:  # the connection decodes the events of its session's mode only
                pass
        self._idle_since = self._outbox.at

    # Ending

    def _close_for_client(self, message: SessionClose) -> None:
        # MiniCPM-o: the client's own reason comes back, `user_stop` for example.
        reason = message.reason or ""
        self._close_session(reason if _CLOSE_REASON.fullmatch(reason) and reason not in _SERVER_CLOSE_REASONS else "client_closed", None)

    def _fail_session(self, message: str) -> None:
        self._close_session("backend_error", UpstreamError(message, code="backend_error"), message)

    def _close_session(self, reason: str, error: ApiError | None, message: str | None = None) -> None:
        self._outbox.send(
            events.SessionClosed,
            # MiniCPM-o: null if the session was never created.
            session_id=self._config.session_id if self._outbox.has_begun else None,
            reason=reason,
            diagnostic=events.Diagnostic(message=message) if message else UNSET,
            usage=self._outbox.token_totals.wire_usage(),
        )
        self._end(reason, error)

    def _end(self, reason: str, error: ApiError | None) -> None:
        if self._mode_session is not None:
            self._mode_session.stop()
        self.state, self.end_reason = MinicpmoState.CLOSED, reason
        self._outbox.effects.append(Close(error))

    # The clock

    def _wake(self, at: float) -> None:
        self._wakes_at = None
        deadline = self._next_deadline()
        if deadline is None or at < deadline[0]:
            return
        _, kind = deadline
        if kind == "warning":
            self._warn()
        else:
            self._close_session(kind, None, _TIMEOUT_MESSAGES[kind])

    def _warn(self) -> None:
        """Warn once that the end is near: responses carry the remaining time too, but there may be none."""
        out = self._outbox
        self._has_warned = True
        out.send(events.SessionWarning, session_id=out.session_id, remaining_s=out.remaining_s, metrics={"remaining_s": out.remaining_s})

    def _next_deadline(self) -> tuple[float, str] | None:
        """The next deadline and its kind; None before a worker is assigned."""
        out, config = self._outbox, self._config
        if out.ends_at is None:
            return None
        deadlines = [(out.ends_at, "timeout")]
        if self.state is _ASSIGNED:
            # The original has neither this limit nor the next: a silent client kept its worker for ever.
            deadlines.append((self._init_due_at, "init_timeout"))
        if self._mode_session is not None and self._mode_session.is_idle:
            deadlines.append((self._idle_since + config.idle_timeout_s, "idle_timeout"))
        if out.shows_remaining_at is not None and not self._has_warned:
            deadlines.append((out.shows_remaining_at, "warning"))
        return min(deadlines, key=itemgetter(0))

    def _schedule_wake(self) -> None:
        # Only ever earlier: audio moves the idle deadline with every piece, and a tick that comes too early just looks
        # again.
        deadline = None if self.state is _CLOSED else self._next_deadline()
        if deadline is not None and (self._wakes_at is None or deadline[0] < self._wakes_at):
            self._wakes_at = deadline[0]
            self._outbox.effects.append(WakeAt(deadline[0]))


_TIMEOUT_MESSAGES: dict[str, str] = {
    "timeout": "The session has reached its time limit.",
    "init_timeout": "The client did not start the session in time.",
    "idle_timeout": "The client was silent for too long.",
}
"""Messages for sessions that the clock ends."""


def _size_bytes(message: _Deferrable) -> int:
    """About how much memory a deferred event takes."""
    match message:
        case SessionInit(reference=reference, voice_reference=voice_reference):
            return len(reference or b"") + len(voice_reference or b"")
        case DuplexAppend(pcm=pcm, frames=frames):
            return len(pcm) + sum(len(frame.jpeg) for frame in frames)
        case ChatAppend(messages=messages):
            values = (getattr(part, name, None) for each in messages for part in each.parts for name in part.__struct_fields__)
            return sum(len(value) for value in values if isinstance(value, str | bytes))


# The handlers of each event, by the state of the session

_ANY_STATE_HANDLERS = table(
    on(MinicpmoSessionConfig, MinicpmoSession._open),
    on(UnreadableMinicpmoEvent, MinicpmoSession._reject_event),
    on(ConnectionResumed, MinicpmoSession._on_connection_resumed),
    on(ClientThrottled, MinicpmoSession._on_client_throttled),
)

_CLIENT_HANDLERS = {
    MinicpmoState.WAITING: table(
        on(SessionInit, MinicpmoSession._defer_event),
        on(DuplexAppend, MinicpmoSession._defer_event),
        on(ChatAppend, MinicpmoSession._defer_event),
        on(SessionClose, MinicpmoSession._close_for_client),
    ),
    MinicpmoState.ASSIGNED: table(
        on(SessionInit, MinicpmoSession._begin),
        on(DuplexAppend, MinicpmoSession._begin_with_defaults),
        on(ChatAppend, MinicpmoSession._begin_with_defaults),
        on(SessionClose, MinicpmoSession._close_for_client),
    ),
    MinicpmoState.PREPARING: table(
        on(SessionInit, MinicpmoSession._reject_second_init),
        on(DuplexAppend, MinicpmoSession._defer_event),
        on(ChatAppend, MinicpmoSession._defer_event),
        on(SessionClose, MinicpmoSession._close_for_client),
    ),
    MinicpmoState.LIVE: table(
        on(SessionInit, MinicpmoSession._reject_second_init),
        on(DuplexAppend, MinicpmoSession._append),
        on(ChatAppend, MinicpmoSession._append),
        on(SessionClose, MinicpmoSession._close_for_client),
    ),
    MinicpmoState.CLOSED: {},
}
"""Client events."""

_ENGINE_HANDLERS = {
    MinicpmoState.WAITING: table(
        on(engine_events.QueueUpdate, MinicpmoSession._on_queue_update),
        on(engine_events.WorkerAssigned, MinicpmoSession._on_worker_assigned),
        on(engine_events.EngineLost, MinicpmoSession._on_engine_lost),
    ),
    MinicpmoState.ASSIGNED: table(on(engine_events.EngineLost, MinicpmoSession._on_engine_lost)),
    MinicpmoState.PREPARING: table(
        on(engine_events.DuplexStarted, MinicpmoSession._on_ready),
        on(engine_events.ResponseFailed, MinicpmoSession._on_start_failed),
        on(engine_events.EngineError, MinicpmoSession._on_start_failed),
        on(engine_events.EngineLost, MinicpmoSession._on_engine_lost),
    ),
    MinicpmoState.LIVE: table(on(engine_events.EngineLost, MinicpmoSession._on_engine_lost)),
    MinicpmoState.CLOSED: {},
}
"""Engine events about the session; the tables of `chat` and `duplex` handle those of responses."""
