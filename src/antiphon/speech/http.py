"""Connections to an upstream speech server, and its failures as API errors."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import structlog

from antiphon import __version__
from antiphon.errors import ApiError, ClientError, ServerError, UpstreamError, shorten
from antiphon.masking import mask_address


def new_session(
    api_key: str | None, headers: Mapping[str, str], connect_timeout_s: float, total_timeout_s: float | None = None
) -> aiohttp.ClientSession:
    """
    A session for a server; connects on the first request.

    Args:
        headers: sent with every request; they override our own.
        total_timeout_s: the longest that one response may take; None for no limit.
    """
    own = {"user-agent": f"antiphon/{__version__}"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
    return aiohttp.ClientSession(
        headers=own | dict(headers),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=total_timeout_s, sock_connect=connect_timeout_s),
    )


@asynccontextmanager
async def map_exceptions(name: str, base_url: str) -> AsyncIterator[None]:
    """
    Raise connection failures as API errors.

    Args:
        name: of the server in a sentence, such as `speech server`.
    """
    try:
        yield
    except TimeoutError:
        raise UpstreamError(f"The {name} did not answer in time.", status=504, code="upstream_timeout") from None
    except aiohttp.ClientConnectorError as error:
        # Not the error's own words: they have the server's address in them, which is not the client's to know.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such address"
        raise UpstreamError(f"The {name} can't be reached: {reason}.", code="upstream_unreachable") from None
    except aiohttp.InvalidURL:
        raise _wrong_address(name, base_url) from None
    except aiohttp.ClientError:
        raise UpstreamError(f"The {name} closed the connection before its answer was complete.", code="server_error") from None


def _wrong_address(name: str, base_url: str) -> ServerError:
    error = ServerError(f"The {name}'s address is wrong in the configuration. Its operator has to fix this; you can't.")
    error.operator_message = f"The {name}'s URL must be like 'http://127.0.0.1:8000/v1', but is '{mask_address(base_url)}'."
    return error


def error_from_response(name: str, status: int, headers: Mapping[str, str], body: bytes, *, is_client_input: bool) -> ApiError:
    """
    The API error for a response with an error status.

    Args:
        is_client_input: whether the request came from the client, who then gets the server's message.
    """
    detail = _error_message(body)
    if not 400 <= status < 500:
        # What broke there is not the client's to know: such words name files and hosts.
        structlog.get_logger().warning("speech_server_failed", server=name, status=status, message=detail)
        detail = ""
    match status:
        case 401 | 403:
            return UpstreamError(
                f"The {name} refused this server's credentials ({status}). Its operator has to fix this; you can't.",
                code="upstream_credentials",
            )
        case 400 | 413 | 415 | 422 if is_client_input:
            return ClientError(detail or f"The {name} refused the request ({status}).", code="invalid_value")
        case 429 | 503:
            retry_after = headers.get("retry-after", "")  # RFC 9110 10.2.3: seconds, or a date, which is ignored
            after_s = float(retry_after) if retry_after.isdecimal() else None
            return overloaded_error(f"The {name} takes no more requests at the moment. {detail}".strip(), status, after_s)
        case 408 | 504:
            return UpstreamError(f"The {name} ran out of time.", status=504, code="upstream_timeout")
        case _:
            return UpstreamError(f"The {name} failed ({status}). {detail}".strip(), code="server_error")


def overloaded_error(message: str, status: int, retry_after_s: float | None) -> ApiError:
    """The error of an overloaded server; `status` is 429 or 503."""
    kind, code = ("rate_limit_error", "rate_limit_exceeded") if status == 429 else ("service_unavailable_error", "server_is_overloaded")
    return ApiError(message, status=status, type=kind, code=code, retry_after_s=retry_after_s)


def _error_message(body: bytes) -> str:
    """The message in an error body of any usual shape; empty if it is no JSON, such as a proxy's error page."""
    try:
        error = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return ""
    while isinstance(error, dict):
        error = next((error[key] for key in ("error", "message", "detail") if error.get(key)), "")
    return shorten(error, 500) if isinstance(error, str) else ""
