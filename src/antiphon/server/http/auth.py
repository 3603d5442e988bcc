"""
Who may use which route: the host they ask for, the page they come from, their key, its scope and its limits.

All of it is decided by the route that was matched, never by the path as text, and before a byte of the body is read.
"""

import contextlib
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from antiphon.config.settings import ServerSettings
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.errors import ApiError, ClientError
from antiphon.runtime.access import keys
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.access.rate_limits import format_duration
from antiphon.runtime.service import Service
from antiphon.server.http.errors import on_api_error, on_exception_group, on_http_exception

Access = Literal["probe", "public", "worker"] | keys.Scope
"""
Who may use a route: `probe`, whoever asks, by any name; `public`, whoever asks; `worker`, whoever has the key of workers; else a key with
that scope.
"""

_EXCEPTION_HANDLERS = {ApiError: on_api_error, ExceptionGroup: on_exception_group, HTTPException: on_http_exception}

_CALLER_SCOPE_KEY = "antiphon.caller"
API_KEY_SUBPROTOCOL_PREFIX = "openai-insecure-api-key."

_ALLOWED_METHODS = "GET, POST, DELETE"
_PREFLIGHT_AGE_S = 600
_EXPOSED_HEADERS = (
    "x-request-id, openai-processing-ms, retry-after, location, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    "antiphon-tools-not-offered, antiphon-grammars-not-enforced, antiphon-items-not-told"
)


class GuardedRoute(Route):
    """
    A route that says who may use it.

    Args:
        access: who.

    Attributes:
        service: what it serves.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, service: Service, access: Access, methods: Sequence[str] | None = None
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.access = access
        self.service = service

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that matched, or refuse it."""
        headers = Headers(scope=scope)
        reply = _ResponseSender(send)
        try:
            if self.access != "probe":
                reply.origin = _verify_origin(headers, self.service.config.server, needs_key=self.access != "public")
            if reply.origin and scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_preflight_headers(headers))(scope, receive, reply)
                return
            if self.access not in ("probe", "public"):
                await self._authorize(scope, headers, reply)
            await super().handle(scope, receive, reply)
        except (ApiError, ExceptionGroup, HTTPException) as error:  # handled here, so that the answer gets its headers
            if reply.has_begun:
                raise
            await self.refuse(error, scope, receive, reply)

    async def refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client why it is not served."""
        tell = next(tell for kind, tell in _EXCEPTION_HANDLERS.items() if isinstance(error, kind))
        await (await tell(Request(scope), error))(scope, receive, send)

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """
        Who is asking.

        Raises:
            ClientError: 401; a key is needed, and none came, or a wrong one.
        """
        return await self.service.keyring.authenticate(credential(headers))

    def is_open_to(self, scopes: Sequence[str]) -> bool:
        """Whether a key with these scopes may use it."""
        return self.access in scopes

    async def _authorize(self, scope: Scope, headers: Headers, reply: "_ResponseSender") -> None:
        caller = reply.caller = await self.identify(scope, headers)
        if caller.key is not None and not self.is_open_to(caller.key.scopes):
            raise _missing_scope_error(self.access)
        if caller.allowance is not None:
            await caller.allowance.begin_request()
        scope[_CALLER_SCOPE_KEY] = caller


def request_caller(scope: Scope) -> Caller:
    """Who is asking, on a route that needs a key."""
    caller: Caller = scope[_CALLER_SCOPE_KEY]
    return caller


def conversation_settings(scope: Scope, model: str, kind: ConversationKind) -> ConversationSettings:
    """What a conversation of whoever is asking is opened with."""
    caller = request_caller(scope)
    return ConversationSettings(model=model, tenant=caller.tenant, kind=kind, key_id=caller.key.id if caller.key else "")


def track_response(scope: Scope, total_tokens: Callable[[], int]) -> AbstractAsyncContextManager[None]:
    """
    An answer under way, counted against the limits of the key.

    Args:
        tokens: called at the end; what the answer came to.

    Raises:
        ClientError: when it is entered; as many are under way as the key may have.
    """
    allowance = request_caller(scope).allowance
    return contextlib.nullcontext() if allowance is None else allowance.track_response(total_tokens)


def token_counter(scope: Scope) -> Callable[[int], None]:
    """What takes the tokens of a session's answers, as each of them ends, from the limits of the key."""
    allowance = request_caller(scope).allowance
    return (lambda _tokens: None) if allowance is None else allowance.count_tokens


def credential(headers: Headers) -> str | None:
    """
    The key that comes with a request, whichever way: as bearer token, in `api-key`, or among the WebSocket subprotocols, as browsers
    can send no headers there.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    if key := headers.get("api-key", "").strip():
        return key
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    return next((name.removeprefix(API_KEY_SUBPROTOCOL_PREFIX) for name in offered if name.startswith(API_KEY_SUBPROTOCOL_PREFIX)), None)


class _ResponseSender:
    """The way to the client, which gives every answer the headers that it shares with all others to this caller."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.caller: Caller | None = None
        self.origin: str | None = None
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        """An ASGI `send`."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            if message["status"] == 401:
                headers["www-authenticate"] = "Bearer"
            if self.caller is not None and self.caller.allowance is not None:
                for kind, state in (await self.caller.allowance.states()).items():
                    headers[f"x-ratelimit-limit-{kind}"] = str(state.limit)
                    headers[f"x-ratelimit-remaining-{kind}"] = str(state.remaining)
                    headers[f"x-ratelimit-reset-{kind}"] = format_duration(state.full_in_s)
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                headers.add_vary_header("Origin")
        await self._send(message)


# Where the request says that it goes, and where from


def _verify_origin(headers: Headers, settings: ServerSettings, *, needs_key: bool) -> str | None:
    """
    The web origin whose page may read the answer, if it was asked for by one.

    Raises:
        ClientError: the request was addressed to another name than ours, so that a page could have made its own name lead here; or
            it is from a page that is not allowed.
    """
    host = headers.get("host", "")
    if not _is_allowed_host(_host_name(host), settings):
        raise ClientError(
            f"This server does not answer to the host '{_host_name(host)}'. Its operator can allow the name in `server.allowed_hosts`.",
            status=421,
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is None:
        if needs_key and headers.get("sec-fetch-site") == "cross-site":
            raise _cross_site_error("another site")
        return None
    if {origin, "*"} & set(settings.allowed_origins):
        return origin
    if origin.lower().partition("://")[2] != host.lower():
        raise _cross_site_error(f"'{origin}'")
    return None


def _is_allowed_host(name: str, settings: ServerSettings) -> bool:
    """
    Whether a host name is one of this server's.

    An address is always: rebinding needs a name that first leads elsewhere.
    """
    if name == "localhost" or name.endswith(".localhost") or name == settings.host.lower():
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return any(_host_matches(name, allowed.lower()) for allowed in settings.allowed_hosts)


def _host_matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in ("*", name)


def _host_name(host: str) -> str:
    """The `Host` header without its port, and an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _cross_site_error(source: str) -> ClientError:
    return ClientError(
        f"Requests from pages of {source} are not allowed. The operator of this server can allow them in `server.allowed_origins`.",
        status=403,
        code="origin_not_allowed",
    )


def _preflight_headers(headers: Headers) -> Mapping[str, str]:
    """What a page of an allowed origin may send."""
    asked = headers.get("access-control-request-headers")
    return {
        "access-control-allow-methods": _ALLOWED_METHODS,
        "access-control-max-age": str(_PREFLIGHT_AGE_S),
    } | ({"access-control-allow-headers": asked} if asked else {})


def _missing_scope_error(scope: str) -> ClientError:
    return ClientError(
        f"You have insufficient permissions for this operation. Missing scopes: {scope}. "
        "Whoever runs this server makes keys with other scopes with `antiphon keys create --scopes`.",
        status=403,
        code="insufficient_permissions",
    )
