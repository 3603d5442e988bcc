"""
The items of a Realtime conversation, and the parts of messages.

Absent fields are never written as null: clients that check types silently drop such items, tools and history with them
(measured with OpenAI's Agents SDK for JavaScript). Audio is base64 on the wire.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.media_urls import check_media_url
from antiphon.wire.codec.types import Maybe, Opt, Tagged
from antiphon.wire.realtime.base import RealtimeTagged
from antiphon.wire.responses.hosted_calls import McpListedTool

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["system", "user", "assistant"]
ItemId = Annotated[str, Meta(max_length=512)]


class ItemPart(RealtimeTagged, kw_only=True):
    """A part of a message."""


class InputText(ItemPart, kw_only=True, tag="input_text"):
    """Text for the model."""

    text: str


class InputAudio(ItemPart, kw_only=True, tag="input_audio"):
    """
    Audio for the model; `transcript` is null until it is known. The server sends `audio` in
    `conversation.item.retrieved` only.
    """

    audio: Opt[bytes] = UNSET
    transcript: Maybe[str] = UNSET


class InputImage(ItemPart, kw_only=True, tag="input_image"):
    """An image, as a data URL."""

    image_url: Opt[str] = UNSET
    detail: Opt[Literal["auto", "low", "high"]] = UNSET


class OutputText(ItemPart, kw_only=True, tag="output_text"):
    """Text of the model. Its type in the beta is accepted too."""

    aliases = ("text",)

    text: str


class OutputAudio(ItemPart, kw_only=True, tag="output_audio"):
    """Audio of the model, present in retrieved items only, and its transcript. Its type in the beta is accepted too."""

    aliases = ("audio",)

    transcript: Maybe[str] = UNSET
    audio: Opt[bytes] = UNSET


Part = InputText | InputAudio | InputImage | OutputText | OutputAudio


class ConversationItem(RealtimeTagged, kw_only=True):
    """What every item may have."""

    id: Opt[ItemId] = UNSET


class ItemWithStatus(ConversationItem, kw_only=True):
    """An item with a status."""

    object: Opt[Literal["realtime.item"]] = UNSET
    status: Opt[Status] = UNSET


class MessageItem(ItemWithStatus, kw_only=True, tag="message"):
    """A message."""

    role: Role
    content: list[Part]


class FunctionCallItem(ItemWithStatus, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text."""

    name: str
    call_id: Opt[str] = UNSET
    arguments: str


class FunctionCallOutputItem(ItemWithStatus, kw_only=True, tag="function_call_output"):
    """The output of a function."""

    call_id: str
    output: str


class McpListToolsItem(ConversationItem, kw_only=True, tag="mcp_list_tools"):
    """The tools of a Model Context Protocol server."""

    server_label: str
    tools: list[McpListedTool]


class McpProtocolError(Tagged, kw_only=True, tag="protocol_error"):
    """A protocol error of either side."""

    code: int
    message: str


class McpToolExecutionError(Tagged, kw_only=True, tag="tool_execution_error"):
    """The tool failed."""

    message: str


class McpHttpError(Tagged, kw_only=True, tag="http_error"):
    """The server answered with an HTTP error."""

    code: int
    message: str


class McpCallItem(ConversationItem, kw_only=True, tag="mcp_call"):
    """A call of an MCP server's tool, with its result."""

    server_label: str
    name: str
    arguments: str
    approval_request_id: Maybe[str] = UNSET
    output: Maybe[str] = UNSET
    error: Maybe[McpProtocolError | McpToolExecutionError | McpHttpError] = UNSET


class McpApprovalRequestItem(ConversationItem, kw_only=True, tag="mcp_approval_request"):
    """A call that waits for the user's approval."""

    server_label: str
    name: str
    arguments: str


class McpApprovalResponseItem(ConversationItem, kw_only=True, tag="mcp_approval_response"):
    """The user's answer to an approval request."""

    approval_request_id: str
    approve: bool
    reason: Maybe[str] = UNSET


class ItemReference(Tagged, kw_only=True, tag="item_reference"):
    """An item of the conversation, by its id."""

    id: ItemId


class InputMessage(ItemWithStatus, kw_only=True, tag="message"):
    """A message of `response.input`, which may refer to items of the conversation among its parts."""

    role: Role
    content: list[Part | ItemReference]


Item = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
)
InputItem = (
    InputMessage
    | FunctionCallItem
    | FunctionCallOutputItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
    | ItemReference
)


def input_item(item: Item) -> InputItem:
    """An item of the conversation as `response.input` has it."""
    if not isinstance(item, MessageItem):
        return item
    content: list[Part | ItemReference] = [*item.content]
    return InputMessage(id=item.id, object=item.object, status=item.status, role=item.role, content=content, extra=item.extra)


# Parts in the events of a response, where their types have other names


class TextContent(RealtimeTagged, kw_only=True, tag="text"):
    """Text of the model."""

    text: str = ""


class AudioContent(RealtimeTagged, kw_only=True, tag="audio"):
    """Audio of the model, and its transcript."""

    transcript: Opt[str] = UNSET
    audio: Opt[bytes] = UNSET


StreamedPart = TextContent | AudioContent


# The parts of each role

_PARTS_BY_ROLE: dict[Role, tuple[type[Part], ...]] = {
    "system": (InputText,),
    "user": (InputText, InputAudio, InputImage),
    "assistant": (OutputText, OutputAudio),
}


def _part_kinds(role: Role, *, takes_references: bool) -> tuple[type[Part | ItemReference], ...]:
    # Realtime reference: `item_reference` is a content type of `response.create` alone.
    return (*_PARTS_BY_ROLE[role], ItemReference) if takes_references else _PARTS_BY_ROLE[role]


def check_part_types(item: object, path: str, *, takes_references: bool = False) -> None:
    """
    Check the types of a message's parts as its client wrote them: of a decoded item, a part may have another name.

    Args:
        item: plain values.
        path: of the item in the event.
        takes_references: whether a part may refer to an item of the conversation.

    Raises:
        ClientError: one is not of its role.
    """
    if not isinstance(item, dict) or item.get("type") != "message" or not isinstance(item.get("content"), list):
        return
    kinds = next((_part_kinds(role, takes_references=takes_references) for role in _PARTS_BY_ROLE if role == item.get("role")), ())
    for index, part in enumerate(item["content"]) if kinds else ():
        name = part.get("type") if isinstance(part, dict) else None
        if isinstance(name, str) and not any(name in (_tag(kind), *kind.aliases) for kind in kinds):
            raise errors.invalid_value(f"{path}.content[{index}].type", name, map(_tag, kinds))


def _tag(kind: type[Tagged]) -> str:
    return str(kind.__struct_config__.tag)


def check_item(item: Item | InputItem, path: str) -> None:
    """
    Check that a client's item has only parts of its role, and no empty parts.

    Args:
        path: of the item in the event, for error messages.

    Raises:
        ClientError: it is invalid.
    """
    if not isinstance(item, MessageItem | InputMessage):
        return
    kinds = _part_kinds(item.role, takes_references=isinstance(item, InputMessage))
    for index, part in enumerate(item.content):
        part_path = f"{path}.content[{index}]"
        if not isinstance(part, kinds):
            raise errors.invalid_value(f"{part_path}.type", part.type, map(_tag, kinds))
        if isinstance(part, InputImage) and part.image_url is UNSET:
            raise errors.missing_parameter(f"{part_path}.image_url")
        # No engine takes another kind: an item with one would fail every response after it.
        if isinstance(part, InputImage):
            check_media_url(str(part.image_url), f"{part_path}.image_url")
        if isinstance(part, InputAudio) and part.audio is UNSET and not part.transcript:
            raise errors.missing_parameter(f"{part_path}.audio")
