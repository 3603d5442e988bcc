"""The Responses API over HTTP: create whole or streamed, retrieve, delete, and list input items."""

from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from antiphon import talk
from antiphon.errors import ClientMistake, Fault, OurFault, invalid_value, response_not_found
from antiphon.protocols.responses import Responses
from antiphon.runtime.driver import Driver
from antiphon.runtime.ids import Noise, mint
from antiphon.runtime.orders import order_of
from antiphon.runtime.service import Service
from antiphon.server.replies import body_of, fault_reply, json_reply
from antiphon.server.sse import EventStream, stream, watched
from antiphon.stores.base import UnknownCursor
from antiphon.wire.base import encode
from antiphon.wire.profiles import PROFILES, Encoding
from antiphon.wire.responses_events import ResponseCompleted, ResponseFailed, ResponseIncomplete
from antiphon.wire.responses_request import CreateRequest, decode_request

TENANT = ""
"""Everyone's, while the server has no keys."""

PAGE_DEFAULT, PAGE_MOST = 20, 100

TERMINAL = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


def routes(service: Service) -> list[Route]:
    """Everything under `/v1/responses`."""
    encoding = Encoding(PROFILES[service.config.responses.profile])
    return [
        Route("/v1/responses", _Create(service, encoding), methods=["POST"]),
        Route("/v1/responses/{id}", _retrieve(service), methods=["GET"]),
        Route("/v1/responses/{id}", _delete(service), methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", _input_items(service), methods=["GET"]),
    ]


class _Create:
    """`POST /v1/responses`, as a bare ASGI endpoint: a stream writes to its transport."""

    def __init__(self, service: Service, encoding: Encoding) -> None:
        self._service = service
        self._encoding = encoding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await body_of(Request(scope, receive))
        request = decode_request(body)
        model = self._service.registry.find(request.model or None)
        order = await order_of(request, model, self._service.store, TENANT)
        session = Responses(order, mint, self._noise(request))
        settings = talk.Settings(model=model.name, tenant=TENANT)
        if request.stream:
            events = EventStream(self._encoding, scope, send)
            driver = Driver(session, events, self._service.store)
            if await stream(driver.run(model.engine, settings, order), driver, events, scope, receive):
                return
            fault = events.fault or OurFault("The stream ended before it began.")
            await fault_reply(fault)(scope, receive, send)
        else:
            whole = Whole()
            driver = Driver(session, whole, self._service.store)
            await watched(driver.run(model.engine, settings, order), driver, receive)
            await whole.reply()(scope, receive, send)

    def _noise(self, request: CreateRequest) -> Noise | None:
        options = request.stream_options
        wanted = options.include_obfuscation is not False if options else True
        return Noise() if request.stream and wanted and self._service.config.responses.obfuscation else None


class Whole:
    """The client of a response that is not streamed: it waits for the last event."""

    def __init__(self) -> None:
        self._last: Any = None
        self._fault: Fault | None = None

    def send(self, event: Any) -> None:
        """Remember the event; the terminal one carries all."""
        self._last = event

    def flush(self) -> None:
        """Nothing leaves before the end."""

    def close(self, fault: Fault | None) -> None:
        """Nothing more comes."""
        self._fault = fault

    def reply(self) -> Response:
        """The answer over HTTP."""
        if self._fault is not None:
            return fault_reply(self._fault)
        if not isinstance(self._last, TERMINAL):
            return Response(status_code=499)  # the client hung up: nobody reads this
        return json_reply(encode(self._last.response))


def _retrieve(service: Service) -> Any:
    async def retrieve(request: Request) -> Response:
        if request.query_params.get("stream") in ("true", "1"):
            raise ClientMistake(
                "This response can't be streamed: only responses created with 'background' and 'stream' can be.", param="stream"
            )
        record = await service.store.get(TENANT, request.path_params["id"])
        if record is None:
            raise response_not_found(request.path_params["id"])
        return json_reply(record.body)

    return retrieve


def _delete(service: Service) -> Any:
    async def delete(request: Request) -> Response:
        response_id = request.path_params["id"]
        if not await service.store.delete(TENANT, response_id):
            raise response_not_found(response_id)
        return json_reply({"id": response_id, "object": "response", "deleted": True})

    return delete


def _input_items(service: Service) -> Any:
    async def input_items(request: Request) -> Response:
        response_id = request.path_params["id"]
        query = request.query_params
        after = query.get("after")
        try:
            page = await service.store.list_items(
                TENANT, response_id, direction="input", after=after, limit=_limit(query), order=_order(query)
            )
        except UnknownCursor:
            raise ClientMistake(f"Item with id '{after}' not found.", param="after", code="invalid_value") from None
        if page is None:
            raise response_not_found(response_id)
        return json_reply(
            {
                "object": "list",
                "data": [msgspec.Raw(item.body) for item in page.items],
                "first_id": page.items[0].id if page.items else None,
                "last_id": page.items[-1].id if page.items else None,
                "has_more": page.has_more,
            }
        )

    return input_items


def _limit(query: QueryParams) -> int:
    text = query.get("limit", str(PAGE_DEFAULT))
    try:
        limit = int(text)
    except ValueError:
        raise ClientMistake(
            f"Invalid type for 'limit': expected an integer, but got '{text}' instead.", code="invalid_type", param="limit"
        ) from None
    if limit < 1:
        raise _out_of_range("below minimum", ">= 1", limit, "integer_below_min_value")
    if limit > PAGE_MOST:
        raise _out_of_range("above maximum", f"<= {PAGE_MOST}", limit, "integer_above_max_value")
    return limit


def _out_of_range(side: str, expected: str, got: int, code: str) -> ClientMistake:
    return ClientMistake(
        f"Invalid 'limit': integer {side} value. Expected a value {expected}, but got {got} instead.", code=code, param="limit"
    )


def _order(query: QueryParams) -> Any:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid_value("order", order, ["asc", "desc"])
    return order
