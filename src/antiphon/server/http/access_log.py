"""What is known of every request: its id, its line in the log, and what it adds to the numbers."""

import time
from collections.abc import Sequence
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.sessions import LiveSessions
from antiphon.runtime.service import Service
from antiphon.server.transport import connection, logs

CLIENT_CLOSED_REQUEST = 499
"""The status of a request whose client left before it was answered; the one that nginx gives it."""

SWITCHING_PROTOCOLS = 101
"""The status of a request that became a WebSocket; its line comes when that ends."""

PROBE_PATHS = ("/livez", "/readyz", "/health", "/metrics")
"""Routes that machines ask all the time: their lines are for debugging."""


class AccessLogMiddleware:
    """Gives every request an id and a line in the log, and its answer the headers that SDKs look for."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application around another."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        # The request has its task, and the task its context: nothing is to be unbound.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        reply = _ResponseSender(send, request_id, self._service.live_sessions)
        self._service.metrics.active += 1
        try:
            await self._app(scope, receive, reply)
        except Exception:  # where a request ends
            logs.get().exception("defect")
        finally:
            self._service.metrics.active -= 1
            self._record_request(scope, reply.status, time.perf_counter() - reply.started_at)

    def _record_request(self, scope: Scope, status: int, elapsed_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._service.metrics.requests[route, scope["method"], status].observe(elapsed_s)
        told: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(elapsed_s * 1000, 1)}
        if (dropped := connection.from_scope(scope).drop_reason) is not None:
            told["dropped"] = dropped
        log = logs.get()
        (log.debug if route in PROBE_PATHS else log.info)("request", **told)


class _ResponseSender:
    """The way to the client, with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str, live_sessions: LiveSessions) -> None:
        self.started_at = time.perf_counter()
        self.status = CLIENT_CLOSED_REQUEST
        self._send = send
        self._request_id = request_id
        self._live_sessions = live_sessions

    async def __call__(self, message: Message) -> None:
        """An ASGI `send`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers()]
            if self._live_sessions.is_draining and self.status != SWITCHING_PROTOCOLS:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    def _headers(self) -> Sequence[tuple[bytes, bytes]]:
        elapsed_ms = (time.perf_counter() - self.started_at) * 1000
        return [
            (b"x-request-id", self._request_id.encode()),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
            (b"openai-version", b"2020-10-01"),
        ]
