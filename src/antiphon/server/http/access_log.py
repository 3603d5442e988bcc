"""Request ids, the access log, and request metrics."""

import asyncio
import time
from collections.abc import Sequence

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import ApiError, innermost_error, shutting_down
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.runtime.service import Service
from antiphon.server.http.auth import refused_caller
from antiphon.server.http.errors import REQUEST_ID_SCOPE_KEY, error_response
from antiphon.server.transport import connection, logs

CLIENT_CLOSED_REQUEST = 499
"""Logged when the client left before the response began; the number is nginx's."""

SWITCHING_PROTOCOLS = 101
"""Status of a request that became a WebSocket, which is logged when it ends."""

REFUSAL_STATUSES = (429, 503)
"""Statuses of requests that were refused because a limit was reached, or the server was full or stopping."""

PROBE_PATHS = ("/livez", "/readyz", "/health", "/metrics", "/console/state")
"""Paths that monitors and open pages poll: logged at level debug."""


class AccessLogMiddleware:
    """Gives every request an id and a log line, and every response the headers that SDKs look for."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID_SCOPE_KEY] = new_id("req")
        # Every request has a task, and so a context, of its own: no need to unbind.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        sender = _ResponseSender(send, request_id, self._service.live_sessions)
        self._service.metrics.active += 1
        try:
            await self._app(scope, receive, sender)
        except asyncio.CancelledError:  # only a server that stops cancels a request, which ends here
            if sender.status == CLIENT_CLOSED_REQUEST:
                await error_response(shutting_down(), scope)(scope, receive, sender)
        except Exception as error:  # where a request ends
            # starlette raises another error for one that came after the head, which no answer can tell any more.
            reason = innermost_error(error.__cause__) if isinstance(error.__cause__, Exception) else None
            if isinstance(reason, ApiError):
                logs.get().warning("broken_off", reason=reason.operator_message)
            else:
                logs.get().exception("defect")
        finally:
            self._service.metrics.active -= 1
            self._record_request(scope, sender.status, time.perf_counter() - sender.started_at)

    def _record_request(self, scope: Scope, status: int, elapsed_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._service.metrics.requests[route, scope["method"], status].observe(elapsed_s)
        if status in REFUSAL_STATUSES and (caller := refused_caller(scope)) is not None:
            self._service.usage.count_refusal(caller.key_id)
            self._service.metrics.recent.refuse()
        fields = {} if (drop_reason := connection.from_scope(scope).drop_reason) is None else {"dropped": drop_reason}
        log_request(scope, status, elapsed_s, is_probe=route in PROBE_PATHS, **fields)


def log_request(scope: Scope, status: int, elapsed_s: float, *, is_probe: bool, **fields: object) -> None:
    """Write the log line of a request that has been answered."""
    write = logs.get().debug if is_probe else logs.get().info
    write("request", method=scope["method"], path=scope["path"], status=status, ms=round(elapsed_s * 1000, 1), **fields)


class _ResponseSender:
    """An ASGI `send` that adds the headers of every response."""

    def __init__(self, send: Send, request_id: str, live_sessions: LiveSessions) -> None:
        self.started_at = time.perf_counter()
        self.status = CLIENT_CLOSED_REQUEST
        self._send = send
        self._request_id = request_id
        self._live_sessions = live_sessions

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers()]
            # So that the client's next request makes a connection, which a load balancer leads to another server. A 101 has
            # a `connection: upgrade`.
            if self._live_sessions.is_draining and self.status != SWITCHING_PROTOCOLS:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    def _headers(self) -> Sequence[tuple[bytes, bytes]]:
        elapsed_ms = (time.perf_counter() - self.started_at) * 1000
        return [
            (b"x-request-id", self._request_id.encode()),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
            (b"openai-version", b"2020-10-01"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]
