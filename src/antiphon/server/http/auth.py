"""
Who may use a route: checks the host, the origin, the key, its scope and its limits.

The route that matched decides, never the path as text, and before any of the body is read.
"""

import contextlib
import datetime
import functools
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.config.settings import ServerSettings
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.errors import ApiError, ClientError, shorten
from antiphon.runtime.access import keys
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.access.rate_limits import LimitKind, LimitState, format_duration
from antiphon.runtime.core.resolver import asking_client
from antiphon.runtime.service import Service
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.http.errors import REQUEST_ID_SCOPE_KEY, on_api_error, on_exception_group, on_http_exception
from antiphon.server.http.headers import request_headers
from antiphon.server.http.operation import Operation
from antiphon.server.tls.names import machine_names
from antiphon.server.transport.host import parse_host

Access = Literal["probe", "public", "worker", "console"] | keys.Scope
"""
Who may use a route. `probe`: everyone, under any host name; `public`: everyone; `worker`: holders of the workers' key;
`console`: every key whatever its scopes, and a browser by the page's cookie; otherwise keys with that scope.
"""

EndpointFunction: TypeAlias = Callable[[Request], Awaitable[Response]]

_EXCEPTION_HANDLERS = {ApiError: on_api_error, ExceptionGroup: on_exception_group, HTTPException: on_http_exception}

_CALLER_SCOPE_KEY = "antiphon.caller"
API_KEY_SUBPROTOCOL_PREFIX = "openai-insecure-api-key."

_ALLOWED_METHODS = "GET, POST, DELETE"
_PREFLIGHT_AGE_S = 600
_EXPOSED_HEADERS = (
    "x-request-id, openai-processing-ms, retry-after, location, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    "antiphon-tools-not-offered, antiphon-grammars-not-enforced, antiphon-items-not-told, antiphon-not-stored, antiphon-estimated, "
    "request-id, anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, "
    "anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset, "
    "antiphon-model, antiphon-attempts, antiphon-fallback, antiphon-upstream, antiphon-route, antiphon-rewrite"
)


class GuardedRoute(Route):
    """
    A route that checks who may use it.

    Args:
        access: who may.
        operation: what the route takes and returns, for `/openapi.json`.

    Attributes:
        is_messages: whether it is one of Anthropic's API, whose errors and headers differ.
    """

    is_messages = False

    def __init__(
        self,
        path: str,
        endpoint: EndpointFunction | ASGIApp,
        *,
        service: Service,
        access: Access,
        operation: Operation,
        method: str = "GET",
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.access = access
        self.operation = operation
        self.service = service

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a matched request, or refuse it."""
        headers = request_headers(scope)
        is_messages = self.is_messages or headers.get("anthropic-version") is not None  # as `speaks_messages`
        sender = _ResponseSender(send, scope.get(REQUEST_ID_SCOPE_KEY, "") if is_messages else None)
        lease: BodyLease | None = None
        try:
            if self.access != "probe":
                sender.origin = verify_origin(headers, self.service.config.server, needs_key=self.access != "public")
            # Fetch, CORS-preflight fetch: it has no credentials, so it is answered before a key is asked for.
            if sender.origin and scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_preflight_headers(headers))(scope, receive, sender)
                return
            if self.access not in ("probe", "public"):
                caller = await self._authorize(scope, headers, sender)
                holder = _budget_holder(scope, caller)
                # Each client has its share of the threads that resolve host names, which this request may need.
                asking_client.set(holder)
                lease = scope[BODY_LEASE_SCOPE_KEY] = self.service.body_budget.lease(holder)
            # With a method of its own, the parent would do the same, one coroutine deeper.
            await (self.app if scope["method"] in (self.methods or ()) else super().handle)(scope, receive, sender)
        except (
            ApiError,
            ExceptionGroup,
            HTTPException,
        ) as error:  # handled here, so that the response gets its CORS and rate limit headers
            if sender.has_begun:
                raise
            await self.refuse(error, scope, receive, sender)
        finally:
            if lease is not None:
                lease.release()

    async def refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error to the client."""
        respond = next(respond for kind, respond in _EXCEPTION_HANDLERS.items() if isinstance(error, kind))
        await (await respond(Request(scope), error))(scope, receive, send)

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """
        The caller.

        Raises:
            ClientError: 401; the key is missing or wrong.
        """
        # A probe asks whether a key is valid, and is not noted as a use of it. On this route only, which changes nothing and
        # shows little: elsewhere it would hide the use of a stolen key.
        is_probe = self.path == "/v1/models" and "antiphon-probe" in headers
        secret = credential(headers)
        if secret is not None and secret.startswith(keys.CONSOLE_KEY_PREFIX):
            return (await self.service.console_keys.redeem(secret)).caller
        return await self.service.keyring.authenticate(secret, is_probe=is_probe)

    def is_open_to(self, scopes: Sequence[str]) -> bool:
        """Whether a key with these scopes may use the route."""
        return self.access in scopes

    async def _authorize(self, scope: Scope, headers: Headers, sender: "_ResponseSender") -> Caller:
        caller = sender.caller = await self.identify(scope, headers)
        if caller.key is not None and not self.is_open_to(caller.key.scopes):
            raise missing_scope_error(self.access)
        scope[_CALLER_SCOPE_KEY] = caller  # also of a request that is refused now: refusals are counted
        await self.count_request(caller)
        return caller

    async def count_request(self, caller: Caller) -> None:
        """
        Count the request against the limits of its key.

        Raises:
            ClientError: `rate_limit_exceeded`.
        """
        if caller.allowance is not None:
            await caller.allowance.begin_request()


def guarded_routes(service: Service, rows: Iterable[tuple[str, str, EndpointFunction | ASGIApp, Access, Operation]]) -> list[GuardedRoute]:
    """A route for each row of method, path, endpoint, access and operation."""
    return [
        GuardedRoute(path, endpoint, service=service, access=access, operation=operation, method=method)
        for method, path, endpoint, access, operation in rows
    ]


def request_caller(scope: Scope) -> Caller:
    """The caller, on a route that needs a key."""
    caller: Caller = scope[_CALLER_SCOPE_KEY]
    return caller


def refused_caller(scope: Scope) -> Caller | None:
    """The caller, as far as it was found out before a request was refused."""
    return scope.get(_CALLER_SCOPE_KEY)


def _budget_holder(scope: Scope, caller: Caller) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return caller.key.id if caller.key is not None else client[0] if client else ""


def conversation_settings(scope: Scope, model: str, kind: ConversationKind) -> ConversationSettings:
    """Settings for a new conversation of the caller's."""
    return caller_settings(request_caller(scope), model, kind)


def caller_settings(caller: Caller, model: str, kind: ConversationKind, cache_key: str = "") -> ConversationSettings:
    """The same for a caller without a connection; `cache_key` as `ConversationSettings` has it."""
    key_id = caller.key.id if caller.key else ""
    return ConversationSettings(model=model, tenant=caller.tenant, kind=kind, key_id=key_id, cache_key=cache_key)


def track_response(scope: Scope, total_tokens: Callable[[], int]) -> AbstractAsyncContextManager[None]:
    """
    Count a running response against the limits of the key.

    Args:
        total_tokens: called at the end for the tokens of the response.

    Raises:
        ClientError: on entering; the key has its maximum of running responses.
    """
    allowance = request_caller(scope).allowance
    return contextlib.nullcontext() if allowance is None else allowance.track_response(total_tokens)


def rate_limit_headers(states: Mapping[LimitKind, LimitState]) -> dict[str, str]:
    """Headers that say what is left of a key's limits."""
    headers: dict[str, str] = {}
    for kind, state in states.items():
        headers[f"x-ratelimit-limit-{kind}"] = str(state.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(state.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = format_duration(state.full_in_s)
    return headers


def message_rate_limit_headers(states: Mapping[LimitKind, LimitState]) -> dict[str, str]:
    """The same for clients of Anthropic's API; the times are as in RFC 3339."""
    headers: dict[str, str] = {}
    for kind, state in states.items():
        full_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=state.full_in_s)
        headers[f"anthropic-ratelimit-{kind}-limit"] = str(state.limit)
        headers[f"anthropic-ratelimit-{kind}-remaining"] = str(state.remaining)
        headers[f"anthropic-ratelimit-{kind}-reset"] = full_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return headers


def token_counter(scope: Scope) -> Callable[[int], None]:
    """Takes the tokens of each of a session's responses off the limits of the key."""
    allowance = request_caller(scope).allowance
    return (lambda _tokens: None) if allowance is None else allowance.count_tokens


def credential(headers: Headers) -> str | None:
    """
    The key that comes with a request: as bearer token, in `api-key` as Azure's clients send it, in `x-api-key` as
    Anthropic's do, or as WebSocket subprotocol, because browsers can't set headers on a WebSocket.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    # RFC 9110, 11.1: the name of the scheme is case-insensitive.
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    if key := headers.get("api-key", "").strip() or headers.get("x-api-key", "").strip():
        return key
    subprotocols = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    return next(
        (name.removeprefix(API_KEY_SUBPROTOCOL_PREFIX) for name in subprotocols if name.startswith(API_KEY_SUBPROTOCOL_PREFIX)), None
    )


class _ResponseSender:
    """
    An ASGI `send` that adds the rate limit and CORS headers.

    Args:
        message_request_id: the request's id, for a client of Anthropic's API; None for others.
    """

    def __init__(self, send: Send, message_request_id: str | None) -> None:
        self._send = send
        self._message_request_id = message_request_id
        self.caller: Caller | None = None
        self.origin: str | None = None
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            has_limits = self.caller is not None and self.caller.allowance is not None
            if not has_limits and self.origin is None and self._message_request_id is None and message["status"] != 401:
                await self._send(message)
                return
            headers = MutableHeaders(scope=message)
            if message["status"] == 401:
                # RFC 9110, 15.5.2: a 401 must have it.
                headers["www-authenticate"] = "Bearer"
            if self._message_request_id is not None:
                headers["request-id"] = self._message_request_id
            if self.caller is not None and self.caller.allowance is not None:
                limit_headers = rate_limit_headers if self._message_request_id is None else message_rate_limit_headers
                headers.update(limit_headers(await self.caller.allowance.states()))
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                # Fetch, CORS protocol and HTTP caches: a cache must not give this answer to pages of another origin.
                headers.add_vary_header("Origin")
        await self._send(message)


# Host and origin


def verify_origin(headers: Headers, settings: ServerSettings, *, needs_key: bool) -> str | None:
    """
    The web origin that may read the response, if the request comes from a page.

    Raises:
        ClientError: the host name is not this server's (a defence against DNS rebinding), or the page's origin is not
            allowed.
    """
    host = headers.get("host", "")
    name = parse_host(host) or ""  # HTTP/1.0 has requests without a host
    # RFC 9110, 15.5.20: 421 is for requests that a server is not configured to answer.
    if not _is_allowed_host(name, settings):
        raise ClientError(
            f"This server does not answer to the host '{shorten(name)}'. Its operator can allow the name in `server.allowed_hosts`.",
            status=421,
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is None:
        # Browsers send no origin with a GET for a picture or a link. Another port of this host is the same site to them.
        if needs_key and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise _cross_site_error("another site")
        return None
    if {origin, "*"} & set(settings.allowed_origins):
        return origin
    # A page of this server's own. Schemes are not compared: behind a proxy that ends TLS this server sees plain HTTP.
    if origin.lower().partition("://")[2] != host.lower():
        raise _cross_site_error(f"'{origin}'")
    return None


def _is_allowed_host(name: str, settings: ServerSettings) -> bool:
    """
    Whether a host name is this server's.

    IP addresses always are: DNS rebinding needs a name. So are the machine's own names where TLS proves who answers.
    """
    if name == "localhost" or name.endswith(".localhost") or name == settings.host.lower():
        return True
    if _is_ip_address(name) or (settings.tls != "off" and name in machine_names()):
        return True
    return any(_host_matches(name, pattern.lower()) for pattern in settings.allowed_hosts)


@functools.lru_cache(maxsize=64)
def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in ("*", name)


def _cross_site_error(source: str) -> ClientError:
    return ClientError(
        f"Requests from pages of {source} are not allowed. The operator of this server can allow them in `server.allowed_origins`.",
        status=403,
        code="origin_not_allowed",
    )


def _preflight_headers(headers: Headers) -> Mapping[str, str]:
    """What pages of an allowed origin may send."""
    request_headers = headers.get("access-control-request-headers")
    return {
        "access-control-allow-methods": _ALLOWED_METHODS,
        "access-control-max-age": str(_PREFLIGHT_AGE_S),
    } | ({"access-control-allow-headers": request_headers} if request_headers else {})


def missing_scope_error(scope: str) -> ClientError:
    """403; the key lacks the scope."""
    return ClientError(
        f"You have insufficient permissions for this operation. Missing scopes: {scope}. "
        "The operator of this server creates keys with other scopes with `antiphon keys create --scopes`.",
        status=403,
        code="insufficient_permissions",
    )
