"""Decides which sessions are recorded."""

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import InputTranscript
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.recording.recorder import RecordingTap, should_record
from antiphon.runtime.service import Service
from antiphon.server.http.auth import request_caller
from antiphon.server.http.operation import Parameter
from antiphon.server.live.flags import FLAG_SCHEMA, is_true_word, parse_flag

RECORD_HEADER = "antiphon-record"

RECORD_PARAMETER = Parameter("record", "`1` to have the session recorded, where the server does so on request.", FLAG_SCHEMA)


def wants_recording(scope: Scope) -> bool:
    """
    Whether the client asks for a recording: by header, or in the URL, as browsers can't set headers of a WebSocket.

    Raises:
        ClientError: the parameter is neither true nor false.
    """
    is_in_query = parse_flag(QueryParams(scope["query_string"]), RECORD_PARAMETER.name)
    return is_in_query or is_true_word(Headers(scope=scope).get(RECORD_HEADER, ""))


def recording_taps(service: Service, caller: Caller, *, protocol: str, mode: str, model: str, is_requested: bool) -> Sequence[RecordingTap]:
    """
    The taps that record a session: one or none. The caller calls their `end` when the session is over.

    Args:
        is_requested: whether the client asks for it.
    """
    # With the store in memory there is no recorder: nobody could find the recording again.
    if service.recorder is None or not should_record(service.config.recording.when, caller.key, is_requested=is_requested):
        return ()
    key_id = caller.key.id if caller.key is not None else None
    return (service.recorder.tap(tenant=caller.tenant, key_id=key_id, protocol=protocol, mode=mode, model=model),)


def observe_with(recordings: Sequence[RecordingTap]) -> Callable[[InputTranscript], None]:
    """A driver's `observe` that passes on to these taps what the session knows and does not send."""

    def observe(transcript: InputTranscript) -> None:
        for recording in recordings:
            recording.observe(transcript)

    return observe


def realtime_recording_taps(service: Service, scope: Scope, session_config: RealtimeSessionConfig) -> Sequence[RecordingTap]:
    """The taps that record a Realtime session: as `recording_taps`, by what its request and its configuration say."""
    mode = "transcription" if session_config.is_transcription else "conversation"
    return recording_taps(
        service, request_caller(scope), protocol="realtime", mode=mode, model=session_config.model, is_requested=wants_recording(scope)
    )
