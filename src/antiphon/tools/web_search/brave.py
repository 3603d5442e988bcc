"""
Searches with the Brave Search API.

Source: https://api-dashboard.search.brave.com/app/documentation/web-search
"""

from collections.abc import Sequence

from msgspec import Raw, Struct

from antiphon.tools.web_search.base import SearchQuery, WebSearchResult
from antiphon.tools.web_search.domains import with_sites
from antiphon.tools.web_search.transport import ProviderClient, ProviderServer, decode_rows, make_result

DEFAULT_URL = "https://api.search.brave.com/res/v1/web/search"
MAX_RESULTS = 20
MAX_QUERY_CHARS = 400
MAX_QUERY_WORDS = 50
MAX_SITES = 12
"""Each counts as two of the words, with the `OR` before it."""

SAFE_SEARCH = ("off", "moderate", "strict")

# The countries that `country` takes; others get a 422.
_COUNTRIES = frozenset(
    "AR AU AT BE BR CA CL DK FI FR DE GR HK IN ID IT JP KR MY MX NL NZ NO CN PL PT PH RU SA ZA ES SE CH TW TR GB US".split()
)


class _Row(Struct):
    url: str
    title: str | None = None
    description: str | None = None
    page_age: str | None = None
    age: str | None = None
    extra_snippets: list[str] | None = None


class _Web(Struct):
    results: list[Raw] = []


class _Answer(Struct):
    web: _Web | None = None


class BraveProvider:
    """Brave's index of the web."""

    def __init__(self, url: str | None, key: str, safe_search: int, timeout_s: float, concurrency: int) -> None:
        self._safe_search = SAFE_SEARCH[safe_search]
        self._client = ProviderClient(
            ProviderServer(
                name="Brave Search",
                url=url or DEFAULT_URL,
                headers={"x-subscription-token": key},
                timeout_s=timeout_s,
                concurrency=concurrency,
            )
        )

    async def search(self, query: SearchQuery) -> Sequence[WebSearchResult]:
        # A wrong token gets a 422 and not a 401, and so does a query beyond the limits: it is kept within them to tell one from the other.
        own = MAX_QUERY_WORDS - 2 * MAX_SITES if query.allowed_domains or query.blocked_domains else MAX_QUERY_WORDS
        words = " ".join(query.text.split()[:own])
        params = {
            "q": with_sites(words, query.allowed_domains[:MAX_SITES], query.blocked_domains[:MAX_SITES], MAX_QUERY_CHARS),
            "count": str(min(query.max_results, MAX_RESULTS)),
            "safesearch": self._safe_search,
            "extra_snippets": "true",
            "text_decorations": "false",
        }
        if query.country in _COUNTRIES:
            params["country"] = query.country or ""
        answer = await self._client.ask(_Answer, params=params)
        rows = decode_rows(answer.web.results, _Row) if answer.web is not None else []
        return [
            make_result(
                query, row.url, row.title, " … ".join([row.description or "", *(row.extra_snippets or ())]), row.page_age or row.age
            )
            for row in rows
        ]

    async def close(self) -> None:
        await self._client.close()
