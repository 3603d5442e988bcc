"""The search providers, against servers that answer as their documentation says, and otherwise."""

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from antiphon.tools.web_search.base import SearchFailure, SearchProvider, SearchQuery, WebSearchResult
from antiphon.tools.web_search.brave import BraveProvider
from antiphon.tools.web_search.domains import with_sites
from antiphon.tools.web_search.searxng import SearxngOptions, SearxngProvider
from antiphon.tools.web_search.tavily import TavilyProvider
from support.tools.web import Answer, Request, WebServer, answer

SEARXNG = {
    "query": "antiphon",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://example.com/antiphon",
            "title": "Antiphon - Encyclopedia",
            "content": "An antiphon is a short chant.",
            "publishedDate": "2026-01-02T00:00:00",
            "engine": "wikipedia",
            "parsed_url": ["https", "example.com", "/antiphon", "", "", ""],
            "engines": ["wikipedia"],
            "positions": [1],
            "score": 1.0,
            "category": "general",
        },
        {"url": "https://example.org/", "title": "Other", "content": None, "publishedDate": None},
    ],
    "answers": [],
    "corrections": [],
    "infoboxes": [],
    "suggestions": ["antiphon of sounion"],
    "unresponsive_engines": [["brave", "timeout"]],
}
BRAVE = {
    "type": "search",
    "query": {"original": "antiphon", "altered": None},
    "mixed": {"type": "mixed"},
    "web": {
        "type": "search",
        "family_friendly": True,
        "results": [
            {
                "title": "Antiphon &amp; chant",
                "url": "https://example.com/antiphon",
                "description": "An <strong>antiphon</strong> is a short chant.",
                "page_age": "2026-01-02T00:00:00",
                "age": "January 2, 2026",
                "extra_snippets": ["It is sung by a choir."],
                "meta_url": {"hostname": "example.com"},
            }
        ],
    },
}
TAVILY = {
    "query": "antiphon",
    "follow_up_questions": None,
    "answer": None,
    "images": [],
    "results": [
        {
            "title": "Antiphon",
            "url": "https://example.com/antiphon",
            "content": "An antiphon is a short chant.",
            "score": 0.9,
            "raw_content": None,
        }
    ],
    "response_time": 1.2,
}


def searxng(url: str, timeout_s: float = 10) -> SearchProvider:
    return SearxngProvider(f"{url}/sx/", SearxngOptions(engines=("bing", "qwant"), language="de-CH", safe_search=1), timeout_s, 2)


def brave(url: str, timeout_s: float = 10) -> SearchProvider:
    return BraveProvider(f"{url}/res/v1/web/search", "secret-key", 2, timeout_s, 2)


def tavily(url: str, timeout_s: float = 10) -> SearchProvider:
    return TavilyProvider(f"{url}/search", "secret-key", timeout_s, 2)


PROVIDERS: dict[str, tuple[Callable[..., SearchProvider], object]] = {
    "searxng": (searxng, SEARXNG),
    "brave": (brave, BRAVE),
    "tavily": (tavily, TAVILY),
}


def ask(
    make: Callable[..., SearchProvider], respond: Callable[[Request], Answer], timeout_s: float = 10, **query: object
) -> tuple[list[WebSearchResult], list[Request]]:
    """What a provider finds, and the requests that it made."""

    async def run() -> tuple[list[WebSearchResult], list[Request]]:
        server = WebServer(respond)
        async with server.open() as url:
            provider = make(url, timeout_s)
            try:
                found = await provider.search(SearchQuery(**({"text": "antiphon", "tenant": "t"} | query)))  # type: ignore[arg-type]
            finally:
                await provider.close()
                await provider.close()
            return list(found), server.requests

    return asyncio.run(run())


def failure(make: Callable[..., SearchProvider], respond: Callable[[Request], Answer], timeout_s: float = 10) -> SearchFailure:
    with pytest.raises(SearchFailure) as caught:
        ask(make, respond, timeout_s)
    assert "secret-key" not in caught.value.operator_message
    assert "127.0.0.1" not in caught.value.message
    return caught.value


def test_searxng_is_asked_for_json_with_what_the_operator_set():
    found, [request] = ask(searxng, lambda _: answer(200, SEARXNG), allowed_domains=("example.com", "example.org"))
    assert (request.method, request.path) == ("GET", "/sx/search")
    assert request.params == {
        "q": "antiphon (site:example.com OR site:example.org)",
        "format": "json",
        "language": "de-CH",
        "safesearch": "1",
        "engines": "bing,qwant",
    }
    assert found == [
        WebSearchResult(
            url="https://example.com/antiphon",
            title="Antiphon - Encyclopedia",
            snippet="An antiphon is a short chant.",
            published="2026-01-02T00:00:00",
        ),
        WebSearchResult(url="https://example.org/", title="Other"),
    ]


def test_brave_gets_its_key_and_a_country_that_it_knows():
    found, [request] = ask(brave, lambda _: answer(200, BRAVE), country="CH", max_results=50, blocked_domains=("bad.example",))
    assert request.headers["x-subscription-token"] == "secret-key"
    assert request.params["q"] == "antiphon -site:bad.example"
    assert (request.params["count"], request.params["country"], request.params["safesearch"]) == ("20", "CH", "strict")
    assert found == [
        WebSearchResult(
            url="https://example.com/antiphon",
            title="Antiphon & chant",
            snippet="An antiphon is a short chant. … It is sung by a choir.",
            published="2026-01-02T00:00:00",
        )
    ]
    _, [request] = ask(brave, lambda _: answer(200, BRAVE), country="VA", text=" ".join(["word"] * 200))
    assert "country" not in request.params and len(request.params["q"].split()) == 50


def test_brave_without_web_results_has_found_nothing():
    assert ask(brave, lambda _: answer(200, {"type": "search", "query": {}}))[0] == []


def test_tavily_gets_domains_and_the_country_by_name():
    found, [request] = ask(
        tavily, lambda _: answer(200, TAVILY), country="US", allowed_domains=("a.example",), blocked_domains=("b.example",), max_results=5
    )
    assert (request.method, request.headers["authorization"]) == ("POST", "Bearer secret-key")
    assert json.loads(request.body) == {
        "query": "antiphon",
        "search_depth": "basic",
        "topic": "general",
        "max_results": 5,
        "include_domains": ["a.example"],
        "exclude_domains": ["b.example"],
        "country": "united states",
    }
    assert [result.url for result in found] == ["https://example.com/antiphon"]


def test_searxng_without_json_says_what_to_set():
    error = failure(searxng, lambda _: answer(403, b"<html>Forbidden</html>"))
    assert "`search.formats`" in error.message and "settings.yml" in error.operator_message


@pytest.mark.parametrize("make", [brave, tavily])
@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_is_the_operators_matter(make, status):
    error = failure(make, lambda _: answer(status, {"detail": "bad key"}))
    assert "configured" in error.message and "key_env" in error.operator_message


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_rate_limit_is_waited_for_once(name):
    make, body = PROVIDERS[name]
    replies = iter([answer(429, {}, retry_after="0"), answer(200, body)])
    found, requests = ask(make, lambda _: next(replies))
    assert found and len(requests) == 2
    assert "Try again later" in failure(make, lambda _: answer(429, {}, retry_after="0")).message


def test_a_rate_limit_that_lasts_is_not_waited_for():
    replies = iter([answer(429, {}, x_ratelimit_remaining="0, 0", x_ratelimit_reset="1, 1419704")])
    assert "no more searches" in failure(brave, lambda _: next(replies)).message
    replies = iter([answer(429, {}, retry_after="3600")])
    assert "no more searches" in failure(tavily, lambda _: next(replies)).message


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{]}", "no list of results"),
        (answer(200, b"\xff\xfe\x00"), "no list of results"),
        (answer(200, [1, 2, 3]), "no list of results"),
        (answer(200, {"results": 5, "web": 5}), "no list of results"),
        (answer(200, b"[" * 100_000), "no list of results"),
        (answer(302, b"", location="http://127.0.0.1:1/"), "status 302"),
        (answer(500, b"oops"), "status 500"),
        (answer(432, {"detail": {"error": "limit"}}), "quota"),
        (b"nonsense\r\n\r\n", "can't be reached"),
        (b"", "can't be reached"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "can't be reached"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(name, reply, message):
    assert message in failure(PROVIDERS[name][0], lambda _: reply).message


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_answer_of_100_mb_is_not_read_to_its_end(name):
    def flood(_):
        yield b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
        for _ in range(100):
            yield b" " * (1 << 20)

    assert "more than 4 MB" in failure(PROVIDERS[name][0], flood).message


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_server_that_never_answers_is_not_waited_for(name):
    assert "within 0.05 seconds" in failure(PROVIDERS[name][0], lambda _: None, timeout_s=0.05).message


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_server_that_is_not_there_is_told_without_its_address(name):
    async def run():
        provider = PROVIDERS[name][0]("http://127.0.0.1:1")
        try:
            await provider.search(SearchQuery(text="x", tenant="t"))
        finally:
            await provider.close()

    with pytest.raises(SearchFailure) as caught:
        asyncio.run(run())
    assert "127.0.0.1" not in caught.value.message and "can't be reached" in caught.value.message


@pytest.mark.parametrize("name", PROVIDERS)
def test_rows_that_are_none_are_left_out(name):
    make, body = PROVIDERS[name]
    rows = [{"url": 7}, None, "x", {}, {"url": "https://ok.example/", "title": "OK", "content": "c", "description": "c"}]
    odd = {"web": {"results": rows}} if name == "brave" else {"results": rows}
    assert [result.url for result in ask(make, lambda _: answer(200, odd))[0]] == ["https://ok.example/"]
    assert body is not odd


@given(
    text=st.text(max_size=600),
    allowed=st.lists(st.from_regex(r"[a-z]{1,30}\.example", fullmatch=True), max_size=100),
    blocked=st.lists(st.from_regex(r"[a-z]{1,30}\.example", fullmatch=True), max_size=100),
)
def test_a_query_with_domains_is_never_too_long(text, allowed, blocked):
    assert len(with_sites(text, allowed, blocked, 400)) <= 400
