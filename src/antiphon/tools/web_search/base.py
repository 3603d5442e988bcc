"""What a search provider and a fetcher of pages are, for the tool that uses them."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct


class SearchQuery(Struct, frozen=True, kw_only=True):
    """
    A search.

    Attributes:
        text: what to search for.
        tenant: on whose behalf: pages that were fetched for one tenant are not found by another.
        max_results: the most results that will be used.
        snippet_chars: the most characters of each result's text.
        allowed_domains: with their subdomains, where results may be from; empty for anywhere.
        blocked_domains: with their subdomains, where no result may be from.
        country: the user's, as two upper-case letters (ISO 3166-1); None if unknown.
    """

    text: str
    tenant: str
    max_results: int = 8
    snippet_chars: int = 600
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    country: str | None = None


class WebSearchResult(Struct, frozen=True, kw_only=True):
    """A page that was found; `snippet` is a part of its text, `published` a date in the provider's own form, or empty."""

    url: str
    title: str = ""
    snippet: str = ""
    published: str = ""


class SearchFailure(Exception):
    """
    A search, or a fetch of a page, has failed.

    Attributes:
        message: for the model and the client; it names nothing of this server.
        operator_message: for the log of this server: what is wrong, and what to do about it.
    """

    def __init__(self, message: str, operator_message: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operator_message = operator_message or message


class SearchProvider(Protocol):
    """A search engine."""

    async def search(self, query: SearchQuery) -> Sequence[WebSearchResult]:
        """
        What is found, the best first. Domain filters are checked again by the caller.

        Raises:
            SearchFailure: nothing can be found now.
        """

    async def close(self) -> None:
        """Close its connections or files; idempotent."""


class FetchedPage(Protocol):
    """A page as it came: `url` is where the redirects ended, `charset` the one in its type, or empty."""

    @property
    def url(self) -> str: ...

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str: ...

    @property
    def charset(self) -> str: ...


UrlCheck: TypeAlias = Callable[[str], str | None]
"""Takes a URL, and returns why it must not be asked, as the end of a sentence; None if it may be."""


class FetchPage(Protocol):
    """Fetches pages of the public internet."""

    async def __call__(self, url: str, check_url: UrlCheck, max_bytes: int, timeout_s: float, /) -> FetchedPage:
        """
        The page at `url`.

        Args:
            check_url: is called for each URL that a redirect leads to, besides the fetcher's own rules.
            timeout_s: for the whole fetch, redirects included.

        Raises:
            ClientError: it can't or may not be fetched.
        """
