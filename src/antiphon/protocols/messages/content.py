"""The messages of a request as the conversation that an engine reads."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from antiphon.engine_api import documents, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.errors import ClientError, invalid_value, shorten, unsupported_parameter
from antiphon.protocols.messages.thinking import Unsign, read_thinking
from antiphon.protocols.omissions import Omissions
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.media_urls import check_media_url
from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.messages import blocks
from antiphon.wire.messages.request import CountTokensRequest, MessageParam

FAILED_TOOL_TEXT = "The tool reported an error:\n"
"""Put before the output of a tool that failed, as prompt templates of models have no place for the field `is_error`."""

BILLING_HEADER = "x-anthropic-billing-header"
"""
The beginning of a block in Claude Code's system prompt that is for the original's accounting. In some versions it changes
with every request, so a model server that got it would never find the prompt in its cache.
"""

_HOSTED_TYPES = ("server_tool_use", "container_upload", "tool_reference", "mcp_tool_use", "mcp_tool_result")
"""Types of blocks that only tools on the original's servers make, besides those that end in `_tool_result`."""

_BLOCK_TYPES = ("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result")

_ROLES: Mapping[str, tuple[type, ...]] = {
    "system": (blocks.TextBlockParam,),
    "user": (
        blocks.TextBlockParam,
        blocks.ImageBlockParam,
        blocks.DocumentBlockParam,
        blocks.SearchResultBlockParam,
        blocks.ToolResultBlockParam,
    ),
    "assistant": (
        blocks.TextBlockParam,
        blocks.ThinkingBlockParam,
        blocks.RedactedThinkingBlockParam,
        blocks.ToolUseBlockParam,
    ),
}
"""The blocks that messages of each role may have."""


class MessagesContext(Struct, frozen=True):
    """
    What the translation of a request needs to know.

    Attributes:
        omit_unsupported: whether unsupported tools and blocks are omitted rather than refused.
        omissions: collects what is omitted.
        documents: files that the messages name, by their ids, or URLs where the engine fetches none.
    """

    capabilities: Capabilities
    model: str
    omit_unsupported: bool
    omissions: Omissions
    unsign: Unsign
    documents: Mapping[str, FileContent] = {}


def file_names(request: CountTokensRequest) -> Iterator[tuple[str, str]]:
    """The ids and URLs of the files that a request names, each with its path; images by URL are left to engines."""
    for index, message in enumerate(request.messages):
        if isinstance(message.content, list):
            yield from _file_names(message.content, f"messages[{index}].content")


def _file_names(content: Sequence[object], path: str) -> Iterator[tuple[str, str]]:
    for position, block in enumerate(content):
        where = f"{path}[{position}]"
        match block:
            case blocks.ToolResultBlockParam(content=list(inner)):
                yield from _file_names(inner, f"{where}.content")
            case blocks.DocumentBlockParam(source=blocks.ContentSource(content=list(inner))):
                yield from _file_names(inner, f"{where}.source.content")
            case (
                blocks.ImageBlockParam(source=blocks.FileSource(file_id=file_id))
                | blocks.DocumentBlockParam(source=blocks.FileSource(file_id=file_id))
            ):
                yield file_id, f"{where}.source.file_id"
            case blocks.DocumentBlockParam(source=blocks.UrlSource(url=url)):
                yield url, f"{where}.source.url"
            case _:
                pass


def has_thinking(request: CountTokensRequest) -> bool:
    """Whether the messages have reasoning that came from a model."""
    return any(
        isinstance(block, blocks.ThinkingBlockParam | blocks.RedactedThinkingBlockParam)
        for message in request.messages
        if isinstance(message.content, list)
        for block in message.content
    )


def system_text(system: str | Sequence[blocks.TextBlockParam]) -> str | None:
    """The system prompt as one text; None if there is none."""
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING_HEADER)) or None


def to_history(messages: Sequence[MessageParam], context: MessagesContext) -> tuple[history.HistoryItem, ...]:
    """
    Translate the messages.

    Raises:
        ClientError: the engine can't read one, a block does not fit its message's role, or a tool's result is of no call.
    """
    conversation: list[history.HistoryItem] = []
    call_ids: set[str] = set()
    for index, message in enumerate(messages):
        path = f"messages[{index}].content"
        if isinstance(message.content, str):
            if message.content:
                conversation.append(history.Message(message.role, (history.TextPart(message.content),)))
            continue
        conversation += _message_items(message.role, message.content, path, call_ids, context)
    return tuple(conversation)


def _message_items(
    role: history.Role, content: Sequence[blocks.ContentBlockParam], path: str, call_ids: set[str], context: MessagesContext
) -> Iterator[history.HistoryItem]:
    """The items of a message: its text and media stay together, where no call, result or reasoning stands between."""
    parts: list[history.HistoryPart] = []
    for position, block in enumerate(content):
        where = f"{path}[{position}]"
        if isinstance(block, Unknown):
            _omit(block, where, context)
            continue
        if not isinstance(block, _ROLES[role]):
            raise ClientError(f"Invalid '{where}': a message of the role '{role}' has no block of type '{block.type}'.", param=where)
        if isinstance(block, blocks.TextBlockParam | blocks.ImageBlockParam | blocks.DocumentBlockParam | blocks.SearchResultBlockParam):
            parts += _parts(block, where, context)
            continue
        if parts:
            yield history.Message(role, tuple(parts))
            parts = []
        yield from _own_items(block, where, call_ids, context)
    if parts:
        yield history.Message(role, tuple(parts))


_ItemBlock = blocks.ToolUseBlockParam | blocks.ToolResultBlockParam | blocks.ThinkingBlockParam | blocks.RedactedThinkingBlockParam


def _own_items(block: _ItemBlock, path: str, call_ids: set[str], context: MessagesContext) -> Sequence[history.HistoryItem]:
    """The item that a call, a result or reasoning becomes; none for reasoning that can't be used."""
    match block:
        case blocks.ToolUseBlockParam():
            call_ids.add(block.id)
            return [history.ToolCall(block.id, block.name, encode(block.input).decode())]
        case blocks.ToolResultBlockParam():
            if block.tool_use_id not in call_ids:
                raise _unknown_call(block.tool_use_id, path)
            return [history.ToolResult(block.tool_use_id, _result_parts(block, path, context))]
        case blocks.ThinkingBlockParam():
            return _thinking(block.thinking, value_or(block.signature, ""), context)
        case blocks.RedactedThinkingBlockParam():
            return _thinking("", block.data, context)


def _thinking(text: str, signature: str, context: MessagesContext) -> Sequence[history.HistoryItem]:
    item = read_thinking(text, signature, context.unsign, reads_encrypted=context.capabilities.encrypts_reasoning)
    return () if item is None else (item,)


def _omit(block: Unknown, path: str, context: MessagesContext) -> None:
    """Leave out a block that a tool on the original's servers made; any other unknown type is an error."""
    is_hosted = block.type in _HOSTED_TYPES or block.type.endswith("_tool_result")
    if not is_hosted or not context.omit_unsupported:
        raise invalid_value(f"{path}.type", block.type, _BLOCK_TYPES)
    context.omissions.items.append(block.type)


def _unknown_call(tool_use_id: str, path: str) -> ClientError:
    return ClientError(
        f"unexpected `tool_use_id` found in `tool_result` blocks: {shorten(tool_use_id)}. Each `tool_result` block must have a "
        "corresponding `tool_use` block in an earlier message.",
        param=path,
    )


def _result_parts(block: blocks.ToolResultBlockParam, path: str, context: MessagesContext) -> tuple[history.HistoryPart, ...]:
    parts: list[history.HistoryPart] = [history.TextPart(FAILED_TOOL_TEXT)] if block.is_error is True else []
    if isinstance(block.content, str):
        return (*parts, history.TextPart(block.content))
    for position, inner in enumerate(block.content or ()):
        where = f"{path}.content[{position}]"
        if isinstance(inner, Unknown):
            _omit(inner, where, context)
        else:
            parts += _parts(inner, where, context)
    return tuple(parts) or (history.TextPart(""),)


_PartBlock = blocks.TextBlockParam | blocks.ImageBlockParam | blocks.DocumentBlockParam | blocks.SearchResultBlockParam


def _parts(block: _PartBlock, path: str, context: MessagesContext) -> Sequence[history.HistoryPart]:
    match block:
        case blocks.TextBlockParam():
            return [history.TextPart(block.text)] if block.text else []
        case blocks.ImageBlockParam():
            return [_image(block, path, context)]
        case blocks.SearchResultBlockParam():
            text = "\n".join(inner.text for inner in block.content)
            return [_tagged_text("search_result", {"title": block.title, "source": block.source}, text)]
        case blocks.DocumentBlockParam():
            about = [history.TextPart(block.context)] if is_set(block.context) and block.context else []
            return [*about, *_document(block, path, context)]


def _image(block: blocks.ImageBlockParam, path: str, context: MessagesContext) -> history.ImagePart:
    if not context.capabilities.images:
        raise unsupported_parameter(path, context.model)
    match block.source:
        case blocks.UrlSource(url=url):
            check_media_url(url, f"{path}.source.url")
            return history.ImagePart(url)
        case blocks.FileSource(file_id=file_id):
            document = context.documents[file_id]
        case blocks.Base64Source() as source:
            document = _read(source, None, f"{path}.source.data")
    # By its first bytes: what clients declare as `media_type` is often wrong.
    if not document.is_image:
        raise ClientError(
            "Could not process image: it is none of the formats 'image/jpeg', 'image/png', 'image/gif' and 'image/webp'.",
            code="invalid_image_format",
            param=f"{path}.source",
        )
    return history.ImagePart(document.url)


def _document(block: blocks.DocumentBlockParam, path: str, context: MessagesContext) -> Sequence[history.HistoryPart]:
    title, source = value_or(block.title, None), block.source
    if isinstance(source, blocks.ContentSource):
        if isinstance(source.content, str):
            return [_tagged_text("document", {"title": title}, source.content)]
        paths = (f"{path}.source.content[{position}]" for position in range(len(source.content)))
        return [part for where, each in zip(paths, source.content, strict=True) for part in _parts(each, where, context)]
    match source:
        case blocks.PlainTextSource(data=text):
            return [_tagged_text("document", {"title": title}, text)]
        case blocks.UrlSource(url=url):
            document = context.documents.get(url)
            if document is None:  # The engine fetches it itself.
                check_media_url(url, f"{path}.source.url")
                return [history.FilePart(url, filename=title)]
            return [_file(document, path, context)]
        case blocks.FileSource(file_id=file_id):
            return [_file(context.documents[file_id], path, context)]
        case blocks.Base64Source():
            return [_file(_read(source, title, f"{path}.source.data"), path, context)]


def _file(document: FileContent, path: str, context: MessagesContext) -> history.HistoryPart:
    if document.is_image and context.capabilities.images:
        return history.ImagePart(document.url)
    if context.capabilities.files and not document.is_image:
        return document.file_part
    if (text := documents.text_part(document.file_part)) is not None:
        return text
    raise ClientError(
        f"Unsupported parameter: '{path}' is not supported with the '{context.model}' model, which takes no documents of type "
        f"'{document.media_type}'.",
        code="unsupported_parameter",
        param=path,
    )


def _read(source: blocks.Base64Source, name: str | None, path: str) -> FileContent:
    return documents.read_document(source.data, name, path)


def _tagged_text(tag: str, attributes: Mapping[str, str | None], text: str) -> history.TextPart:
    # A quotation mark in a title would end the attribute.
    attribute_text = "".join(f' {name}="{value.replace(chr(34), chr(39))}"' for name, value in attributes.items() if value)
    return history.TextPart(f"<{tag}{attribute_text}>\n{text}\n</{tag}>\n")
