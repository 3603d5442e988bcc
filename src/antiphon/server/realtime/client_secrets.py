"""
Client secrets: `POST /v1/realtime/client_secrets`, and the two session endpoints of the beta.

The session in the request is validated here, so that an error reaches the server that creates the secret, and not the
browser that uses it.
"""

from collections.abc import Callable

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError
from antiphon.offload import offload
from antiphon.protocols.realtime.settings import initial_session
from antiphon.runtime.access.client_secrets import NewClientSecret
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, guarded_routes, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import COMPRESSED_BODY, INVALID_REQUEST, UNAVAILABLE, Operation
from antiphon.server.realtime.negotiation import build_session_config, conversation_model, transcription_model
from antiphon.wire.realtime.endpoints import (
    BetaSession,
    BetaSessionRequest,
    ClientSecret,
    ClientSecretRequest,
    SecretOptions,
    decode_beta_session_request,
    decode_beta_transcription_request,
    decode_secret_request,
    encode_beta_session,
    encode_secret,
)
from antiphon.wire.realtime.session import AnySession, Session, TranscriptionSession, encode_session

SESSION_LIMIT_BYTES = 256 << 10
"""Limit of the stored session: it is kept until the secret expires, and read on every use."""

SECRET_ERRORS = COMPRESSED_BODY | {
    400: INVALID_REQUEST,
    404: "There is no such model, or none that transcribes.",
    413: "The body, or the session in it, is too large.",
    503: UNAVAILABLE,
}

_CREATE = Operation(
    "createClientSecret",
    "Realtime",
    "Create a secret that opens sessions",
    ClientSecret,
    ClientSecretRequest,
    errors=SECRET_ERRORS,
    description="For a client that is not trusted with a key, such as a page in a browser. Until it expires, the secret opens sessions "
    "that begin with what is in `session`, and does nothing else.",
)
_CREATE_BETA = Operation(
    "createBetaSession", "Realtime", "The same, in the beta dialect", BetaSession, BetaSessionRequest, errors=SECRET_ERRORS
)
_CREATE_BETA_TRANSCRIPTION = _CREATE_BETA._replace(
    id="createBetaTranscriptionSession", summary="The same, for sessions of the beta dialect that only transcribe"
)


def routes(service: Service) -> list[GuardedRoute]:
    """All routes that create secrets."""

    def endpoint_for(decode: Callable[[bytes], SecretOptions], encode: Callable[[str, int, AnySession], bytes]) -> EndpointFunction:
        async def create(request: Request) -> Response:
            body = await read_json_body(request)
            options = await offload(len(body), decode, body)
            secret, session = await _create_secret(service, request_caller(request.scope), options)
            return json_response(encode(secret.value, secret.expires_at, session))

        return create

    create = endpoint_for(decode_secret_request, encode_secret)
    create_beta = endpoint_for(decode_beta_session_request, encode_beta_session)
    create_beta_transcription = endpoint_for(decode_beta_transcription_request, encode_beta_session)
    return guarded_routes(
        service,
        [
            ("POST", "/v1/realtime/client_secrets", create, "realtime", _CREATE),
            ("POST", "/v1/realtime/sessions", create_beta, "realtime", _CREATE_BETA),
            ("POST", "/v1/realtime/transcription_sessions", create_beta_transcription, "realtime", _CREATE_BETA_TRANSCRIPTION),
        ],
    )


async def _create_secret(service: Service, caller: Caller, request: SecretOptions) -> tuple[NewClientSecret, AnySession]:
    """
    A new secret, and the session as it will begin.

    Raises:
        ClientError: the session is not valid.
    """
    service.live_sessions.check_admission()
    await service.speech.prepare()
    session = request.session
    model = conversation_model(service, caller, session) if isinstance(session, Session) else transcription_model(service)
    session_config = build_session_config(
        service, model, caller, session=session, is_transcription=isinstance(session, TranscriptionSession)
    )
    initial = initial_session(session_config, new_id("sess"), 0)  # it has not begun, so it has no expiry
    session_json = encode_session(structs.replace(session, model=model.name) if isinstance(session, Session) else session)
    if len(session_json) > SESSION_LIMIT_BYTES:
        raise ClientError(
            f"The session is too large. The limit is {SESSION_LIMIT_BYTES} bytes.", status=413, code="request_too_large", param="session"
        )
    return await service.client_secrets.create(caller, session_json, request.lasts_s), initial
