"""What a request's `web_search` or `web_search_preview` asks for."""

import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import ClientError, shorten
from antiphon.tools.web_search.domains import parse_domains
from antiphon.wire.codec.fields import is_set
from antiphon.wire.responses import tools as wire_tools

DEFAULT_COUNTRY = "US"
MAX_PLACE_CHARS = 200


class ContextSize(Struct, frozen=True):
    """How much the model reads: results for each query, characters of each result, and of each part of a page."""

    results: int
    snippet_chars: int
    page_chars: int


CONTEXT_SIZES = {
    "low": ContextSize(results=5, snippet_chars=300, page_chars=8_000),
    "medium": ContextSize(results=8, snippet_chars=600, page_chars=20_000),
    "high": ContextSize(results=12, snippet_chars=1_200, page_chars=40_000),
}
"""A part of a page is about 2,000, 5,000 or 10,000 tokens of English."""


class SearchOptions(Struct, frozen=True, kw_only=True):
    """
    What a request asks for.

    Attributes:
        is_live: whether anything outside this machine may be asked.
        place: where the user is, such as `Bern, CH`; empty if unknown.
    """

    size: ContextSize
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    country: str | None = None
    place: str = ""
    timezone: str = ""
    is_live: bool = True

    @property
    def note(self) -> str:
        """What the model should know of it, as sentences."""
        sentences = []
        if self.place:
            sentences.append(f"The user is in or near {self.place}.")
        if self.timezone:
            sentences.append(f"The user's time zone is {self.timezone}.")
        if self.allowed_domains:
            more = ", ..." if len(self.allowed_domains) > 10 else ""
            sentences.append(f"Only pages of these domains are found: {', '.join(self.allowed_domains[:10])}{more}.")
        if not self.is_live:
            sentences.append("Only pages that are stored on this server are found.")
        return " ".join(sentences)


def parse_options(tools: Sequence[tuple[str, wire_tools.Tool]]) -> SearchOptions:
    """
    The options of a request's tool, which comes with its path: `tools[3]`.

    Raises:
        ClientError: they are wrong, or there is more than one such tool.
    """
    path, tool = tools[0]
    if len(tools) > 1:
        raise ClientError(
            f"Invalid '{tools[1][0]}': a request may have one tool that searches the web, and this one has it in '{path}' already.",
            code="invalid_value",
            param=tools[1][0],
        )
    if not isinstance(tool, wire_tools.WebSearchTool | wire_tools.WebSearchPreviewTool):
        raise ClientError(f"Invalid '{path}': expected a tool that searches the web.", code="invalid_value", param=path)
    size = tool.search_context_size if is_set(tool.search_context_size) else "medium"
    country, place, timezone = _parse_location(tool.user_location, f"{path}.user_location")
    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    is_live = True
    if isinstance(tool, wire_tools.WebSearchTool):
        is_live = tool.external_web_access is not False
        if is_set(filters := tool.filters):
            allow = parse_domains(filters.allowed_domains or (), f"{path}.filters.allowed_domains")
            block = parse_domains(filters.blocked_domains or (), f"{path}.filters.blocked_domains")
    return SearchOptions(
        size=CONTEXT_SIZES[size],
        allowed_domains=allow,
        blocked_domains=block,
        country=country,
        place=place,
        timezone=timezone,
        is_live=is_live,
    )


def _parse_location(location: object, path: str) -> tuple[str | None, str, str]:
    """The country's code, the place as words, the time zone."""
    # Source: openai-python, `WebSearchTool.user_location`: omitted or null, it is the United States; without fields, nowhere.
    if not isinstance(location, wire_tools.UserLocation):
        return DEFAULT_COUNTRY, "", ""
    texts = {}
    for name in ("city", "region", "country", "timezone"):
        text = getattr(location, name)
        if is_set(text) and (text := " ".join(text.split())):
            if len(text) > MAX_PLACE_CHARS:
                raise ClientError(
                    f"Invalid '{path}.{name}': string too long. Expected a string with maximum length {MAX_PLACE_CHARS}, but got a string "
                    f"with length {len(text)} instead.",
                    code="string_above_max_length",
                    param=f"{path}.{name}",
                )
            texts[name] = text
    country = texts.get("country", "").upper() or None
    if country is not None and not re.fullmatch("[A-Z]{2}", country):
        raise ClientError(
            f"Invalid '{path}.country': expected an ISO 3166-1 code of two letters, such as 'US', but got '{shorten(country)}' instead.",
            code="invalid_value",
            param=f"{path}.country",
        )
    place = ", ".join(part for part in (texts.get("city"), texts.get("region"), country) if part)
    return country, place, texts.get("timezone", "")
