"""
Content blocks: those of a request's messages, and those of an answer.

Source: the Messages reference, and the types of `anthropic` 2.12 for Python. Fields that only steer the original's own
caching, citing and billing are not listed: they are accepted, as every unknown field is, and mean nothing here.
"""

from typing import Literal

from msgspec import UNSET, field

from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Tagged, Unknown

MediaType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]


# Sources of images and documents


class Base64Source(Tagged, kw_only=True, tag="base64"):
    """A file in base64."""

    media_type: str
    data: str


class UrlSource(Tagged, kw_only=True, tag="url"):
    """A file at an http(s) URL."""

    url: str


class FileSource(Tagged, kw_only=True, tag="file"):
    """An uploaded file."""

    file_id: str


class PlainTextSource(Tagged, kw_only=True, tag="text"):
    """A document that is text."""

    data: str
    media_type: Opt[str] = UNSET


class TextBlockParam(Tagged, kw_only=True, tag="text"):
    """Text."""

    text: str


class ImageBlockParam(Tagged, kw_only=True, tag="image"):
    """An image."""

    source: Base64Source | UrlSource | FileSource


class ContentSource(Tagged, kw_only=True, tag="content"):
    """A document that is text and images."""

    content: str | list[TextBlockParam | ImageBlockParam]


class DocumentBlockParam(Tagged, kw_only=True, tag="document"):
    """A document: a PDF or a text."""

    source: Base64Source | UrlSource | FileSource | PlainTextSource | ContentSource
    title: Maybe[str] = UNSET
    context: Maybe[str] = UNSET


class SearchResultBlockParam(Tagged, kw_only=True, tag="search_result"):
    """What a search of the client's found."""

    source: str
    title: str
    content: list[TextBlockParam]


ToolResultContent = TextBlockParam | ImageBlockParam | DocumentBlockParam | SearchResultBlockParam | Unknown


class ToolUseBlockParam(Tagged, kw_only=True, tag="tool_use"):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: JsonDict


class ToolResultBlockParam(Tagged, kw_only=True, tag="tool_result"):
    """The output of a tool."""

    tool_use_id: str
    content: Maybe[str | list[ToolResultContent]] = UNSET
    is_error: Maybe[bool] = UNSET


class ThinkingBlockParam(Tagged, kw_only=True, tag="thinking"):
    """Reasoning of an earlier answer, with the `signature` that it came with."""

    thinking: str
    signature: Maybe[str] = UNSET


class RedactedThinkingBlockParam(Tagged, kw_only=True, tag="redacted_thinking"):
    """Reasoning of an earlier answer that only its model can read."""

    data: str


ContentBlockParam = (
    TextBlockParam
    | ImageBlockParam
    | DocumentBlockParam
    | SearchResultBlockParam
    | ToolUseBlockParam
    | ToolResultBlockParam
    | ThinkingBlockParam
    | RedactedThinkingBlockParam
    | Unknown
)


# Answers


class TextBlock(Tagged, kw_only=True, tag="text"):
    """Text of the model."""

    text: str


class ThinkingBlock(Tagged, kw_only=True, tag="thinking"):
    """Reasoning of the model; `signature` is given back with it."""

    thinking: str
    signature: str


class RedactedThinkingBlock(Tagged, kw_only=True, tag="redacted_thinking"):
    """Reasoning that only its model can read."""

    data: str


class ToolUseBlock(Tagged, kw_only=True, tag="tool_use"):
    """A call of one of the request's tools."""

    id: str
    name: str
    input: JsonDict = field(default_factory=dict)


ContentBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
