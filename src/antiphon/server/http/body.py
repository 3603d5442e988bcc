"""Reading the body of a request."""

import re

from starlette.requests import Request

from antiphon.errors import ClientError, shorten
from antiphon.server.transport.limits import BODY_LIMIT_BYTES, DISCARD_LIMIT_BYTES, body_too_large

_JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json")


async def read_json_body(request: Request) -> bytes:
    """
    The request's whole body.

    Raises:
        ClientError: it says that it is no JSON, or compressed; or it is larger than the cap, or says that it will be, and none of it was
            kept.
    """
    _check_content_type(request.headers.get("content-type"))
    _check_content_encoding(request.headers.get("content-encoding"))
    return await read_body(request)


async def read_body(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """
    The request's whole body, whatever it is.

    Raises:
        ClientError: it is larger than the cap, or says that it will be, and none of it was kept.
    """
    declared_bytes = int(request.headers.get("content-length", 0))  # digits, or the parser had refused it
    if declared_bytes > DISCARD_LIMIT_BYTES or (declared_bytes > limit_bytes and "expect" in request.headers):
        raise body_too_large(limit_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    is_too_large = declared_bytes > limit_bytes
    async for chunk in request.stream():
        size_bytes += len(chunk)
        is_too_large = is_too_large or size_bytes > limit_bytes
        if not is_too_large:
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
    Refuse what is not sent as JSON, in the original's words and with its status, which is not 415.

    Raises:
        ClientError: it is sent as something else; nothing said about it is none.
    """
    if content_type is None or _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip().lower()):
        return
    asked = shorten(content_type)
    raise ClientError(
        f"Unsupported content type: '{asked}'. This API method only accepts 'application/json' requests, but you specified the header "
        f"'Content-Type: {asked}'. Please try again with a supported content type.",
        code="unsupported_content_type",
    )


def _check_content_encoding(coding: str | None) -> None:
    """
    Refuse what is compressed, by its name: read as it is, it would be taken for broken JSON.

    Raises:
        ClientError: it is.
    """
    if coding is None or coding.strip().lower() in ("", "identity"):
        return
    raise ClientError(
        f"Unsupported content encoding: '{shorten(coding)}'. Please send the body of your request without compression.",
        status=415,  # as RFC 9110 section 15.5.16 has it for codings
        code="unsupported_content_encoding",
    )
