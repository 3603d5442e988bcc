"""Requests to the HTTP API of a search provider, and its failures."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct

from antiphon import __version__
from antiphon.offload import offload
from antiphon.tools.web_search.base import SearchFailure, SearchQuery, WebSearchResult
from antiphon.tools.web_search.page_text import unescape

T = TypeVar("T")

MAX_ANSWER_BYTES = 4 << 20
CHUNK_BYTES = 1 << 16
MAX_TITLE_CHARS = 300
_MAX_DATE_CHARS = 40
MAX_RETRY_S = 3.0
"""The longest wait before a search is tried once more. Brave's smallest plan takes one search a second."""


class ProviderServer(Struct, frozen=True, kw_only=True):
    """
    The server of a provider.

    Attributes:
        name: of the provider, for messages.
        url: of the requests.
        headers: sent with each, such as the key.
        timeout_s: for one request.
        concurrency: the most requests at once; more wait.
        hints: by status, what the operator can do about it.
    """

    name: str
    url: str
    headers: Mapping[str, str] = {}
    timeout_s: float = 10.0
    concurrency: int = 4
    hints: Mapping[int, str] = {}


class ProviderClient:
    """Asks one provider, within limits of time and size."""

    def __init__(self, server: ProviderServer) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(server.concurrency)

    async def ask(self, answer_type: type[T], *, params: Mapping[str, str] | None = None, body: object = None) -> T:
        """
        The answer to a GET with `params`, or to a POST of `body` as JSON.

        Raises:
            SearchFailure: the provider can't be reached, refused, or answered with something else.
        """
        async with self._places:
            status, headers, answer = await self._send(params, body)
            if status == 429 and (delay_s := _retry_delay_s(headers)) is not None:
                await asyncio.sleep(delay_s)
                status, headers, answer = await self._send(params, body)
        if status != 200:
            raise self._refusal(status)
        try:
            return await offload(len(answer), msgspec.json.decode, answer, type=answer_type, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._failure("answered with something that is no list of results") from None

    async def _send(self, params: Mapping[str, str] | None, body: object) -> tuple[int, Mapping[str, str], bytes]:
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"content-type": "application/json"}
        try:
            # Redirects are not followed: the key is in the headers, and is meant for this server alone.
            async with (
                asyncio.timeout(self._server.timeout_s),
                self._open_session().request(
                    "GET" if data is None else "POST", self._server.url, params=params, data=data, headers=headers, allow_redirects=False
                ) as reply,
            ):
                return reply.status, reply.headers, await self._read(reply) if reply.status == 200 else b""
        except TimeoutError:
            raise self._failure(f"did not answer within {self._server.timeout_s:g} seconds") from None
        except aiohttp.InvalidURL:
            raise SearchFailure(_UNUSABLE, f"The URL of {self._server.name} in `tools.web_search.url` is not valid.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SearchFailure(
                "The search service can't be reached at the moment.", f"{self._server.name} can't be reached: {error}."
            ) from None

    async def _read(self, reply: aiohttp.ClientResponse) -> bytes:
        answer = bytearray()
        async for chunk in reply.content.iter_chunked(CHUNK_BYTES):
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise self._failure(f"answered with more than {MAX_ANSWER_BYTES >> 20} MB")
        return bytes(answer)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"accept": "application/json", "user-agent": f"antiphon/{__version__}"} | dict(self._server.headers)
            self._session = aiohttp.ClientSession(
                headers=headers, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._session

    def _failure(self, what: str) -> SearchFailure:
        return SearchFailure(f"The search service {what}.", f"{self._server.name} {what}.")

    def _refusal(self, status: int) -> SearchFailure:
        name = self._server.name
        if hint := self._server.hints.get(status):
            return SearchFailure(f"{_UNUSABLE} {hint}", f"{name} answered with status {status}. {hint}")
        match status:
            case 401 | 403:
                return SearchFailure(
                    _UNUSABLE,
                    f"{name} refused this server's key (status {status}). Put a valid one into the variable that "
                    "`tools.web_search.key_env` names.",
                )
            case 402 | 432 | 433:  # Tavily: the plan's limit, and that of pay-as-you-go
                return SearchFailure("The search service's quota is used up.", f"The quota at {name} is used up (status {status}).")
            case 429:
                return SearchFailure(
                    "The search service takes no more searches at the moment. Try again later.",
                    f"{name} limits the rate of searches (429).",
                )
            case _:
                return self._failure(f"answered with status {status}")

    async def close(self) -> None:
        """Close the connections; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


_UNUSABLE = "The search service can't be used as it is configured. The operator of this server has to fix this."


def _retry_delay_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait before one more try after a 429; None if that would take too long."""
    # Brave: `X-RateLimit-Reset: 1, 1419704`, in seconds, for the limits of the second and of the month.
    remaining = [part.strip() for part in headers.get("x-ratelimit-remaining", "").split(",")]
    # The month's searches are used up: no wait will help.
    if len(remaining) > 1 and remaining[-1] == "0":
        return None
    text = headers.get("retry-after") or headers.get("x-ratelimit-reset", "1").split(",")[0].strip()
    delay_s = float(text) if text.isdecimal() else 1.0  # RFC 9110, 10.2.3: it may also be a date.
    return delay_s if delay_s <= MAX_RETRY_S else None


def decode_rows(rows: Sequence[Raw], row_type: type[T]) -> list[T]:
    """Those rows that are of the type; others are left out."""
    decoded_rows = []
    for row in rows:
        try:
            decoded_rows.append(msgspec.json.decode(row, type=row_type, strict=False))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return decoded_rows


def make_result(query: SearchQuery, url: str, title: str | None, text: str | None, date: str | None) -> WebSearchResult:
    """A result of a query from a provider's own words, which may have tags and be long."""
    return WebSearchResult(
        url=url,
        title=plain(title, MAX_TITLE_CHARS),
        snippet=plain(text, query.snippet_chars),
        published=plain(date, _MAX_DATE_CHARS),
    )


def plain(text: str | None, max_chars: int) -> str:
    """Text without tags and entities, on one line."""
    # Tags of a few letters only, as in `<strong>`: "a < b and c > d" is text.
    text = _TAG.sub("", (text or "")[: 4 * max_chars])
    return " ".join(unescape(text).split())[:max_chars]


_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]{0,9}/?>")
