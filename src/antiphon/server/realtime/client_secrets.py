"""
Client secrets over HTTP: `POST /v1/realtime/client_secrets`, and the beta's two endpoints for sessions.

What a secret's sessions are to begin with is looked at as it will be when they do, so that a mistake in it is told to the server that
asks, and not to the browser that it gives the secret to.
"""

from collections.abc import Callable
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.errors import ClientError
from antiphon.protocols.realtime.settings import initial_session
from antiphon.runtime.access.client_secrets import NewClientSecret
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, request_caller
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
"""What a secret may carry: it is kept until it expires, whoever has it, and read whenever it is used."""


def routes(service: Service) -> list[Route]:
    """Everything under `/v1/realtime` that makes secrets."""

    def making(decode: Callable[[bytes], SecretOptions], encode: Callable[[str, int, AnySession], bytes]) -> Callable[[Request], Any]:
        async def make(request: Request) -> Response:
            wanted = decode(await read_json_body(request))
            made, told = await _create_secret(service, request_caller(request.scope), wanted)
            return json_response(encode(made.value, made.expires_at, told))

        return make

    endpoints = {
        "/v1/realtime/client_secrets": making(decode_secret_request, encode_secret),
        "/v1/realtime/sessions": making(decode_beta_session_request, encode_beta_session),
        "/v1/realtime/transcription_sessions": making(decode_beta_transcription_request, encode_beta_session),
    }
    return [GuardedRoute(path, endpoint, service=service, access="realtime", methods=["POST"]) for path, endpoint in endpoints.items()]


async def _create_secret(service: Service, caller: Caller, request: SecretOptions) -> tuple[NewClientSecret, AnySession]:
    """
    A secret for such a session, and the whole session as it is told first.

    Raises:
        ClientError: there can't be such a session.
    """
    service.live_sessions.check_admission()
    session = request.session
    model = conversation_model(service, session) if isinstance(session, Session) else transcription_model(service)
    opening = build_session_config(service, model, caller, session=session, is_transcription=isinstance(session, TranscriptionSession))
    told = initial_session(opening, new_id("sess"), 0)  # what has not begun has no end yet
    kept = encode_session(structs.replace(session, model=model.name) if isinstance(session, Session) else session)
    if len(kept) > SESSION_LIMIT_BYTES:
        raise ClientError(
            f"The session is too large. The limit is {SESSION_LIMIT_BYTES} bytes.", status=413, code="request_too_large", param="session"
        )
    return await service.client_secrets.create(caller, kept, request.lasts_s), told
