"""What the model may ask for: the functions that it is offered, and its calls as actions."""

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from antiphon.engine_api.options import FunctionTool

SEARCH, OPEN_PAGE, FIND_IN_PAGE = "web_search", "open_page", "find_in_page"
MAX_QUERIES = 5
MAX_QUERY_CHARS = 1000
MAX_PATTERN_CHARS = 200


class Search(Struct, frozen=True):
    """Search for each of the queries."""

    queries: tuple[str, ...]

    def on_wire(self) -> dict[str, Any]:
        """The action as in its item."""
        return {"type": "search", "query": self.queries[0], "queries": list(self.queries)}


class OpenPage(Struct, frozen=True):
    """Read a page, from the beginning of its part `part`; the first is 1."""

    url: str
    part: int = 1

    def on_wire(self) -> dict[str, Any]:
        """The action as in its item."""
        return {"type": "open_page", "url": self.url}


class FindInPage(Struct, frozen=True):
    """Find where a page has `pattern` in its text."""

    url: str
    pattern: str

    def on_wire(self) -> dict[str, Any]:
        """The action as in its item."""
        return {"type": "find_in_page", "pattern": self.pattern, "url": self.url}


Action: TypeAlias = Search | OpenPage | FindInPage


class MalformedCall(ValueError):
    """The model's arguments are not of the function's form; the message tells it what they must be."""


class _SearchArguments(Struct):
    query: str | None = None
    queries: list[str] | None = None


class _OpenArguments(Struct):
    url: str
    part: int = 1


class _FindArguments(Struct):
    url: str
    pattern: str


def parse_action(name: str, arguments: str) -> Action:
    """
    Read a call of the model as an action.

    Raises:
        MalformedCall: the arguments don't fit the function.
    """
    body = arguments.strip() or "{}"
    try:
        match name:
            case "web_search":
                return _parse_search(msgspec.json.decode(body, type=_SearchArguments, strict=False))
            case "open_page":
                # Not strict: `"2"` is as good as 2.
                opening = msgspec.json.decode(body, type=_OpenArguments, strict=False)
                return OpenPage(opening.url.strip(), max(1, opening.part))
            case _:
                finding = msgspec.json.decode(body, type=_FindArguments, strict=False)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedCall(f"The arguments of `{name}` are wrong: {str(error)[:200]}.") from None
    pattern = " ".join(finding.pattern.split())[:MAX_PATTERN_CHARS]
    if not pattern:
        raise MalformedCall(f"`{name}` needs a `pattern` to look for.")
    return FindInPage(finding.url.strip(), pattern)


def _parse_search(arguments: _SearchArguments) -> Search:
    texts = (arguments.queries or []) + ([arguments.query] if arguments.query else [])
    queries = tuple(dict.fromkeys(query for text in texts if (query := " ".join(text[:MAX_QUERY_CHARS].split()))))
    if not queries:
        raise MalformedCall("`web_search` needs a `query`.")
    return Search(queries[:MAX_QUERIES])


def functions(search_note: str) -> tuple[FunctionTool, ...]:
    """
    The functions that the model is offered.

    Args:
        search_note: what this request's searches are limited to, as sentences for the model; may be empty.
    """
    url = {"type": "string", "description": "The address exactly as it stands in a result or in what the user wrote."}
    return (
        FunctionTool(
            name=SEARCH,
            description=f"Search the web. Returns pages, each with its address and a part of its text. {search_note}".strip(),
            parameters=_object(
                {
                    "query": {"type": "string", "description": "What to search for, in a few words."},
                    "queries": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": f"Several searches at once instead of `query`; up to {MAX_QUERIES}.",
                    },
                }
            ),
        ),
        FunctionTool(
            name=OPEN_PAGE,
            description="Read a page of the web. Only pages of search results, and those that the user named, can be opened.",
            parameters=_object(
                {"url": url, "part": {"type": "integer", "description": "Of a long page: which part; the first is 1."}}, "url"
            ),
        ),
        FunctionTool(
            name=FIND_IN_PAGE,
            description="Find where a page has certain words; upper and lower case are the same.",
            parameters=_object(
                {"url": url, "pattern": {"type": "string", "description": "The words, as they stand in the page."}}, "url", "pattern"
            ),
        ),
    )


def _object(properties: dict[str, Any], *required_names: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": list(required_names)} if required_names else schema
