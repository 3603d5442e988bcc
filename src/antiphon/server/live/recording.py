"""Which sessions are recorded."""

from collections.abc import Sequence

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from antiphon.protocols.realtime.settings import Opening
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.recording.recorder import Recording, is_wanted
from antiphon.runtime.service import Service
from antiphon.server.http.auth import caller_of

HEADER, QUERY = "antiphon-record", "record"

_YES = ("1", "yes", "true")


def asks(scope: Scope) -> bool:
    """Whether a client wants its session to be recorded."""
    header, query = Headers(scope=scope).get(HEADER, ""), QueryParams(scope["query_string"]).get(QUERY, "")
    return header.strip().lower() in _YES or query.lower() in _YES


def recording_taps(service: Service, caller: Caller, *, protocol: str, mode: str, model: str, wanted: bool) -> Sequence[Recording]:
    """
    What records a session: one tap, or none. It is to be told of the session's end.

    Args:
        wanted: whether the client asks for it.
    """
    if service.recorder is None or not is_wanted(service.config.recording.when, caller.key, asks=wanted):
        return ()
    key_id = caller.key.id if caller.key is not None else None
    return (service.recorder.tap(tenant=caller.tenant, key_id=key_id, protocol=protocol, mode=mode, model=model),)


def recordings_of(service: Service, scope: Scope, opening: Opening) -> Sequence[Recording]:
    """What records a Realtime session, as its request and its key want it."""
    mode = "transcription" if opening.is_transcription else "conversation"
    return recording_taps(service, caller_of(scope), protocol="realtime", mode=mode, model=opening.model, wanted=asks(scope))
