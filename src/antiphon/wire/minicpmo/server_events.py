"""Server events of the MiniCPM-o protocol. Fields that only clients of some generations need are always sent."""

from collections.abc import Callable
from typing import Literal

from msgspec import UNSET, structs

from antiphon.wire.codec.base64_strings import encode_base64_string
from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Tagged, Unknown, Wire, encode
from antiphon.wire.realtime.decode import EventReader

Metrics = JsonDict
"""Measurements by the original's names; any may be absent."""


class InputTokens(Wire, kw_only=True):
    """Input tokens by kind."""

    text_tokens: int
    audio_tokens: int
    vision_tokens: int


class OutputTokens(Wire, kw_only=True):
    """Output tokens by kind."""

    text_tokens: int
    audio_tokens: int


class Usage(Wire, kw_only=True):
    """Tokens of the session so far."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokens


class Event(Tagged, kw_only=True):
    """The common field of all events: when it was sent, in Unix seconds."""

    server_send_ts: Opt[float] = UNSET


# The queue


class SessionQueued(Event, kw_only=True, tag="session.queued"):
    """All workers are busy; position 1 is next. We always send the estimate, other servers may not."""

    position: int
    estimated_wait_s: Opt[float] = UNSET
    ticket_id: str
    queue_length: int


class SessionQueueUpdate(SessionQueued, kw_only=True, tag="session.queue_update"):
    """The present position. The original leaves out `ticket_id` here."""


class SessionQueueDone(Event, kw_only=True, tag="session.queue_done"):
    """A worker is free: the client may begin."""


# The session


class SessionCreated(Event, kw_only=True, tag="session.created"):
    """The session has begun; `mode` is how the engine works, not what the client connected for."""

    session_id: str
    mode: Literal["turn_based", "full_duplex"]
    metrics: Metrics
    resume_token: Opt[str] = UNSET


class SessionResumed(Event, kw_only=True, tag="session.resumed"):
    """The client reconnected; the events that it missed follow."""

    session_id: str
    metrics: Metrics


class SessionWarning(Event, kw_only=True, tag="session.warning"):
    """The session will end soon."""

    session_id: str
    remaining_s: float
    metrics: Metrics


class Diagnostic(Wire, kw_only=True):
    """The reason, for people."""

    message: str


class SessionClosed(Event, kw_only=True, tag="session.closed"):
    """The session ended; the last event. The id is null if the session had not begun."""

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
    """An error, mostly with one client event; the session goes on."""

    error: Error


# Answers


class OutputDelta(Event, kw_only=True, tag="response.output.delta"):
    """
    More output, or that the model listens.

    Attributes:
        text: with `kind` text; empty with listen, as openbmb-realtime 0.1.6 passes over a delta without one, and never
            learns that the turn ended (measured).
        audio: float32 at 24 kHz, with `kind` audio.
        end_of_turn: with listen: the model's turn is over.
        interrupted: with `end_of_turn`: it was interrupted; discard unplayed audio.
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
    """A response in chat mode is complete: its whole text, and its whole audio if that was not sent in deltas."""

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
"""Decodes a server's frame; events of unknown types, or that don't fit their type, become `Unknown`."""


def encode_server(event: ServerEvent) -> bytes:
    """JSON of a server's event."""
    if type(event) is OutputDelta and event.audio:
        event = structs.replace(event, audio=encode_base64_string(event.audio))
    return encode(event)
