"""
Client secrets: `POST /v1/realtime/client_secrets`, and the two session endpoints of the beta.

The session in the request is validated here, so that an error reaches the server that creates the secret, and not the
browser that uses it.
"""

from collections.abc import Callable

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.errors import ClientError
from antiphon.offload import offload
from antiphon.protocols.realtime.settings import initial_session
from antiphon.runtime.access.client_secrets import NewClientSecret
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, GuardedRoute, request_caller
from antiphon.server.http.body import read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.realtime.negotiation import build_session_config, conversation_model, transcription_model
from antiphon.wire.realtime.endpoints import (
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


def routes(service: Service) -> list[Route]:
    """All routes that create secrets."""

    def endpoint_for(decode: Callable[[bytes], SecretOptions], encode: Callable[[str, int, AnySession], bytes]) -> EndpointFunction:
        async def create(request: Request) -> Response:
            body = await read_json_body(request)
            options = await offload(len(body), decode, body)
            secret, session = await _create_secret(service, request_caller(request.scope), options)
            return json_response(encode(secret.value, secret.expires_at, session))

        return create

    endpoints = {
        "/v1/realtime/client_secrets": endpoint_for(decode_secret_request, encode_secret),
        "/v1/realtime/sessions": endpoint_for(decode_beta_session_request, encode_beta_session),
        "/v1/realtime/transcription_sessions": endpoint_for(decode_beta_transcription_request, encode_beta_session),
    }
    return [GuardedRoute(path, endpoint, service=service, access="realtime", methods=["POST"]) for path, endpoint in endpoints.items()]


async def _create_secret(service: Service, caller: Caller, request: SecretOptions) -> tuple[NewClientSecret, AnySession]:
    """
    A new secret, and the session as it will begin.

    Raises:
        ClientError: the session is not valid.
    """
    service.live_sessions.check_admission()
    session = request.session
    model = conversation_model(service, session) if isinstance(session, Session) else transcription_model(service)
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
