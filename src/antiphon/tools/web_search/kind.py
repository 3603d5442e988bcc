"""The rows of the toolbox: `web_search` and `web_search_preview`."""

from collections.abc import Sequence
from pathlib import Path

from antiphon.config.tools.web_search import WebSearchSettings
from antiphon.errors import ServerError
from antiphon.tools.base import ToolContext
from antiphon.tools.web_search.base import FetchPage, SearchProvider
from antiphon.tools.web_search.brave import BraveProvider
from antiphon.tools.web_search.local_index import LocalIndex, PageFolder
from antiphon.tools.web_search.reader import PageReader
from antiphon.tools.web_search.request import parse_options
from antiphon.tools.web_search.searxng import SearxngOptions, SearxngProvider
from antiphon.tools.web_search.tavily import TavilyProvider
from antiphon.tools.web_search.tool import WebSearchCalls
from antiphon.wire.responses import tools as wire_tools

TYPES = frozenset({"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"})


class WebSearchKind:
    """
    Web search; a `ToolKind`.

    Args:
        fetch: of pages, which refuses addresses that are not public.
        key: for Brave or Tavily: the value of the variable that the settings name.
        base_folder: that relative paths in the settings start from.

    Raises:
        ServerError: the key is missing, or a folder is.
    """

    def __init__(self, settings: WebSearchSettings, fetch: FetchPage, key: str | None, base_folder: Path) -> None:
        folders = [PageFolder(base_folder / entry.path, entry.url) for entry in settings.folders]
        for folder in folders:
            if not folder.path.is_dir():
                raise ServerError(f"`tools.web_search.folders`: '{folder.path}' is no folder.")
        file = base_folder / settings.file if settings.file is not None else None
        self._index = LocalIndex(file, folders, int(settings.index_mb * 1e6))
        self._provider = _build_provider(settings, key) or self._index
        self._reader = PageReader(self._index, fetch if settings.fetch_pages else None, int(settings.page_mb * 1e6), settings.timeout_s)

    @property
    def types(self) -> frozenset[str]:
        return TYPES

    def open(self, tools: Sequence[tuple[str, wire_tools.Tool]], context: ToolContext) -> WebSearchCalls:
        options = parse_options(tools)
        # `external_web_access: false` means that nothing outside is asked, the search engine included.
        return WebSearchCalls(options, context, self._provider if options.is_live else self._index, self._reader)

    async def close(self) -> None:
        await self._provider.close()
        await self._reader.close()
        await self._index.close()


def _build_provider(settings: WebSearchSettings, key: str | None) -> SearchProvider | None:
    """The provider on the web; None for the local index alone."""
    match settings.provider:
        case "searxng":
            options = SearxngOptions(engines=settings.engines, language=settings.language, safe_search=settings.safe_search)
            return SearxngProvider(settings.url or "", options, settings.timeout_s, settings.concurrency)
        case "brave":
            return BraveProvider(settings.url, _check_key(settings, key), settings.safe_search, settings.timeout_s, settings.concurrency)
        case "tavily":
            return TavilyProvider(settings.url, _check_key(settings, key), settings.timeout_s, settings.concurrency)
        case "local":
            return None


def _check_key(settings: WebSearchSettings, key: str | None) -> str:
    key = (key or "").strip()
    # A key with a line break could not be sent in a header.
    if not key or not key.isascii() or not key.isprintable():
        raise ServerError(f"`tools.web_search` needs a key in the environment variable {settings.key_env}.")
    return key
