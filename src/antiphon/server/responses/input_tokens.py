"""`POST /v1/responses/input_tokens`: the number of tokens of an input, counted by the engine that would read it."""

from typing import cast

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.engine_api.engine import CountingEngine
from antiphon.errors import ClientError, unsupported_parameter
from antiphon.offload import offload
from antiphon.protocols.responses.request import engine_request, is_set
from antiphon.runtime.resolve_request import resolve_request
from antiphon.runtime.server_tools import open_tools
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY, read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.responses.omitted import omission_headers
from antiphon.server.responses.routing import route_request
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.endpoints import InputTokens, InputTokensRequest
from antiphon.wire.responses.request import CreateRequest, check_request

_reader: Reader[InputTokensRequest] = Reader(InputTokensRequest)


def count_input_tokens(service: Service) -> EndpointFunction:
    """The endpoint of `POST /v1/responses/input_tokens`."""

    async def input_tokens(request: Request) -> Response:
        body = await read_json_body(request)
        service.live_sessions.check_admission()
        options, create_request = await offload(len(body), _decode, body)
        tenant = request_caller(request.scope).tenant
        filled_request = await service.prompts.fill(tenant, create_request, len(body))
        create_request, size_bytes = filled_request.request, len(body) + filled_request.added_bytes
        routed_request = await route_request(service, request_caller(request.scope), create_request, size_bytes)
        resolution = routed_request.resolution
        model = resolution.model
        # The original counts the tokens of its own text for it, which this server does not have.
        if is_set(options.personality):
            raise unsupported_parameter("personality", None)
        model.require_worker()
        if not model.engine.capabilities.counts_tokens:
            raise ClientError(f"Counting tokens is not supported with the '{model.name}' model.", code="unsupported_model", param="model")
        lease = request.scope[BODY_LEASE_SCOPE_KEY]
        lease.extend(size_bytes)
        history = routed_request.history
        resolved_request = await resolve_request(service, create_request, model, tenant, size_bytes, lease=lease, history=history)
        resolved_request, _tools = await open_tools(service.toolbox, service.config.tools, resolved_request)
        counted_request = await offload(resolved_request.engine_bytes, engine_request, resolved_request)
        count = await cast(CountingEngine, model.engine).count(counted_request.respond)
        headers = {**omission_headers(counted_request.omissions), **resolution.headers}
        return json_response(encode(InputTokens(input_tokens=count)), headers=headers)

    return input_tokens


def _decode(body: bytes) -> tuple[InputTokensRequest, CreateRequest]:
    check_structure(body)
    options = _reader.read(body)
    create_request = _to_create_request(options)
    check_request(create_request)
    return options, create_request


_SHARED_FIELDS = tuple(name for name in InputTokensRequest.__struct_fields__ if name in CreateRequest.__struct_fields__)


def _to_create_request(request: InputTokensRequest) -> CreateRequest:
    """The equivalent request for a response."""
    fields = {name: getattr(request, name) for name in _SHARED_FIELDS}
    return CreateRequest(**{name: value for name, value in fields.items() if value is not UNSET and value is not None})
