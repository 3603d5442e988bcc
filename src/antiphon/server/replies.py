"""What every HTTP answer shares: JSON, errors in the original's shape, request ids, and the body with its cap."""

import time
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import ClientMistake, Fault
from antiphon.runtime.ids import mint
from antiphon.server import logs

BODY_LIMIT_BYTES = 32 << 20
PROBES = ("/livez", "/readyz", "/health")

PATIENCE_BYTES = 2 * BODY_LIMIT_BYTES
"""How much of too large a body is read and dropped, so that its sender is through with sending and reads why it is refused."""


def json_reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON; `body` is plain values, or JSON already."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(content, status, headers, media_type="application/json")


def fault_reply(fault: Fault) -> Response:
    """A fault in the shape that OpenAI's SDKs read."""
    headers = {}
    if fault.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(fault.retry_after_s)))
    return json_reply(fault.body(), fault.status, headers)


async def on_fault(_request: Request, fault: Exception) -> Response:
    """A `Fault` that a route raised."""
    assert isinstance(fault, Fault)
    return fault_reply(fault)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """No such route, or not with that method."""
    assert isinstance(error, HTTPException)
    where = f"({request.method} {request.url.path})"
    texts = {404: f"Invalid URL {where}", 405: f"Not allowed to {request.method} on {request.url.path}."}
    message = texts.get(error.status_code, str(error.detail))
    fault = ClientMistake(message, status=error.status_code, code="unknown_url" if error.status_code == 404 else None)
    reply = fault_reply(fault)
    reply.headers.update(error.headers or {})
    return reply


async def on_defect(_request: Request, error: Exception) -> Response:
    """Something that should not have happened; its trace is logged, never sent."""
    fault = Fault("The server had an error while processing your request. Please try again; if it persists, see the server's log.")
    return fault_reply(fault)


async def body_of(request: Request) -> bytes:
    """
    The request's whole body.

    Raises:
        ClientMistake: it is larger than the cap; nothing beyond the cap was kept.
    """
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes <= BODY_LIMIT_BYTES:
            chunks.append(chunk)
        elif size_bytes > PATIENCE_BYTES:
            break
        else:
            chunks.clear()
    if size_bytes > BODY_LIMIT_BYTES:
        raise _too_large()
    return b"".join(chunks)


def _too_large() -> ClientMistake:
    return ClientMistake(f"The request body is too large. The limit is {BODY_LIMIT_BYTES} bytes.", status=413, code="request_too_large")


class Traced:
    """Gives every request an id and a line in the log, and its answer the headers that SDKs look for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application around another."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = mint("req")
        begun_at = time.perf_counter()
        status = 0

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                elapsed_ms = (time.perf_counter() - begun_at) * 1000
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"openai-processing-ms", b"%d" % elapsed_ms),
                    (b"openai-version", b"2020-10-01"),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_traced)
        except Exception:
            logs.get().exception("defect", request_id=request_id)
            if not status:
                await (await on_defect(Request(scope), Exception()))(scope, receive, send_traced)
        finally:
            elapsed_ms = round((time.perf_counter() - begun_at) * 1000, 1)
            # Those who ask whether we live ask every few seconds.
            say = logs.get().debug if scope["path"] in PROBES else logs.get().info
            say(f"{scope['method']} {scope['path']}", status=status, ms=elapsed_ms, request_id=request_id)
