"""What a tool of an MCP server answers, as text for the model."""

import json
from collections.abc import Iterable

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)


def text_of(result: CallToolResult) -> str:
    """
    All texts of the result, each on lines of its own, with a note in place of everything else. Where there is no content,
    the structured content as JSON.

    The original's item has one string and no other place for what a tool answers.
    """
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_texts(result.content))


def _texts(content: Iterable[ContentBlock]) -> Iterable[str]:
    for part in content:
        match part:
            case TextContent(text=text):
                yield text
            case ImageContent(mime_type=kind, data=data) | AudioContent(mime_type=kind, data=data):
                # Base64 has four characters for three bytes.
                yield f"[{kind}, {len(data) * 3 // 4} bytes]"
            case ResourceLink(name=name, uri=uri):
                yield f"[{name}: {uri}]"
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                yield text
            case EmbeddedResource(resource=resource):
                yield f"[{resource.mime_type or 'a file'}: {resource.uri}]"
