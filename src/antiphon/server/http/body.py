"""Reading the body of a request."""

import re

from starlette.requests import Request

from antiphon.errors import ClientMistake, shown
from antiphon.server.transport.limits import BODY_LIMIT_BYTES, SWALLOW_LIMIT_BYTES, too_large

_JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json")


async def body_of(request: Request) -> bytes:
    """
    The request's whole body.

    Raises:
        ClientMistake: it says that it is no JSON, or compressed; or it is larger than the cap, or says that it will be, and none of it was
            kept.
    """
    _check_type(request.headers.get("content-type"))
    _check_coding(request.headers.get("content-encoding"))
    return await whole_body(request)


async def whole_body(request: Request, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """
    The request's whole body, whatever it is.

    Raises:
        ClientMistake: it is larger than the cap, or says that it will be, and none of it was kept.
    """
    declared_bytes = int(request.headers.get("content-length", 0))  # digits, or the parser had refused it
    if declared_bytes > SWALLOW_LIMIT_BYTES or (declared_bytes > limit_bytes and "expect" in request.headers):
        raise too_large(limit_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    is_too_large = declared_bytes > limit_bytes
    async for chunk in request.stream():
        size_bytes += len(chunk)
        is_too_large = is_too_large or size_bytes > limit_bytes
        if not is_too_large:
            chunks.append(chunk)
        elif size_bytes > SWALLOW_LIMIT_BYTES:
            break
        else:
            chunks.clear()
    if is_too_large:
        raise too_large(limit_bytes)
    return b"".join(chunks)


def _check_type(content_type: str | None) -> None:
    """
    Refuse what is not sent as JSON, in the original's words and with its status, which is not 415.

    Raises:
        ClientMistake: it is sent as something else; nothing said about it is none.
    """
    if content_type is None or _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip().lower()):
        return
    asked = shown(content_type)
    raise ClientMistake(
        f"Unsupported content type: '{asked}'. This API method only accepts 'application/json' requests, but you specified the header "
        f"'Content-Type: {asked}'. Please try again with a supported content type.",
        code="unsupported_content_type",
    )


def _check_coding(coding: str | None) -> None:
    """
    Refuse what is compressed, by its name: read as it is, it would be taken for broken JSON.

    Raises:
        ClientMistake: it is.
    """
    if coding is None or coding.strip().lower() in ("", "identity"):
        return
    raise ClientMistake(
        f"Unsupported content encoding: '{shown(coding)}'. Please send the body of your request without compression.",
        status=415,  # as RFC 9110 section 15.5.16 has it for codings
        code="unsupported_content_encoding",
    )
