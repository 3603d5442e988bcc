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

from antiphon.errors import ClientMistake
from antiphon.protocols.realtime.settings import initial
from antiphon.runtime.access.client_secrets import Made
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.ids import mint
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, caller_of
from antiphon.server.http.body import body_of
from antiphon.server.http.errors import json_reply
from antiphon.server.realtime.negotiation import answerer, opening_for, transcriber
from antiphon.wire.realtime.endpoints import (
    Wanted,
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

    def making(decode: Callable[[bytes], Wanted], encode: Callable[[str, int, AnySession], bytes]) -> Callable[[Request], Any]:
        async def make(request: Request) -> Response:
            wanted = decode(await body_of(request))
            made, told = await _made(service, caller_of(request.scope), wanted)
            return json_reply(encode(made.value, made.expires_at, told))

        return make

    endpoints = {
        "/v1/realtime/client_secrets": making(decode_secret_request, encode_secret),
        "/v1/realtime/sessions": making(decode_beta_session_request, encode_beta_session),
        "/v1/realtime/transcription_sessions": making(decode_beta_transcription_request, encode_beta_session),
    }
    return [GuardedRoute(path, endpoint, service=service, access="realtime", methods=["POST"]) for path, endpoint in endpoints.items()]


async def _made(service: Service, caller: Caller, wanted: Wanted) -> tuple[Made, AnySession]:
    """
    A secret for such a session, and the whole session as it is told first.

    Raises:
        ClientMistake: there can't be such a session.
    """
    service.live.admit()
    session = wanted.session
    model = answerer(service, session) if isinstance(session, Session) else transcriber(service)
    opening = opening_for(service, model, caller, session=session, is_transcription=isinstance(session, TranscriptionSession))
    told = initial(opening, mint("sess"), 0)  # what has not begun has no end yet
    kept = encode_session(structs.replace(session, model=model.name) if isinstance(session, Session) else session)
    if len(kept) > SESSION_LIMIT_BYTES:
        raise ClientMistake(
            f"The session is too large. The limit is {SESSION_LIMIT_BYTES} bytes.", status=413, code="request_too_large", param="session"
        )
    return await service.client_secrets.make(caller, kept, wanted.lasts_s), told
