"""A server upstream that hears or speaks: the connections to it, and what went wrong with it told as faults."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from antiphon import __version__
from antiphon.errors import ApiError, ClientError, ServerError, UpstreamError, shorten


def new_session(
    api_key: str | None, headers: Mapping[str, str], connect_timeout_s: float, total_timeout_s: float | None = None
) -> aiohttp.ClientSession:
    """
    Connections to a server; nothing is dialled yet.

    Args:
        headers: sent with every request, before our own where they are the same.
        total_s: the longest that one answer may take; None for any time.
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
    Whatever goes wrong with the server, as a fault.

    Args:
        name: what it is called in a sentence, such as `speech server`.
    """
    try:
        yield
    except TimeoutError:
        raise UpstreamError(f"The {name} did not answer in time.", status=504, code="upstream_timeout") from None
    except aiohttp.ClientConnectorError as error:
        raise UpstreamError(f"The {name} can't be reached: {error.strerror or error}.", code="upstream_unreachable") from None
    except aiohttp.InvalidURL:
        raise ServerError(f"The {name}'s `base_url` must be like 'http://127.0.0.1:8000/v1', but is '{base_url}'.") from None
    except aiohttp.ClientError:
        raise UpstreamError(f"The {name} broke off its answer.", code="server_error") from None


def error_from_response(name: str, status: int, headers: Mapping[str, str], body: bytes, *, is_client_input: bool) -> ApiError:
    """
    The fault that an answer with an error status stands for.

    Args:
        blames_client: whether what was sent came from the client, who then hears what is wrong with it.
    """
    said = _error_message(body)
    match status:
        case 401 | 403:
            return UpstreamError(
                f"The {name} refused this server's credentials ({status}). This is for its operator to mend, not for you.",
                code="upstream_credentials",
            )
        case 400 | 413 | 415 | 422 if is_client_input:
            return ClientError(said or f"The {name} refused the request ({status}).", code="invalid_value")
        case 429 | 503:
            given = headers.get("retry-after", "")
            after_s = float(given) if given.isdecimal() else None
            return overloaded_error(f"The {name} takes no more requests at the moment. {said}".strip(), status, after_s)
        case 408 | 504:
            return UpstreamError(f"The {name} ran out of time.", status=504, code="upstream_timeout")
        case _:
            return UpstreamError(f"The {name} failed ({status}). {said}".strip(), code="server_error")


def overloaded_error(message: str, status: int, retry_after_s: float | None) -> ApiError:
    """The fault of one that has too much to do; `status` is 429 or 503."""
    kind, code = ("rate_limit_error", "rate_limit_exceeded") if status == 429 else ("service_unavailable_error", "server_is_overloaded")
    return ApiError(message, status=status, type=kind, code=code, retry_after_s=retry_after_s)


def _error_message(body: bytes) -> str:
    """The message of an error's body, in whichever of the usual shapes; nothing of one that is no JSON, such as a proxy's page."""
    try:
        error = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return ""
    while isinstance(error, dict):
        error = next((error[key] for key in ("error", "message", "detail") if error.get(key)), "")
    return shorten(error, 500) if isinstance(error, str) else ""
