"""`POST /v1/responses/input_tokens`: how many tokens an input would take, counted by the engine that would read it."""

from typing import cast

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.engine_api.engine import CountingEngine
from antiphon.errors import ClientMistake, unsupported_parameter
from antiphon.protocols.responses.request import ask, given
from antiphon.runtime.resolve_request import order_of
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, caller_of
from antiphon.server.http.body import body_of
from antiphon.server.http.errors import json_reply
from antiphon.server.responses.omitted import headers_of
from antiphon.wire.codec.reading import Reader, check_depth
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.endpoints import InputTokens, InputTokensRequest
from antiphon.wire.responses.request import CreateRequest, check_request

_reader: Reader[InputTokensRequest] = Reader(InputTokensRequest)


def routes(service: Service) -> list[Route]:
    """`/v1/responses/input_tokens`."""

    async def input_tokens(request: Request) -> Response:
        body = await body_of(request)
        service.live.admit()
        check_depth(body)
        asked = _reader.read(body)
        to_create = _as_request(asked)
        check_request(to_create)
        model = service.registry.find(to_create.model or None)
        if given(asked.personality):
            raise unsupported_parameter("personality", model.name)
        if not model.engine.abilities.counts_tokens:
            raise ClientMistake(f"Counting tokens is not supported with the '{model.name}' model.", code="unsupported_model", param="model")
        carries = service.config.responses.unavailable_tools == "carry"
        tenant = caller_of(request.scope).tenant
        order = await order_of(to_create, model, service.store, tenant, carries=carries, speech=service.speech)
        counted = ask(order)
        count = await cast(CountingEngine, model.engine).count(counted.respond)
        return json_reply(encode(InputTokens(input_tokens=count)), headers=headers_of(counted.left_out))

    return [GuardedRoute("/v1/responses/input_tokens", input_tokens, service=service, access="responses:write", methods=["POST"])]


_SHARED = tuple(name for name in InputTokensRequest.__struct_fields__ if name in CreateRequest.__struct_fields__)


def _as_request(asked: InputTokensRequest) -> CreateRequest:
    """The request for a response to the same input."""
    fields = {name: getattr(asked, name) for name in _SHARED}
    return CreateRequest(**{name: value for name, value in fields.items() if value is not UNSET and value is not None})
