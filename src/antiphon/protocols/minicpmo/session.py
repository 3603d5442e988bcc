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

from antiphon.engine_api import events as talk_events
from antiphon.errors import ClientMistake, Fault, OurFault, UpstreamTrouble, unsupported_value
from antiphon.protocols.minicpmo.chat import Chat
from antiphon.protocols.minicpmo.duplex import Duplex, converse
from antiphon.protocols.minicpmo.opening import Opening as Opening
from antiphon.protocols.minicpmo.outbox import Out
from antiphon.protocols.session import Close, Effect, Event, FromClient, FromEngine, Halted, Hangup, Mint, Tick, WakeAt
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import ChatAppend, DuplexAppend, SessionClose, SessionInit

KEPT_LIMIT = 16
"""The most events of an early client that are kept."""

KEPT_LIMIT_BYTES = 8 << 20
"""The most sound and pictures in them."""

MISTAKES_LIMIT = 32
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

_STOPPING = frozenset({"shutdown", "server_shutting_down"})
"""Codes of a `Lost` by which it is the server that goes away."""

_LOST: dict[str, str] = {"backend_error": "session_failed"} | dict.fromkeys(_STOPPING, "service_unavailable")
"""What a client that has not begun is told of a `Lost`; other codes it knows by their own names."""

_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OURS = frozenset({"timeout", "init_timeout", "idle_timeout", "backend_error", "shutdown", "too_many_errors", "unauthorized"})
"""Reasons that are the server's to give."""


class Garbled(Struct, frozen=True):
    """The client sent what is no event; `fault` says why."""

    fault: Fault


class Resumed(Struct, frozen=True):
    """The client is back on another connection."""


class Held(Struct, frozen=True):
    """Nothing more of the client's is read for so many seconds: it sends too fast, and is not to be taken for silent."""

    for_s: float


class State(Enum):
    """How far a session is."""

    WAITING = "waiting"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    LIVE = "live"
    CLOSED = "closed"


class Minicpmo:
    """
    The machine of one session; begun by its `Opening`, which comes as from the client.

    Attributes:
        state: how far it is.
        has_ended: why it is over; None while it isn't.
    """

    def __init__(self, opening: Opening, mint: Mint) -> None:
        self.state = State.WAITING
        self.has_ended: str | None = None
        self._opening = opening
        self._mint = mint
        self._out = Out(opening.session_id)
        self._init = SessionInit()
        self._side: Chat | Duplex | None = None
        self._kept: list[SessionInit | DuplexAppend | ChatAppend] = []
        self._kept_bytes = 0
        self._has_queued = False
        self._mistakes = 0
        self._begins_by = 0.0
        self._idle_since = 0.0
        self._wakes_at: float | None = None
        self._has_warned = False

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""
        if self.state is State.CLOSED:
            return []
        self._out.at = event.at
        if isinstance(event, FromEngine):
            for word in event.words:
                self._hear(word)
        elif isinstance(event, FromClient):
            self._take(event.message)
        else:
            self._decide(event)
        self._rearm()
        return self._out.take()

    def _decide(self, event: Event) -> None:
        match event:
            case Tick(at):
                self._wake(at)
            case Hangup():
                self._end("client_left", None)
            case Halted(fault):
                self._close("shutdown" if fault.code == "server_shutting_down" else "unauthorized", fault, fault.message)
            case _:
                pass

    def _take(self, message: Any) -> None:
        taken = _ALWAYS.get(type(message)) or _CLIENT[self.state].get(type(message))
        if taken is None:
            return
        try:
            taken(self, message)
        except Fault as fault:
            self._out.refuse(fault)
            self._mistakes += 1
            if self._mistakes >= MISTAKES_LIMIT:
                why = "Too many events one after another could not be used."
                self._close("too_many_errors", ClientMistake(why, code="too_many_errors"), why)
        else:
            if type(message) is not Held:
                self._mistakes = 0

    def _hear(self, word: talk_events.FromEngine) -> None:
        taken = _ENGINE[self.state].get(type(word))
        if taken is not None:
            taken(self, word)
        elif self.state is State.LIVE and self._side is not None:
            if not self._side.is_idle:  # the client's time to say something begins when its question was answered
                self._idle_since = self._out.at
            self._side.hear(word)
            if self._side.failed is not None:
                self._fail(self._side.failed)

    # Waiting

    def _open(self, opening: Opening) -> None:
        if opening.mode != "chat" and not opening.abilities.full_duplex:
            fault = unsupported_value("mode", opening.mode, opening.model, ["chat"])
            self._out.refuse(fault)
            self._end("refused", fault)
        elif not opening.is_queued:
            self._assign(None)

    def _garble(self, garbled: Garbled) -> None:
        raise garbled.fault

    def _resume(self, _resumed: Resumed) -> None:
        self._out.send(events.SessionResumed, session_id=self._opening.session_id, metrics={"remaining_s": self._out.remaining_s})

    def _hold(self, held: Held) -> None:
        self._idle_since = max(self._idle_since, self._out.at + held.for_s)

    def _wait(self, word: talk_events.Waiting) -> None:
        kind = events.SessionQueueUpdate if self._has_queued else events.SessionQueued
        self._has_queued = True
        wait_s = UNSET if word.wait_s is None else round(word.wait_s, 1)
        self._out.send(kind, position=word.position, estimated_wait_s=wait_s, ticket_id=word.id, queue_length=word.queue_length)

    def _assign(self, _word: talk_events.Assigned | None) -> None:
        self.state = State.ASSIGNED
        self._out.send(events.SessionQueueDone)
        self._out.ends_at = self._out.at + self._opening.lasts_s
        self._begins_by = self._out.at + self._opening.init_s
        self._catch_up()

    def _keep(self, message: SessionInit | DuplexAppend | ChatAppend) -> None:
        """Until there is a place, and the engine is there, what the client says waits."""
        size_bytes = _size_bytes(message)
        if len(self._kept) >= KEPT_LIMIT or self._kept_bytes + size_bytes > KEPT_LIMIT_BYTES:
            raise ClientMistake("The session has not begun: wait for 'session.created'. This event was dropped.", code="not_ready")
        self._kept.append(message)
        self._kept_bytes += size_bytes

    def _catch_up(self) -> None:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for message in kept:
            self._take(message)

    def _lose(self, word: talk_events.Lost) -> None:
        is_stopping = word.code in _STOPPING
        if self.state is State.LIVE:
            code = "server_shutting_down" if is_stopping else "backend_error"
            self._close("shutdown" if is_stopping else "backend_error", UpstreamTrouble(word.message, code=code), word.message)
        else:
            fault = OurFault(word.message, code=_LOST.get(word.code, word.code))
            self._out.refuse(fault)
            self._end("lost", fault)

    # Beginning

    def _begin(self, init: SessionInit) -> None:
        self._init = init
        if self._opening.mode == "chat":
            self._create({})
        else:
            self.state = State.PREPARING
            self._out.tell(converse(self._opening, init, self._out))

    def _begin_with(self, message: DuplexAppend | ChatAppend) -> None:
        """A client that begins with what it has to say wants the session as it usually is."""
        self._begin(SessionInit())
        self._take(message)

    def _begin_twice(self, _init: SessionInit) -> None:
        raise ClientMistake("The session has begun: 'session.init' comes once.", code="unexpected_event", param="type")

    def _ready(self, word: talk_events.Ready) -> None:
        self._create(word.metrics)

    def _create(self, metrics: dict[str, Any]) -> None:
        out, opening = self._out, self._opening
        self.state = State.LIVE
        self._idle_since = out.at
        out.has_begun = True
        out.tells_rest_at = (out.ends_at or out.at) - opening.warning_s
        side = Chat if opening.mode == "chat" else Duplex
        self._side = side(opening, self._init, out, self._mint)
        out.send(
            events.SessionCreated,
            session_id=opening.session_id,
            mode="turn_based" if opening.mode == "chat" else "full_duplex",
            metrics=out.metrics({**metrics, "remaining_s": out.remaining_s}),
            resume_token=opening.resume_token if opening.resume_token is not None else UNSET,
        )
        self._catch_up()

    def _not_ready(self, word: talk_events.Broke | talk_events.Trouble) -> None:
        self._lose(talk_events.Lost(code="backend_error", message=word.message))

    # Going on

    def _append(self, message: Any) -> None:
        assert self._side is not None
        self._side.append(message)
        self._idle_since = self._out.at

    # Ending

    def _leave(self, message: SessionClose) -> None:
        reason = message.reason or ""
        self._close(reason if _REASON.fullmatch(reason) and reason not in _OURS else "client_closed", None)

    def _fail(self, why: str) -> None:
        self._close("backend_error", UpstreamTrouble(why, code="backend_error"), why)

    def _close(self, reason: str, fault: Fault | None, why: str | None = None) -> None:
        """Tell the client that it is over, and end."""
        self._out.send(
            events.SessionClosed,
            session_id=self._opening.session_id if self._out.has_begun else None,
            reason=reason,
            diagnostic=events.Diagnostic(message=why) if why else UNSET,
            usage=self._out.spending.told(),
        )
        self._end(reason, fault)

    def _end(self, why: str, fault: Fault | None) -> None:
        if self._side is not None:
            self._side.stop()
        self.state, self.has_ended = State.CLOSED, why
        self._out.effects.append(Close(fault))

    # The clock

    def _wake(self, at: float) -> None:
        self._wakes_at = None
        due = self._due()
        if due is None or at < due[0]:
            return
        _, what = due
        if what == "warning":
            self._warn()
        else:
            self._close(what, None, _TIMEOUTS[what])

    def _warn(self) -> None:
        """Say once that the end is near: answers say so too, but there may be none."""
        out = self._out
        self._has_warned = True
        out.send(events.SessionWarning, session_id=out.session_id, remaining_s=out.remaining_s, metrics={"remaining_s": out.remaining_s})

    def _due(self) -> tuple[float, str] | None:
        """What comes next of itself, and when; None while the session only waits for a place."""
        out, opening = self._out, self._opening
        if out.ends_at is None:
            return None
        dues = [(out.ends_at, "timeout")]
        if self.state is State.ASSIGNED:
            dues.append((self._begins_by, "init_timeout"))
        if self._side is not None and self._side.is_idle:
            dues.append((self._idle_since + opening.idle_s, "idle_timeout"))
        if out.tells_rest_at is not None and not self._has_warned:
            dues.append((out.tells_rest_at, "warning"))
        return min(dues, key=itemgetter(0))

    def _rearm(self) -> None:
        """Be woken for what comes next. Who is woken too early looks again: sound that goes on moves its end with every piece of it."""
        due = None if self.state is State.CLOSED else self._due()
        if due is not None and (self._wakes_at is None or due[0] < self._wakes_at):
            self._wakes_at = due[0]
            self._out.effects.append(WakeAt(due[0]))


_TIMEOUTS: dict[str, str] = {
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

_ALWAYS: dict[type, Callable[[Minicpmo, Any], None]] = {
    Opening: Minicpmo._open,
    Garbled: Minicpmo._garble,
    Resumed: Minicpmo._resume,
    Held: Minicpmo._hold,
}

_CLIENT: dict[State, dict[type, Callable[[Minicpmo, Any], None]]] = {
    State.WAITING: {
        SessionInit: Minicpmo._keep,
        DuplexAppend: Minicpmo._keep,
        ChatAppend: Minicpmo._keep,
        SessionClose: Minicpmo._leave,
    },
    State.ASSIGNED: {
        SessionInit: Minicpmo._begin,
        DuplexAppend: Minicpmo._begin_with,
        ChatAppend: Minicpmo._begin_with,
        SessionClose: Minicpmo._leave,
    },
    State.PREPARING: {
        SessionInit: Minicpmo._begin_twice,
        DuplexAppend: Minicpmo._keep,
        ChatAppend: Minicpmo._keep,
        SessionClose: Minicpmo._leave,
    },
    State.LIVE: {
        SessionInit: Minicpmo._begin_twice,
        DuplexAppend: Minicpmo._append,
        ChatAppend: Minicpmo._append,
        SessionClose: Minicpmo._leave,
    },
    State.CLOSED: {},
}
"""What a client says."""

_ENGINE: dict[State, dict[type, Callable[[Minicpmo, Any], None]]] = {
    State.WAITING: {talk_events.Waiting: Minicpmo._wait, talk_events.Assigned: Minicpmo._assign, talk_events.Lost: Minicpmo._lose},
    State.ASSIGNED: {talk_events.Lost: Minicpmo._lose},
    State.PREPARING: {
        talk_events.Ready: Minicpmo._ready,
        talk_events.Broke: Minicpmo._not_ready,
        talk_events.Trouble: Minicpmo._not_ready,
        talk_events.Lost: Minicpmo._lose,
    },
    State.LIVE: {talk_events.Lost: Minicpmo._lose},
    State.CLOSED: {},
}
"""What an engine says of itself; of what it says to a client, the session's mode has its own table."""
