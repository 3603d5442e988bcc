"""What the server of a MiniCPM-o session says. Fields that clients of some generation need, and others pass over, are always there."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET

from antiphon.wire.codec.types import Maybe, Opt, Tagged, Unknown, Wire, encode
from antiphon.wire.realtime.decode import EventReader

Metrics = dict[str, Any]
"""What was measured, by the names that the original has for it; any of them may be absent."""


class InputTokens(Wire, kw_only=True):
    """What tokens that went in stood for."""

    text_tokens: int
    audio_tokens: int
    vision_tokens: int


class OutputTokens(Wire, kw_only=True):
    """What tokens that came out stood for."""

    text_tokens: int
    audio_tokens: int


class Usage(Wire, kw_only=True):
    """Tokens of the session up to here."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokens


class Event(Tagged, kw_only=True):
    """What an event may have: when it was sent, in Unix seconds."""

    server_send_ts: Opt[float] = UNSET


# The queue


class SessionQueued(Event, kw_only=True, tag="session.queued"):
    """There is no place yet; 1 is who is next, and how long it may take is left out where nobody knows."""

    position: int
    estimated_wait_s: Opt[float] = UNSET
    ticket_id: str
    queue_length: int


class SessionQueueUpdate(SessionQueued, kw_only=True, tag="session.queue_update"):
    """How it stands now."""


class SessionQueueDone(Event, kw_only=True, tag="session.queue_done"):
    """There is a place: the client may begin."""


# The session


class SessionCreated(Event, kw_only=True, tag="session.created"):
    """The session has begun; `mode` is how the engine works, not what the client connected for."""

    session_id: str
    mode: Literal["turn_based", "full_duplex"]
    metrics: Metrics
    resume_token: Opt[str] = UNSET


class SessionResumed(Event, kw_only=True, tag="session.resumed"):
    """The client is back; what it missed follows."""

    session_id: str
    metrics: Metrics


class SessionWarning(Event, kw_only=True, tag="session.warning"):
    """The session is about to end."""

    session_id: str
    remaining_s: float
    metrics: Metrics


class Diagnostic(Wire, kw_only=True):
    """Why, for a person."""

    message: str


class SessionClosed(Event, kw_only=True, tag="session.closed"):
    """The session is over; the last event. Without an id, it had not begun."""

    session_id: str | None
    reason: str
    diagnostic: Opt[Diagnostic] = UNSET
    usage: Opt[Usage] = UNSET


class Error(Wire, kw_only=True):
    """What went wrong; `param` names the field."""

    code: str
    message: str
    type: str
    param: Opt[str] = UNSET


class ErrorEvent(Event, kw_only=True, tag="error"):
    """Something went wrong; mostly with one event of the client's, and the session goes on."""

    error: Error


# Answers


class OutputDelta(Event, kw_only=True, tag="response.output.delta"):
    """
    More of an answer, or that the model listens.

    Attributes:
        text: with `kind` text; empty with listen, as the public client passes over a delta without one.
        audio: float32 at 24 kHz, with `kind` audio.
        end_of_turn: of a listen: the model has said what it had to say.
        interrupted: of that: it was cut short; what was not played yet should not be.
    """

    kind: Literal["listen", "text", "audio"]
    session_id: str
    response_id: str
    input_id: Opt[str] = UNSET
    text: Opt[str] = UNSET
    audio: Opt[bytes] = UNSET
    end_of_turn: Opt[bool] = UNSET
    interrupted: Opt[bool] = UNSET
    metrics: Metrics
    usage: Opt[Usage] = UNSET


class ResponseDone(Event, kw_only=True, tag="response.done"):
    """An answer in chat is over: all of its words, and where it did not come in deltas all of its sound."""

    session_id: str
    response_id: str
    input_id: str
    text: str
    audio: Maybe[bytes]
    reason: str
    metrics: Metrics
    usage: Opt[Usage] = UNSET


ServerEvent = (
    SessionQueued
    | SessionQueueUpdate
    | SessionQueueDone
    | SessionCreated
    | SessionResumed
    | SessionWarning
    | SessionClosed
    | ErrorEvent
    | OutputDelta
    | ResponseDone
)

_reader: EventReader[ServerEvent | Unknown] = EventReader(ServerEvent | Unknown)

decode_server: Callable[[bytes], ServerEvent | Unknown] = _reader.read
"""The event in a frame that a server sent; one of no type known here, or not as its type has it, is `Unknown`."""

encode_server: Callable[[ServerEvent], bytes] = encode
"""JSON of a server's event."""
