"""What every HTTP answer shares: JSON, errors in the original's shape, and the body with its cap."""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from antiphon.errors import ApiError, ClientError, shorten


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON; `body` is plain values, or JSON already."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(content, status, headers, media_type="application/json")


def error_response(fault: ApiError) -> Response:
    """A fault in the shape that OpenAI's SDKs read."""
    headers = {}
    if fault.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(fault.retry_after_s)))
    if fault.status == 426:  # which must say to what (RFC 9110 section 15.5.22), and RFC 6455 section 4.4 wants the version
        headers |= {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    return json_response(fault.body(), fault.status, headers)


async def on_api_error(_request: Request, fault: Exception) -> Response:
    """A `ApiError` that a route raised."""
    assert isinstance(fault, ApiError)
    return error_response(fault)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """No such route, or not with that method."""
    assert isinstance(error, HTTPException)
    path = shorten(request.scope["path"])
    texts = {404: f"Invalid URL ({request.method} {path})", 405: f"Not allowed to {request.method} on {path}."}
    message = texts.get(error.status_code, str(error.detail))
    fault = ClientError(message, status=error.status_code, code="unknown_url" if error.status_code == 404 else None)
    reply = error_response(fault)
    if error.status_code == 405:
        reply.headers["allow"] = ", ".join(_allowed_methods(request))
    return reply


def _allowed_methods(request: Request) -> list[str]:
    """What can be done at the address; each method may have its own route."""
    found = [route for route in request.app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found if route.path == found[0].path for method in route.methods or ()})


async def on_exception_group(request: Request, error: Exception) -> Response:
    """What tasks that ran together raised: one's `ApiError`, or a defect."""
    assert isinstance(error, ExceptionGroup)
    faults, rest = error.split(ApiError)
    if faults is None or rest is not None:
        raise error
    first: BaseException = faults
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, ApiError)
    return await on_api_error(request, first)


async def on_client_disconnect(_request: Request, _error: Exception) -> Response:
    """The client left before its request was whole; nobody reads this but the log."""
    return Response(status_code=499)


async def on_unexpected_error(_request: Request, _error: Exception) -> Response:
    """Something that should not have happened; its trace is logged, never sent."""
    fault = ApiError("The server had an error while processing your request. Please try again; if it persists, see the server's log.")
    return error_response(fault)
