"""Reads request bodies."""

import re

import msgspec
from starlette.requests import ClientDisconnect, Request

from antiphon.errors import ClientError, shorten
from antiphon.offload import offload
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.service import Service
from antiphon.server.http.headers import request_headers
from antiphon.server.transport import logs
from antiphon.server.transport.limits import BODY_LIMIT_BYTES, DISCARD_LIMIT_BYTES, body_too_large

BODY_LEASE_SCOPE_KEY = "antiphon.body_lease"
"""Where a request keeps its `BodyLease`."""

PATH_MODEL_SCOPE_KEY = "antiphon.path_model"
"""Where a request has the model that its path names; only Azure's clients have it there."""

_NULL = msgspec.Raw(b"null")

_JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json")


async def read_json_body(request: Request) -> bytes:
    """
    The whole body of a JSON request.

    Raises:
        ClientError: its content type is not JSON; or as `read_body`.
    """
    _check_content_type(request_headers(request.scope).get("content-type"))
    return await read_body(request)


async def read_question(service: Service, request: Request) -> bytes:
    """
    The body of a JSON request that a model is to answer; logged where `logging.content` is set.

    Raises:
        ServerError: the server takes no new work.
        ClientError: as `read_json_body`.
    """
    body = await read_json_body(request)
    if (path_model := request.scope.get(PATH_MODEL_SCOPE_KEY)) is not None:
        body = await offload(len(body), _with_model, body, path_model)
    service.live_sessions.check_admission()
    if service.config.logging.content:
        logs.get().info("asked", content=logs.content_text(body))
    return body


def _with_model(body: bytes, model: str) -> bytes:
    """A request with the model of its path, unless it names one itself, as SDKs do."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return body  # who reads it next says what is wrong
    return body if fields.get("model", _NULL) != _NULL else msgspec.json.encode(fields | {"model": model})


async def read_body(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """
    The whole body. One that is too large is read and dropped up to `DISCARD_LIMIT_BYTES`, so that the client reads the
    error.

    Raises:
        ClientError: it is compressed; it is, or its `content-length` says that it is, larger than the limit; or the
            caller has too many large requests.
    """
    headers = request_headers(request.scope)
    check_content_encoding(headers.get("content-encoding"))
    declared_bytes = int(headers.get("content-length", 0))  # the HTTP parser accepts digits only
    # RFC 9110, 10.1.1: a client that expects `100-continue` has sent nothing yet, so there is nothing to discard.
    if declared_bytes > DISCARD_LIMIT_BYTES or (declared_bytes > limit_bytes and "expect" in headers):
        raise body_too_large(limit_bytes)
    lease: BodyLease | None = request.scope.get(BODY_LEASE_SCOPE_KEY)
    chunks: list[bytes] = []
    size_bytes = 0
    is_too_large = declared_bytes > limit_bytes
    # Before it comes: many large bodies that arrive together are then refused while they take no memory yet.
    if lease is not None and not is_too_large:
        lease.extend(declared_bytes)
    more_body = True
    while more_body:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more_body = message.get("body", b""), message.get("more_body", False)
        size_bytes += len(chunk)
        is_too_large = is_too_large or size_bytes > limit_bytes
        if not is_too_large:
            if lease is not None:
                lease.extend(size_bytes)
            chunks.append(chunk)
        elif size_bytes > DISCARD_LIMIT_BYTES:
            break
        else:
            chunks.clear()
    if is_too_large:
        raise body_too_large(limit_bytes)
    return b"".join(chunks)


def _check_content_type(content_type: str | None) -> None:
    """
    Refuse other content types than JSON. A missing one is accepted. Like OpenAI, the status is 400 and not 415.

    Raises:
        ClientError: it is another type.
    """
    if content_type is None or content_type == "application/json" or _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip().lower()):
        return
    shown_type = shorten(content_type)
    raise ClientError(
        f"Unsupported content type: '{shown_type}'. This API method only accepts 'application/json' requests, but you specified the header "
        f"'Content-Type: {shown_type}'. Please try again with a supported content type.",
        code="unsupported_content_type",
    )


def check_content_encoding(coding: str | None) -> None:
    """
    Refuse compressed bodies by name; otherwise they would be reported as broken JSON or forms.

    Raises:
        ClientError: the body is compressed.
    """
    if coding is None or coding.strip().lower() in ("", "identity"):
        return
    raise ClientError(
        f"Unsupported content encoding: '{shorten(coding)}'. Please send the body of your request without compression.",
        status=415,  # RFC 9110, 15.5.16: also for a content coding
        code="unsupported_content_encoding",
    )
