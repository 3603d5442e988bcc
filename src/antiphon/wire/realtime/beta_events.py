"""
The beta of the Realtime API, on the wire only: events of a beta peer become GA events, and the other way round.

Events that the beta does not have are not sent to a beta client. Where GA sends `conversation.item.added` and then
`.done`, the beta sends `conversation.item.created` once, when the item is added.

Source: Realtime guide, "Beta to GA migration".
"""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import msgspec
from msgspec import UNSET

from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import Opt, Tagged, Unknown, Wire, encode
from antiphon.wire.realtime import client_events as client, server_events as server
from antiphon.wire.realtime.beta_shapes import (
    FlatParams,
    FlatResponse,
    FlatSession,
    check_beta_modalities,
    flat_item,
    flatten,
    nest,
    to_beta_names,
)
from antiphon.wire.realtime.decode import EventReader
from antiphon.wire.realtime.response import Response, ResponseParams
from antiphon.wire.realtime.session import Session, TranscriptionSession

# Client events


class SessionUpdate(client.Event, kw_only=True, tag="session.update"):
    """Change the session."""

    session: FlatSession


class TranscriptionSessionUpdate(client.Event, kw_only=True, tag="transcription_session.update"):
    """Change a session that only transcribes."""

    session: FlatSession


class ResponseCreate(client.Event, kw_only=True, tag="response.create"):
    """Create a response."""

    response: Opt[FlatParams] = UNSET


BetaClientEvent = (
    SessionUpdate
    | TranscriptionSessionUpdate
    | client.InputAudioBufferAppend
    | client.InputAudioBufferCommit
    | client.InputAudioBufferClear
    | client.OutputAudioBufferClear
    | client.ConversationItemCreate
    | client.ConversationItemRetrieve
    | client.ConversationItemTruncate
    | client.ConversationItemDelete
    | ResponseCreate
    | client.ResponseCancel
)

_client_reader: EventReader[BetaClientEvent] = EventReader(BetaClientEvent)


# Server events


class SessionCreated(server.Event, kw_only=True, tag="session.created"):
    """The session at its start."""

    session: FlatSession


class SessionUpdated(server.Event, kw_only=True, tag="session.updated"):
    """The whole session, after a change."""

    session: FlatSession


class TranscriptionSessionCreated(server.Event, kw_only=True, tag="transcription_session.created"):
    """The session at its start; sent by some beta servers."""

    session: FlatSession


class TranscriptionSessionUpdated(server.Event, kw_only=True, tag="transcription_session.updated"):
    """A session that only transcribes, whole, after a change."""

    session: FlatSession


class ResponseCreated(server.Event, kw_only=True, tag="response.created"):
    """A response was created."""

    response: FlatResponse


class ResponseDone(server.Event, kw_only=True, tag="response.done"):
    """A response is over."""

    response: FlatResponse


class ResponseTextDelta(server.ResponseOutputTextDelta, kw_only=True, tag="response.text.delta"):
    """More of the text."""


class ResponseTextDone(server.ResponseOutputTextDone, kw_only=True, tag="response.text.done"):
    """The whole text."""


class ResponseAudioTranscriptDelta(server.ResponseOutputAudioTranscriptDelta, kw_only=True, tag="response.audio_transcript.delta"):
    """More of the transcript of the audio."""


class ResponseAudioTranscriptDone(server.ResponseOutputAudioTranscriptDone, kw_only=True, tag="response.audio_transcript.done"):
    """The whole transcript of the audio."""


class ResponseAudioDelta(server.ResponseOutputAudioDelta, kw_only=True, tag="response.audio.delta"):
    """More audio."""


class ResponseAudioDone(server.ResponseOutputAudioDone, kw_only=True, tag="response.audio.done"):
    """The audio is complete."""


class FunctionCallArgumentsDone(server.ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call, without the function's name."""

    call_id: str
    arguments: str


BetaServerEvent = (
    SessionCreated
    | SessionUpdated
    | TranscriptionSessionCreated
    | TranscriptionSessionUpdated
    | server.QueuePosition
    | server.ErrorEvent
    | server.RateLimitsUpdated
    | server.ConversationCreated
    | server.ConversationItemCreated
    | server.ConversationItemRetrieved
    | server.ConversationItemTruncated
    | server.ConversationItemDeleted
    | server.InputAudioTranscriptionDelta
    | server.InputAudioTranscriptionCompleted
    | server.InputAudioTranscriptionFailed
    | server.InputAudioBufferCommitted
    | server.InputAudioBufferCleared
    | server.InputAudioBufferSpeechStarted
    | server.InputAudioBufferSpeechStopped
    | server.OutputAudioBufferStarted
    | server.OutputAudioBufferStopped
    | server.OutputAudioBufferCleared
    | ResponseCreated
    | ResponseDone
    | server.ResponseOutputItemAdded
    | server.ResponseOutputItemDone
    | server.ResponseContentPartAdded
    | server.ResponseContentPartDone
    | ResponseTextDelta
    | ResponseTextDone
    | ResponseAudioTranscriptDelta
    | ResponseAudioTranscriptDone
    | ResponseAudioDelta
    | ResponseAudioDone
    | server.ResponseFunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
)

_server_reader: EventReader[BetaServerEvent | Unknown] = EventReader(BetaServerEvent | Unknown)


# Conversion

_Converter = Callable[[Any], Any]  # of one kind of event, by whose type it is looked up

_FLAT_KINDS: dict[type[Wire], type[Wire]] = {
    Session: FlatSession,
    TranscriptionSession: FlatSession,
    ResponseParams: FlatParams,
    Response: FlatResponse,
}
_NESTED_KINDS: dict[type[Wire], type[Wire]] = {FlatSession: Session, FlatParams: ResponseParams, FlatResponse: Response}


def _flat_object(value: Any) -> Any:
    kind = _FLAT_KINDS.get(type(value))
    return flat_item(value) if kind is None else flatten(value, kind)


def _nested_object(value: Any) -> Any:
    kind = _NESTED_KINDS.get(type(value))
    return value if kind is None else nest(value, kind)


_nested_transcription_session = partial(nest, kind=TranscriptionSession)


def _nested_created_session(session: FlatSession) -> Session | TranscriptionSession:
    # `SessionCreated` is the one event of both kinds of session in the beta.
    only_transcribes = session.object == "realtime.transcription_session"
    return nest(session, TranscriptionSession) if only_transcribes else nest(session, Session)


def _converter(source: type[Tagged], target: type[Tagged], convert_object: _Converter) -> _Converter:
    """Converts an event to another kind: the fields that both kinds have, and the object in one of them."""
    names = [name for name in source.__struct_fields__ if name in target.__struct_fields__]
    with_object = next((name for name in ("session", "response", "item") if name in names), None)
    if with_object is None:
        return lambda event: target(**{name: getattr(event, name) for name in names})
    return lambda event: target(
        **{name: getattr(event, name) for name in names} | {with_object: convert_object(getattr(event, with_object))}
    )


def _session_converter(source: type[Tagged], target: type[Tagged], transcription_target: type[Tagged]) -> _Converter:
    convert, convert_transcription = (_converter(source, kind, _flat_object) for kind in (target, transcription_target))
    return lambda event: convert_transcription(event) if isinstance(event.session, TranscriptionSession) else convert(event)


def _error(event: server.ErrorEvent) -> server.ErrorEvent:
    # The session machine works with GA types, so its errors name GA fields.
    error = event.error
    if error.param is None:
        return event
    error = msgspec.structs.replace(error, message=to_beta_names(error.message), param=to_beta_names(error.param))
    return msgspec.structs.replace(event, error=error)


def _transcription_failed(event: server.InputAudioTranscriptionFailed) -> server.InputAudioTranscriptionFailed:
    # The beta always has `param` in this error, null if there is none; GA clients reject a null there.
    param = None if event.error.param is UNSET else event.error.param
    return msgspec.structs.replace(event, error=msgspec.structs.replace(event.error, param=param))


_BETA_KINDS: dict[type[Tagged], type[Tagged]] = {
    client.SessionUpdate: SessionUpdate,
    client.ResponseCreate: ResponseCreate,
    server.SessionCreated: SessionCreated,
    server.SessionUpdated: SessionUpdated,
    server.ConversationItemAdded: server.ConversationItemCreated,
    server.ResponseCreated: ResponseCreated,
    server.ResponseDone: ResponseDone,
    server.ResponseOutputTextDelta: ResponseTextDelta,
    server.ResponseOutputTextDone: ResponseTextDone,
    server.ResponseOutputAudioTranscriptDelta: ResponseAudioTranscriptDelta,
    server.ResponseOutputAudioTranscriptDone: ResponseAudioTranscriptDone,
    server.ResponseOutputAudioDelta: ResponseAudioDelta,
    server.ResponseOutputAudioDone: ResponseAudioDone,
    server.ResponseFunctionCallArgumentsDone: FunctionCallArgumentsDone,
}

_KINDS_WITH_ITEM: tuple[type[Tagged], ...] = (
    client.ConversationItemCreate,
    server.ConversationItemCreated,
    server.ConversationItemRetrieved,
    server.ResponseOutputItemAdded,
    server.ResponseOutputItemDone,
)

_TO_BETA: dict[type[Tagged], _Converter] = {
    **{kind: _converter(kind, beta_kind, _flat_object) for kind, beta_kind in _BETA_KINDS.items()},
    **{kind: _converter(kind, kind, _flat_object) for kind in _KINDS_WITH_ITEM},
    client.SessionUpdate: _session_converter(client.SessionUpdate, SessionUpdate, TranscriptionSessionUpdate),
    server.SessionUpdated: _session_converter(server.SessionUpdated, SessionUpdated, TranscriptionSessionUpdated),
    server.ErrorEvent: _error,
    server.InputAudioTranscriptionCompleted: lambda event: msgspec.structs.replace(event, languages=UNSET),
    server.InputAudioTranscriptionFailed: _transcription_failed,
}

_TO_GA: dict[type[Tagged], _Converter] = {
    **{beta_kind: _converter(beta_kind, kind, _nested_object) for kind, beta_kind in _BETA_KINDS.items()},
    TranscriptionSessionUpdate: _converter(TranscriptionSessionUpdate, client.SessionUpdate, _nested_transcription_session),
    TranscriptionSessionCreated: _converter(TranscriptionSessionCreated, server.SessionCreated, _nested_transcription_session),
    TranscriptionSessionUpdated: _converter(TranscriptionSessionUpdated, server.SessionUpdated, _nested_transcription_session),
    SessionCreated: _converter(SessionCreated, server.SessionCreated, _nested_created_session),
}

_GA_ONLY_KINDS = frozenset(get_args(server.ServerEvent)) - frozenset(get_args(BetaServerEvent)) - _TO_BETA.keys()


def _convert(event: Any, converters: dict[type[Tagged], _Converter]) -> Any:
    convert = converters.get(type(event))
    return event if convert is None else convert(event)


def _check_modalities(event: BetaClientEvent) -> None:
    if isinstance(event, SessionUpdate):
        check_beta_modalities(event.session.modalities, "session.modalities")
    elif isinstance(event, ResponseCreate) and event.response is not UNSET:
        check_beta_modalities(event.response.modalities, "response.modalities")


def decode_client(frame: bytes) -> client.ClientEvent:
    """
    Decode a beta client's frame as a GA event.

    Raises:
        ClientError: it is not a valid event of the beta.
    """
    event = _client_reader.read(frame)
    if type(event) is client.InputAudioBufferAppend:
        return event
    check_depth(frame)
    _check_modalities(event)
    ga_event: client.ClientEvent = _convert(event, _TO_GA)
    client.check_event(ga_event)
    return ga_event


def encode_client(event: client.ClientEvent) -> bytes:
    """JSON of a client's event, for a beta server."""
    return encode(_convert(event, _TO_BETA))


def encode_server(event: server.ServerEvent) -> bytes | None:
    """JSON of a server's event, for a beta client; None if the beta has no such event."""
    return None if type(event) in _GA_ONLY_KINDS else encode(_convert(event, _TO_BETA))


def decode_server(frame: bytes) -> server.ServerEvent | Unknown:
    """
    Decode a beta server's frame as a GA event; `Unknown` if it does not fit this version's types.

    Raises:
        ClientError: it is not an event.
    """
    event: server.ServerEvent | Unknown = _convert(_server_reader.read(frame), _TO_GA)
    return event
