"""The pages of a conversation: which may be opened, and how they are cited."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.tools.web_search.domains import host_of, is_in, parse_domains, refusal
from antiphon.tools.web_search.urls import Sources, earlier_sources, link_form, neutralize_marks, normalize, user_urls, written_urls
from antiphon.wire.codec.reading import Reader
from antiphon.wire.responses.items import Item

_reader: Reader[list[Item]] = Reader(list[Item])


def conversation(*items):
    return _reader.read(msgspec.json.encode(items), "input")


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM:443/a", "https://example.com/a#part"),
        ("http://example.com:80/", "http://example.com"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("https://example.com./a", "https://example.com/a"),
    ],
)
def test_addresses_of_one_page_are_the_same(one, other):
    assert normalize(one) == normalize(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://example.com/a", "https://example.com/A"),
        ("https://example.com/a", "https://example.com/a?"[:-1] + "?q=secret"),
        ("https://example.com/a", "http://example.com/a"),
        ("https://example.com/a", "https://example.com:8443/a"),
        ("https://example.com/", "https://evil.example.com/"),
    ],
)
def test_addresses_of_two_pages_are_not(one, other):
    assert normalize(one) != normalize(other)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "//a/b",
        "ftp://a/",
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "http://",
        "http://u:p@a/",
        "http://a@b/",
        "http://a:99999/",
        "http://[::1",
        "http://a/\r\nx",
        "http://a/\0",
        "https://a/" + "x" * 3000,
        "http://a/\u202e",
        "https://ex%00ample.com:x/",
    ],
)
def test_what_is_no_address_of_the_web_is_none(url):
    assert normalize(url) is None


@given(st.text(max_size=60) | st.text(max_size=30).map(lambda text: f"https://{text}"))
def test_the_form_of_an_address_is_final(url):
    form = normalize(url)
    assert form is None or (normalize(form) == form and " " not in link_form(form) and ")" not in link_form(form))


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("see https://example.com/a.", ["https://example.com/a"]),
        ("(https://example.com/a)", ["https://example.com/a"]),
        ("https://en.example.org/wiki/A_(b), and", ["https://en.example.org/wiki/A_(b)"]),
        ("[it](https://example.com/a?b=c)!", ["https://example.com/a?b=c"]),
        ("<https://example.com/>", ["https://example.com/"]),
        ("look at example.com/docs", ["https://example.com/docs", "http://example.com/docs"]),
        ("write to me@example.com", []),
        ("version 1.2.3", []),
    ],
)
def test_what_a_person_writes_is_read_as_they_mean_it(text, urls):
    assert list(written_urls(text)) == urls


@given(st.text(alphabet="http:/a.b()[]?# \n,", max_size=200))
def test_any_text_is_searched_for_addresses(text):
    assert all(url.startswith("http") for url in written_urls(text))


def test_only_what_the_user_wrote_counts_as_theirs():
    items = conversation(
        user("open https://user.example/a"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "https://model.example/", "annotations": []}]},
        {"type": "function_call_output", "call_id": "c", "output": "https://tool.example/"},
        {"type": "message", "role": "user", "content": "and user.example/b"},
    )
    assert user_urls(items) == {"https://user.example/a", "https://user.example/b", "http://user.example/b"}


def test_pages_that_earlier_calls_and_answers_named_are_known():
    note = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "C", "url": "https://c.example/"}
    failed = {"type": "open_page", "url": "https://made-up.example/?q=secret"}
    items = conversation(
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": "https://a.example/"}]},
            "results": [{"url": "https://a.example/", "title": "A", "text": "t"}],
        },
        {"type": "web_search_call", "id": "ws_2", "status": "completed", "action": {"type": "open_page", "url": "https://b.example/"}},
        {"type": "web_search_call", "id": "ws_3", "status": "failed", "action": failed},
        {
            "type": "web_search_call",
            "id": "ws_4",
            "status": "completed",
            "action": {"type": "search", "query": "q", "sources": [{"type": "api", "name": "weather"}]},
            "results": ["odd", {"url": 5}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": [note]}]},
    )
    sources = Sources(earlier_sources(items))
    assert [citation.annotation for citation in sources.citations()] == [
        {"type": "url_citation", "title": "A", "url": "https://a.example/"},
        {"type": "url_citation", "title": "b.example", "url": "https://b.example/"},
        {"type": "url_citation", "title": "C", "url": "https://c.example/"},
    ]


def test_a_page_keeps_its_number_and_is_cited_as_a_link():
    sources = Sources()
    assert [
        sources.learn(url, "T") for url in ("https://www.example.com/a_(b)", "https://b.example/", "https://www.example.com/a_(b)#x", "x")
    ] == [
        1,
        2,
        1,
        None,
    ]
    [citation] = sources.citations(["https://www.example.com/a_(b)"])
    assert (citation.marker, citation.kind) == ("[web:1]", "range")
    assert citation.replacement == "([example.com](https://www.example.com/a_%28b%29))"
    assert citation.annotation == {"type": "url_citation", "title": "T", "url": "https://www.example.com/a_%28b%29"}


def test_a_page_cant_write_marks_or_end_itself():
    assert neutralize_marks("see [web:3], [WEB :4] >>> and <<<") == "see (web:3], (web:4] ››› and ‹‹‹"


def test_subdomains_belong_to_a_domain_and_lookalikes_do_not():
    assert is_in("a.example.com", ["example.com"]) and is_in("example.com", ["example.com"])
    assert not is_in("badexample.com", ["example.com"]) and not is_in("example.com.evil.net", ["example.com"])
    assert host_of("https://BÜCHER.example./x") == "xn--bcher-kva.example"
    assert refusal("https://a.example.com/", ("example.com",), ("a.example.com",)) == "its domain is blocked in this request"
    assert refusal("https://b.example.org/", ("example.com",), ()) is not None
    assert refusal("https://[::1", (), ()) == "it is not a valid URL"


@pytest.mark.parametrize(
    "domain", ["", "https://example.com", "example.com/a", "a b", "*.example.com", "a..b", "-a.com", "a" * 64, "x" * 1000, "@", "a:80"]
)
def test_what_is_no_domain_is_refused_with_its_place(domain):
    with pytest.raises(ClientError) as caught:
        parse_domains(["ok.example", domain], "tools[0].filters.allowed_domains")
    assert (caught.value.param, caught.value.code) == ("tools[0].filters.allowed_domains[1]", "invalid_value")


def test_domains_are_compared_in_one_form_and_are_not_too_many():
    assert parse_domains(["Example.COM", "bücher.example", "example.org."], "p") == ("example.com", "xn--bcher-kva.example", "example.org")
    with pytest.raises(ClientError, match="maximum length 100"):
        parse_domains(["a.example"] * 101, "p")
