"""
Searches with a SearXNG instance.

Source: https://docs.searxng.org/dev/search_api.html
"""

from collections.abc import Sequence

from msgspec import Raw, Struct

from antiphon.tools.web_search.base import SearchQuery, WebSearchResult
from antiphon.tools.web_search.domains import with_sites
from antiphon.tools.web_search.transport import ProviderClient, ProviderServer, decode_rows, make_result

MAX_QUERY_CHARS = 1000
"""SearXNG has no limit of its own, but the engines behind it have."""


class SearxngOptions(Struct, frozen=True, kw_only=True):
    """What every search asks for: engines by name (empty: the instance's own), a language, and 0 to 2 of safe search."""

    engines: tuple[str, ...] = ()
    language: str = "all"
    safe_search: int = 0


class _Row(Struct):
    url: str
    title: str | None = None
    content: str | None = None
    publishedDate: str | None = None


class _Answer(Struct):
    results: list[Raw]


class SearxngProvider:
    """A SearXNG instance; `url` is that of its front page."""

    def __init__(self, url: str, options: SearxngOptions, timeout_s: float, concurrency: int) -> None:
        # An instance has only HTML unless its settings list JSON too, and then answers 403.
        hint = "The SearXNG instance must answer with JSON: add `json` to `search.formats` in its `settings.yml`."
        self._options = options
        self._client = ProviderClient(
            ProviderServer(name="SearXNG", url=f"{url.rstrip('/')}/search", timeout_s=timeout_s, concurrency=concurrency, hints={403: hint})
        )

    async def search(self, query: SearchQuery) -> Sequence[WebSearchResult]:
        params = {
            "q": with_sites(query.text, query.allowed_domains, query.blocked_domains, MAX_QUERY_CHARS),
            "format": "json",
            "language": self._options.language,
            "safesearch": str(self._options.safe_search),
        }
        if self._options.engines:
            params["engines"] = ",".join(self._options.engines)
        answer = await self._client.ask(_Answer, params=params)
        return [make_result(query, row.url, row.title, row.content, row.publishedDate) for row in decode_rows(answer.results, _Row)]

    async def close(self) -> None:
        await self._client.close()
