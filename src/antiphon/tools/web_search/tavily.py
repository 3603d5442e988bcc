"""
Searches with the Tavily API.

Source: https://docs.tavily.com/documentation/api-reference/endpoint/search
"""

from collections.abc import Sequence

from msgspec import Raw, Struct

from antiphon.tools.web_search.base import SearchQuery, WebSearchResult
from antiphon.tools.web_search.transport import ProviderClient, ProviderServer, decode_rows, make_result

DEFAULT_URL = "https://api.tavily.com/search"
MAX_RESULTS = 20
MAX_QUERY_CHARS = 400

# Tavily wants a country by its English name in lower case. Others are left to the query's own words.
_COUNTRY_NAMES = {
    pair.split(":")[0]: pair.split(":")[1]
    for pair in (
        "AE:united arab emirates,AR:argentina,AT:austria,AU:australia,BD:bangladesh,BE:belgium,BG:bulgaria,BR:brazil,CA:canada,"
        "CH:switzerland,CL:chile,CN:china,CO:colombia,CZ:czech republic,DE:germany,DK:denmark,EE:estonia,EG:egypt,ES:spain,FI:finland,"
        "FR:france,GB:united kingdom,GR:greece,HR:croatia,HU:hungary,ID:indonesia,IE:ireland,IL:israel,IN:india,IS:iceland,IT:italy,"
        "JP:japan,KE:kenya,KR:south korea,LT:lithuania,LU:luxembourg,LV:latvia,MA:morocco,MX:mexico,MY:malaysia,NG:nigeria,"
        "NL:netherlands,NO:norway,NZ:new zealand,PE:peru,PH:philippines,PK:pakistan,PL:poland,PT:portugal,RO:romania,RS:serbia,"
        "SA:saudi arabia,SE:sweden,SG:singapore,SI:slovenia,SK:slovakia,TH:thailand,TR:turkey,TW:taiwan,UA:ukraine,US:united states,"
        "VN:vietnam,ZA:south africa"
    ).split(",")
}


class _Row(Struct):
    url: str
    title: str | None = None
    content: str | None = None
    published_date: str | None = None


class _Answer(Struct):
    results: list[Raw]


class TavilyProvider:
    """Tavily's index of the web."""

    def __init__(self, url: str | None, key: str, timeout_s: float, concurrency: int) -> None:
        self._client = ProviderClient(
            ProviderServer(
                name="Tavily",
                url=url or DEFAULT_URL,
                headers={"authorization": f"Bearer {key}"},
                timeout_s=timeout_s,
                concurrency=concurrency,
            )
        )

    async def search(self, query: SearchQuery) -> Sequence[WebSearchResult]:
        body: dict[str, object] = {
            "query": query.text[:MAX_QUERY_CHARS],
            "search_depth": "basic",
            "topic": "general",
            "max_results": min(query.max_results, MAX_RESULTS),
        }
        if query.allowed_domains:
            body["include_domains"] = query.allowed_domains
        if query.blocked_domains:
            body["exclude_domains"] = query.blocked_domains
        if query.country in _COUNTRY_NAMES:
            body["country"] = _COUNTRY_NAMES[query.country or ""]
        answer = await self._client.ask(_Answer, body=body)
        return [make_result(query, row.url, row.title, row.content, row.published_date) for row in decode_rows(answer.results, _Row)]

    async def close(self) -> None:
        await self._client.close()
