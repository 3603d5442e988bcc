"""Which sessions are recorded."""

from collections.abc import Sequence

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.recording.recorder import RecordingTap, should_record
from antiphon.runtime.service import Service
from antiphon.server.http.auth import request_caller

RECORD_HEADER, RECORD_QUERY = "antiphon-record", "record"

_TRUE_VALUES = ("1", "yes", "true")


def wants_recording(scope: Scope) -> bool:
    """Whether a client wants its session to be recorded."""
    header, query = Headers(scope=scope).get(RECORD_HEADER, ""), QueryParams(scope["query_string"]).get(RECORD_QUERY, "")
    return header.strip().lower() in _TRUE_VALUES or query.lower() in _TRUE_VALUES


def recording_taps(service: Service, caller: Caller, *, protocol: str, mode: str, model: str, is_requested: bool) -> Sequence[RecordingTap]:
    """
    What records a session: one tap, or none. It is to be told of the session's end.

    Args:
        wanted: whether the client asks for it.
    """
    if service.recorder is None or not should_record(service.config.recording.when, caller.key, is_requested=is_requested):
        return ()
    key_id = caller.key.id if caller.key is not None else None
    return (service.recorder.tap(tenant=caller.tenant, key_id=key_id, protocol=protocol, mode=mode, model=model),)


def realtime_recording_taps(service: Service, scope: Scope, session_config: RealtimeSessionConfig) -> Sequence[RecordingTap]:
    """What records a Realtime session, as its request and its key want it."""
    mode = "transcription" if session_config.is_transcription else "conversation"
    return recording_taps(
        service, request_caller(scope), protocol="realtime", mode=mode, model=session_config.model, is_requested=wants_recording(scope)
    )
