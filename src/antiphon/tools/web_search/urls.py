"""
The pages of a conversation: which the model may open, their numbers, and how it cites them.

The model may open those that stood in results or in what the user wrote.

A page's text may tell the model to open an address that has the conversation in it. An address that the model made up
isn't opened, so nothing leaves this way.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, urlsplit, urlunsplit

from antiphon.tool_api import Citation
from antiphon.tools.web_search.domains import host_of
from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses import items, parts
from antiphon.wire.responses.hosted_calls import ActionSearchSource, FindAction, OpenPageAction, SearchAction, WebSearchCall

MAX_URL_CHARS = 2048
MAX_USER_URLS = 1000
MAX_SCAN_CHARS = 500_000
"""Of the user's text, from the newest message: the rest is not searched for addresses."""
MAX_BRACKETS = 8
"""The most closing brackets at the end of an address that are taken as part of the sentence around it."""

# `example.com/a` is an address too when a person writes it.
_WRITTEN = re.compile(
    r"(?:https?://[^\s<>\"`{}|\\^]{1,2048})|(?<![\w@./-])(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}(?:/[^\s<>\"`{}|\\^]{0,2048})?", re.I
)
_CLOSING = ".,;:!?'\"*_"


def normalize(url: str) -> str | None:
    """The form in which two addresses are compared: without what makes no difference; None if it is no web address."""
    # `urlsplit` silently drops tabs and line breaks, so two texts could mean one address.
    if len(url) > MAX_URL_CHARS or not url.isprintable():
        return None
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    # A user in an address is a way to disguise its host: `https://bank.example@evil.example/`.
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return None
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return None
    netloc = f"[{host}]" if ":" in host else host.removesuffix(".")
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        netloc = f"{netloc}:{port}"
    # RFC 3986 6.2.2.2: letters outside ASCII are the same whether they are percent-encoded or not.
    path, query = (quote(part, safe=_SAFE) for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme, netloc, path, query, ""))


_SAFE = "!$%&'()*+,/:;=?@[]~"


def link_form(url: str) -> str:
    """The address as it stands in a Markdown link, which a bracket or a space would end."""
    return quote(url, safe="!$%&'*+,/:;=?@~#")


def written_urls(text: str) -> Iterator[str]:
    """The addresses in a person's text. One without a scheme is given with each of the two."""
    for match in _WRITTEN.finditer(text):
        url = match[0].rstrip(_CLOSING)
        for _ in range(MAX_BRACKETS):
            # `(see https://en.wikipedia.org/wiki/Set_(mathematics))`: only the last bracket is the sentence's.
            if not url.endswith((")", "]")) or url.count(url[-1]) <= url.count("(" if url[-1] == ")" else "["):
                break
            url = url[:-1].rstrip(_CLOSING)
        if url.lower().startswith(("http://", "https://")):
            yield url
        else:
            yield f"https://{url}"
            yield f"http://{url}"


def user_urls(conversation: Sequence[items.Item]) -> set[str]:
    """The addresses that stand in the user's messages, in the form of `normalize`; the newest ones where there are many."""
    urls: set[str] = set()
    room = MAX_SCAN_CHARS
    for text in _user_texts(conversation):
        urls.update(url for address in written_urls(text[:room]) if (url := normalize(address)) is not None)
        room -= len(text)
        if len(urls) >= MAX_USER_URLS or room <= 0:
            break
    return urls


def _user_texts(conversation: Sequence[items.Item]) -> Iterator[str]:
    # Not what tools answered: an attacker may have written it.
    for item in reversed(conversation):
        if isinstance(item, items.Message) and item.role == "user":
            if isinstance(item.content, str):
                yield item.content
            else:
                yield from (part.text for part in item.content if isinstance(part, parts.InputText))


def earlier_sources(conversation: Sequence[items.Item]) -> Iterator[tuple[str, str]]:
    """The pages that earlier calls and answers of the conversation have named, oldest first, each with its title or nothing."""
    for item in conversation:
        if isinstance(item, WebSearchCall):
            if item.status == "completed":  # The address of a page that was not opened may be one that the model made up.
                yield from _sources_of_call(item)
        elif isinstance(item, items.Message) and item.role == "assistant" and not isinstance(item.content, str):
            for part in item.content:
                if isinstance(part, parts.OutputText):
                    yield from ((note.url, note.title) for note in part.annotations or () if isinstance(note, parts.UrlCitation))


def _sources_of_call(call: WebSearchCall) -> Iterator[tuple[str, str]]:
    results = call.extra.get("results") if is_set(call.extra) else None
    for result in results if isinstance(results, list) else []:
        if isinstance(result, dict) and isinstance(url := result.get("url"), str):
            yield url, str(result.get("title") or "")
    match call.action:
        case SearchAction(sources=list(sources)):
            yield from ((source.url, "") for source in sources if isinstance(source, ActionSearchSource))
        case OpenPageAction(url=str(url)) | FindAction(url=url):
            yield url, ""
        case _:
            pass


# Citing

MAX_SOURCES = 5000
MARK = re.compile(r"\[\s*web\s*:", re.IGNORECASE)
"""What every mark begins with."""


def neutralize_marks(text: str) -> str:
    """Text of others, in which nothing looks like a mark, or like where the text ends."""
    return MARK.sub("(web:", text).replace("<<<", "‹‹‹").replace(">>>", "›››")


class Sources:
    """Numbers pages in the order in which they are learned."""

    def __init__(self, earlier: Iterable[tuple[str, str]] = ()) -> None:
        self._numbers: dict[str, int] = {}
        self._titles: dict[str, str] = {}
        for url, title in earlier:
            self.learn(url, title)

    def learn(self, url: str, title: str) -> int | None:
        """The page's number; None for what is no web address, or when there are too many."""
        key = normalize(url)
        if key is None or (key not in self._numbers and len(self._numbers) >= MAX_SOURCES):
            return None
        if title:
            self._titles[key] = title
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def __contains__(self, url: object) -> bool:
        return isinstance(url, str) and normalize(url) in self._numbers

    @staticmethod
    def mark(number: int) -> str:
        """What the model writes to cite the page."""
        return f"[web:{number}]"

    def title(self, url: str) -> str:
        """The page's title; its host if none is known."""
        return self._titles.get(normalize(url) or "") or host_of(url)

    def citations(self, urls: Iterable[str] | None = None) -> tuple[Citation, ...]:
        """The citations of these pages; None for all that are known."""
        keys = self._numbers if urls is None else dict.fromkeys(normalize(url) or "" for url in urls)
        return tuple(self._citation(key) for key in keys if key in self._numbers)

    def _citation(self, key: str) -> Citation:
        # The original's text has `([host](url))`, and its annotation the range of all that, brackets included.
        link, host = link_form(key), host_of(key).removeprefix("www.")
        return Citation(
            marker=self.mark(self._numbers[key]),
            annotation={"type": "url_citation", "title": self.title(key), "url": link},
            replacement=f"([{host}]({link}))",
            kind="range",
        )
