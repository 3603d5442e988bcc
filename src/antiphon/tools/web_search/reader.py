"""Reads pages: from the local index, from those that were just read, or from the web."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import structlog
from msgspec import Struct

from antiphon.errors import ClientError
from antiphon.tools.web_search.base import FetchPage, SearchFailure, UrlCheck
from antiphon.tools.web_search.local_index import LocalIndex
from antiphon.tools.web_search.page_text import PageText, to_text
from antiphon.tools.web_search.urls import normalize

MAX_RECENT = 200
MAX_RECENT_CHARS = 8 << 20
RECENT_S = 300.0
"""How long a page is read from memory before it is fetched again."""

_log = structlog.get_logger(__name__)


class Page(Struct, frozen=True):
    """A page as it was read; `url` is where its redirects ended."""

    url: str
    title: str
    text: str


class PageReader:
    """
    Reads pages for all responses.

    Args:
        fetch: from the web; None where nothing may be fetched.
        timeout_s: for a page with its redirects.
    """

    def __init__(self, index: LocalIndex, fetch: FetchPage | None, max_bytes: int, timeout_s: float) -> None:
        self._index = index
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._recent: OrderedDict[tuple[str, str], tuple[float, Page]] = OrderedDict()
        # One thread: pages take their time one after another, and other large inputs don't wait for them.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-web-page")

    async def read(self, tenant: str, url: str, check_url: UrlCheck, *, is_live: bool) -> Page:
        """
        A page.

        Args:
            tenant: on whose behalf: pages that were fetched for one tenant are not given to another.
            url: in the form of `urls.normalize`.
            check_url: is called for each URL that a redirect leads to.
            is_live: whether it may be fetched.

        Raises:
            SearchFailure: it can't be read.
        """
        if not is_live or self._fetch is None or await self._index.has_file(url):
            copy = await self._index.read(tenant, url)
            if copy is None:
                raise SearchFailure("The page can't be opened: it is not stored on this server, and no page is fetched.")
            return Page(url, copy.title, copy.text)
        # Asked again: this request may block the domain that the page's redirects led to.
        if (page := self._find_recent(tenant, url)) is not None and check_url(page.url) is None:
            return page
        page = await self._fetch_page(self._fetch, url, check_url)
        self._remember(tenant, url, page)
        try:
            await self._index.add(tenant, page.url, PageText(page.title, page.text))
        except SearchFailure as failure:  # The page was read all the same.
            _log.warning("A page was not kept.", reason=failure.operator_message)
        return page

    async def _fetch_page(self, fetch: FetchPage, url: str, check_url: UrlCheck) -> Page:
        try:
            answer = await fetch(url, check_url, self._max_bytes, self._timeout_s)
        except ClientError as error:
            raise SearchFailure(error.message) from None
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._executor, to_text, answer.body, answer.content_type, answer.charset)
        return Page(normalize(answer.url) or url, text.title, text.text)

    def _find_recent(self, tenant: str, url: str) -> Page | None:
        at, page = self._recent.get((tenant, url), (0.0, None))
        return page if page is not None and asyncio.get_running_loop().time() - at < RECENT_S else None

    def _remember(self, tenant: str, url: str, page: Page) -> None:
        # Under both addresses: the model reads further parts by the one that the answer named.
        for key in {(tenant, url), (tenant, page.url)}:
            self._recent[key] = (asyncio.get_running_loop().time(), page)
            self._recent.move_to_end(key)
        while len(self._recent) > MAX_RECENT or sum(len(page.text) for _, page in self._recent.values()) > MAX_RECENT_CHARS:
            self._recent.popitem(last=False)

    async def close(self) -> None:
        """End the thread; idempotent."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
