"""
The beta of the Realtime API, on the wire only: events of a beta peer become GA events, and the other way round.

Events that the beta does not have are not sent to a beta client. Where GA sends `conversation.item.added` and then
`.done`, the beta sends `conversation.item.created` once, when the item is added.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import Opt, Tagged, Unknown, encode
from antiphon.wire.realtime import client_events as client, server_events as server
from antiphon.wire.realtime.beta_shapes import (
    FlatParams,
    FlatResponse,
    FlatSession,
    check_beta_modalities,
    flat_item,
    flat_params,
    flat_response,
    flat_session,
    nested_params,
    nested_response,
    nested_session,
    nested_transcription_session,
)
from antiphon.wire.realtime.decode import EventReader
from antiphon.wire.realtime.session import TranscriptionSession

_Converter = Callable[[Any], Any]


def _copy_as(kind: type[Tagged]) -> _Converter:
    """Converts an event to another kind with the same fields."""
    names = [each.name for each in msgspec.structs.fields(kind)]
    return lambda event: kind(**{name: getattr(event, name) for name in names})


def _convert(event: Any, converters: dict[type[Any], _Converter]) -> Any:
    convert = converters.get(type(event))
    return event if convert is None else convert(event)


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


def _to_ga_session_update(event: SessionUpdate) -> client.SessionUpdate:
    check_beta_modalities(event.session.modalities, "session.modalities")
    return client.SessionUpdate(event_id=event.event_id, session=nested_session(event.session))


def _to_ga_transcription_update(event: TranscriptionSessionUpdate) -> client.SessionUpdate:
    return client.SessionUpdate(event_id=event.event_id, session=nested_transcription_session(event.session))


def _to_ga_response_create(event: ResponseCreate) -> client.ResponseCreate:
    if event.response is UNSET:
        return client.ResponseCreate(event_id=event.event_id)
    check_beta_modalities(event.response.modalities, "response.modalities")
    return client.ResponseCreate(event_id=event.event_id, response=nested_params(event.response))


_CLIENT_TO_GA: dict[type[Any], _Converter] = {
    SessionUpdate: _to_ga_session_update,
    TranscriptionSessionUpdate: _to_ga_transcription_update,
    ResponseCreate: _to_ga_response_create,
}


def _to_beta_session_update(event: client.SessionUpdate) -> Tagged:
    kind = TranscriptionSessionUpdate if isinstance(event.session, TranscriptionSession) else SessionUpdate
    return kind(event_id=event.event_id, session=flat_session(event.session))


def _to_beta_response_create(event: client.ResponseCreate) -> ResponseCreate:
    return ResponseCreate(event_id=event.event_id, response=UNSET if event.response is UNSET else flat_params(event.response))


def _with_flat_item(event: Any) -> Any:
    return msgspec.structs.replace(event, item=flat_item(event.item))


_CLIENT_TO_BETA: dict[type[Any], _Converter] = {
    client.SessionUpdate: _to_beta_session_update,
    client.ResponseCreate: _to_beta_response_create,
    client.ConversationItemCreate: _with_flat_item,
}


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
    ga_event: client.ClientEvent = _convert(event, _CLIENT_TO_GA)
    client.check_event(ga_event)
    return ga_event


def encode_client(event: client.ClientEvent) -> bytes:
    """JSON of a client's event, for a beta server."""
    return encode(_convert(event, _CLIENT_TO_BETA))


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


def _to_beta_session_created(event: server.SessionCreated) -> SessionCreated:
    return SessionCreated(event_id=event.event_id, session=flat_session(event.session))


def _to_beta_session_updated(event: server.SessionUpdated) -> Tagged:
    kind = TranscriptionSessionUpdated if isinstance(event.session, TranscriptionSession) else SessionUpdated
    return kind(event_id=event.event_id, session=flat_session(event.session))


# The session machine works with GA types, so its errors name GA fields; a beta client gets the beta's names.
_BETA_PATHS = (
    (".audio.input.turn_detection", ".turn_detection"),
    (".audio.input.transcription", ".input_audio_transcription"),
    (".audio.input.noise_reduction", ".input_audio_noise_reduction"),
    (".audio.input.format", ".input_audio_format"),
    (".audio.output.format", ".output_audio_format"),
    (".audio.output.voice", ".voice"),
    (".audio.output.speed", ".speed"),
    (".output_modalities", ".modalities"),
    ("session.max_output_tokens", "session.max_response_output_tokens"),
    ("response.max_output_tokens", "response.max_response_output_tokens"),
    ("'output_text'", "'text'"),
    ("'output_audio'", "'audio'"),
)


def _to_beta_paths(text: str) -> str:
    for path, flat in _BETA_PATHS:
        text = text.replace(path, flat)
    return text


def _to_beta_error(event: server.ErrorEvent) -> server.ErrorEvent:
    error = event.error
    if error.param is None:
        return event
    flat = msgspec.structs.replace(error, message=_to_beta_paths(error.message), param=_to_beta_paths(error.param))
    return msgspec.structs.replace(event, error=flat)


def _to_beta_transcription_failed(event: server.InputAudioTranscriptionFailed) -> server.InputAudioTranscriptionFailed:
    # The beta always has `param` in this error, null if there is none; GA clients reject a null there.
    param = None if event.error.param is UNSET else event.error.param
    return msgspec.structs.replace(event, error=msgspec.structs.replace(event.error, param=param))


def _to_beta_item_created(event: server.ConversationItemAdded) -> server.ConversationItemCreated:
    item_created: server.ConversationItemCreated = _copy_as(server.ConversationItemCreated)(_with_flat_item(event))
    return item_created


_BETA_KINDS: dict[type[Tagged], type[Tagged]] = {
    server.ResponseOutputTextDelta: ResponseTextDelta,
    server.ResponseOutputTextDone: ResponseTextDone,
    server.ResponseOutputAudioTranscriptDelta: ResponseAudioTranscriptDelta,
    server.ResponseOutputAudioTranscriptDone: ResponseAudioTranscriptDone,
    server.ResponseOutputAudioDelta: ResponseAudioDelta,
    server.ResponseOutputAudioDone: ResponseAudioDone,
    server.ResponseFunctionCallArgumentsDone: FunctionCallArgumentsDone,
}

_SERVER_TO_BETA: dict[type[Any], _Converter] = {
    **{kind: _copy_as(beta_kind) for kind, beta_kind in _BETA_KINDS.items()},
    server.SessionCreated: _to_beta_session_created,
    server.SessionUpdated: _to_beta_session_updated,
    server.ErrorEvent: _to_beta_error,
    server.ConversationItemAdded: _to_beta_item_created,
    server.ConversationItemCreated: _with_flat_item,
    server.ConversationItemRetrieved: _with_flat_item,
    server.ResponseOutputItemAdded: _with_flat_item,
    server.ResponseOutputItemDone: _with_flat_item,
    server.InputAudioTranscriptionCompleted: lambda event: msgspec.structs.replace(event, languages=UNSET),
    server.InputAudioTranscriptionFailed: _to_beta_transcription_failed,
    server.ResponseCreated: lambda event: ResponseCreated(event_id=event.event_id, response=flat_response(event.response)),
    server.ResponseDone: lambda event: ResponseDone(event_id=event.event_id, response=flat_response(event.response)),
}

_GA_ONLY_EVENTS = frozenset(
    (
        server.ConversationItemDone,
        server.InputAudioTranscriptionSegment,
        server.InputAudioBufferTimeoutTriggered,
        server.InputAudioBufferDtmfEventReceived,
        server.ResponseMcpCallArgumentsDelta,
        server.ResponseMcpCallArgumentsDone,
        server.ResponseMcpCallInProgress,
        server.ResponseMcpCallCompleted,
        server.ResponseMcpCallFailed,
        server.McpListToolsInProgress,
        server.McpListToolsCompleted,
        server.McpListToolsFailed,
    )
)


def _to_ga_session_created(event: SessionCreated) -> server.SessionCreated:
    only_transcribes = event.session.object == "realtime.transcription_session"
    session = nested_transcription_session(event.session) if only_transcribes else nested_session(event.session)
    return server.SessionCreated(event_id=event.event_id, session=session)


_SERVER_TO_GA: dict[type[Any], _Converter] = {
    **{beta_kind: _copy_as(kind) for kind, beta_kind in _BETA_KINDS.items() if kind is not server.ResponseFunctionCallArgumentsDone},
    FunctionCallArgumentsDone: lambda event: server.ResponseFunctionCallArgumentsDone(
        **{name: getattr(event, name) for name in event.__struct_fields__}
    ),
    server.ConversationItemCreated: _copy_as(server.ConversationItemAdded),
    SessionCreated: _to_ga_session_created,
    SessionUpdated: lambda event: server.SessionUpdated(event_id=event.event_id, session=nested_session(event.session)),
    TranscriptionSessionCreated: lambda event: server.SessionCreated(
        event_id=event.event_id, session=nested_transcription_session(event.session)
    ),
    TranscriptionSessionUpdated: lambda event: server.SessionUpdated(
        event_id=event.event_id, session=nested_transcription_session(event.session)
    ),
    ResponseCreated: lambda event: server.ResponseCreated(event_id=event.event_id, response=nested_response(event.response)),
    ResponseDone: lambda event: server.ResponseDone(event_id=event.event_id, response=nested_response(event.response)),
}


def encode_server(event: server.ServerEvent) -> bytes | None:
    """JSON of a server's event, for a beta client; None if the beta has no such event."""
    return None if type(event) in _GA_ONLY_EVENTS else encode(_convert(event, _SERVER_TO_BETA))


def decode_server(frame: bytes) -> server.ServerEvent | Unknown:
    """
    Decode a beta server's frame as a GA event; `Unknown` if it does not fit this version's types.

    Raises:
        ClientError: it is not an event.
    """
    event: server.ServerEvent | Unknown = _convert(_server_reader.read(frame), _SERVER_TO_GA)
    return event
