"""JSON responses, and errors in the shape of the API that a request speaks: OpenAI's, or Anthropic's Messages."""

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from antiphon.errors import ApiError, ClientError, innermost_error, shorten
from antiphon.server.http.absent_paths import absent_path_error, is_messages_path
from antiphon.server.http.headers import request_headers
from antiphon.server.transport.response_cycle import BODY_KEY
from antiphon.wire.codec.types import encode
from antiphon.wire.messages.errors import message_error, message_error_status
from antiphon.wire.responses.profiles import EventEncoder, encoder_for_path

DEFECT_MESSAGE = "The server had an error while processing your request. Please try again; if it persists, see the server's log."
"""What a client reads of a bug; the log has the traceback."""

REQUEST_ID_SCOPE_KEY = "antiphon.request_id"
"""Where a request keeps its id."""


MAX_SDK_WAIT_S = 60
"""OpenAI's SDKs ignore a longer `retry-after`, and would try again after a second; they obey `x-should-retry`."""


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response; `body` is plain values or encoded JSON."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    if headers is None and status == 200:
        return _JsonResponse(content)
    return Response(content, status, headers, media_type="application/json")


class _JsonResponse(Response):
    """The answer to most requests; the parent would look for its headers among those that it has not."""

    def __init__(self, content: bytes) -> None:
        self.status_code = 200
        self.background = None
        self.body = content
        self.raw_headers = [(b"content-length", b"%d" % len(content)), (b"content-type", b"application/json")]

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers, BODY_KEY: self.body})


def add_headers(reply: Response, headers: Mapping[str, str]) -> None:
    """Add headers that the response does not have yet; their names are in lower case."""
    reply.raw_headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


PROFILE_SCOPE_KEY = "antiphon.profile"
"""The encoder of the profile that a request is answered in, on routes of the Responses API."""


def error_response(error: ApiError, scope: Scope | None = None) -> Response:
    """
    An error in the shape of the request's API or profile.

    Args:
        scope: of the request; None for the shape that OpenAI's SDKs read.
    """
    headers = retry_headers(error)
    if scope is not None and speaks_messages(scope):
        request_id: str = scope[REQUEST_ID_SCOPE_KEY]
        headers |= {"request-id": request_id}
        return json_response(encode(message_error(error, request_id)), message_error_status(error), headers)
    if error.status == 426:  # RFC 9110 15.5.22: 426 must name the protocol; RFC 6455 4.4: and the version
        headers |= {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    body = error.body()
    if scope is not None and (encoder := _encoder(scope)) is not None:
        body = encoder.encode_error(body, error.status)
    return json_response(body, error.status, headers)


def _encoder(scope: Scope) -> EventEncoder | None:
    encoder: EventEncoder | None = scope.get(PROFILE_SCOPE_KEY)
    # A path without a route has no encoder yet; its base path still says what the client speaks.
    return encoder or encoder_for_path(scope["path"])


def speaks_messages(scope: Scope) -> bool:
    """
    Whether a request is one of Anthropic's API: by its route, or by the header that all its clients send to routes which
    both APIs have.
    """
    route = scope.get("route")
    has_own_route = is_messages_path(scope["path"]) if route is None else getattr(route, "is_messages", False)
    return has_own_route or request_headers(scope).get("anthropic-version") is not None


def retry_headers(error: ApiError) -> dict[str, str]:
    """The headers that say when a retry may help."""
    if error.retry_after_s is None:
        return {}
    # RFC 9110, 10.2.3: whole seconds. A 0 would bring the client back at once.
    headers = {"retry-after": str(max(1, round(error.retry_after_s)))}
    if error.retry_after_s > MAX_SDK_WAIT_S:
        headers["x-should-retry"] = "false"
    return headers


async def on_api_error(request: Request, error: Exception) -> Response:
    """An `ApiError` that a route raised."""
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = shorten(request.scope["path"])
    if error.status_code in (404, 405):
        absent = absent_path_error(request.scope, request.app.routes, has_other_methods=error.status_code == 405)
        if absent is not None:
            return error_response(absent, request.scope)
    texts = {404: f"Invalid URL ({request.method} {path})", 405: f"Not allowed to {request.method} on {path}."}
    message = texts.get(error.status_code, str(error.detail))
    api_error = ClientError(message, status=error.status_code, code="unknown_url" if error.status_code == 404 else None)
    reply = error_response(api_error, request.scope)
    if error.status_code == 405:
        # RFC 9110, 15.5.6: a 405 must have it.
        reply.headers["allow"] = ", ".join(_allowed_methods(request))
    return reply


def _allowed_methods(request: Request) -> list[str]:
    """The methods of all routes with this path."""
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes if route.path == routes[0].path for method in route.methods or ()})


async def on_exception_group(request: Request, error: Exception) -> Response:
    """An `ApiError` that a task group raised; other errors are raised again."""
    assert isinstance(error, ExceptionGroup)
    errors, rest = error.split(ApiError)
    # An expected error beside a defect must not hide it.
    if errors is None or rest is not None:
        raise error
    return await on_api_error(request, first_error(errors))


def first_error(group: ExceptionGroup[ApiError]) -> ApiError:
    """The first of the errors in a group, at any depth."""
    first = innermost_error(group)
    assert isinstance(first, ApiError)
    return first


async def on_client_disconnect(_request: Request, _error: Exception) -> Response:
    """The client left before its request was complete; only the log sees this."""
    return Response(status_code=499)


async def on_unexpected_error(request: Request, _error: Exception) -> Response:
    """A bug; the traceback is logged, never sent."""
    return error_response(ApiError(DEFECT_MESSAGE), request.scope)
