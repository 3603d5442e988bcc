"""
What a Realtime conversation is made of: items, and the parts of messages.

Absent fields are never written as null: clients that check types drop such an item without a word. Sound is base64 on the wire.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.types import Maybe, Opt, Tagged
from antiphon.wire.responses.hosted_calls import McpListedTool

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["system", "user", "assistant"]
ItemId = Annotated[str, Meta(max_length=512)]


class ItemPart(Tagged, kw_only=True):
    """A part of a message."""

    null_is_absent = True


class InputText(ItemPart, kw_only=True, tag="input_text"):
    """Words for the model."""

    text: str


class InputAudio(ItemPart, kw_only=True, tag="input_audio"):
    """Sound for the model. `transcript` is null until it is known; `audio` comes from the client, and back when it retrieves the item."""

    audio: Opt[bytes] = UNSET
    transcript: Maybe[str] = UNSET


class InputImage(ItemPart, kw_only=True, tag="input_image"):
    """A picture, as a data URL."""

    image_url: Opt[str] = UNSET
    detail: Opt[Literal["auto", "low", "high"]] = UNSET


class OutputText(ItemPart, kw_only=True, tag="output_text"):
    """Words of the model; the beta's type of it is read as well."""

    aliases = ("text",)

    text: str


class OutputAudio(ItemPart, kw_only=True, tag="output_audio"):
    """Sound of the model, there only when the item was retrieved, and its words; the beta's type of it is read as well."""

    aliases = ("audio",)

    transcript: Maybe[str] = UNSET
    audio: Opt[bytes] = UNSET


Part = InputText | InputAudio | InputImage | OutputText | OutputAudio


class ConversationItem(Tagged, kw_only=True):
    """What every item may have."""

    null_is_absent = True

    id: Opt[ItemId] = UNSET


class ItemWithStatus(ConversationItem, kw_only=True):
    """An item that says how far it is."""

    object: Opt[Literal["realtime.item"]] = UNSET
    status: Opt[Status] = UNSET


class MessageItem(ItemWithStatus, kw_only=True, tag="message"):
    """Something said."""

    role: Role
    content: list[Part]


class FunctionCallItem(ItemWithStatus, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text."""

    name: str
    call_id: Opt[str] = UNSET
    arguments: str


class FunctionCallOutputItem(ItemWithStatus, kw_only=True, tag="function_call_output"):
    """What a function gave."""

    call_id: str
    output: str


class McpListToolsItem(ConversationItem, kw_only=True, tag="mcp_list_tools"):
    """The tools of a Model Context Protocol server."""

    server_label: str
    tools: list[McpListedTool]


class McpProtocolError(Tagged, kw_only=True, tag="protocol_error"):
    """The server broke the protocol, or says that we did."""

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
    """A call of a server's tool, with what it gave."""

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
    """The user's answer."""

    approval_request_id: str
    approve: bool
    reason: Maybe[str] = UNSET


class ItemReference(Tagged, kw_only=True, tag="item_reference"):
    """An item of the conversation, by its id."""

    id: ItemId


Item = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
)
InputItem = Item | ItemReference


# Parts as the events of a response show them; they have names of their own


class TextContent(Tagged, kw_only=True, tag="text"):
    """Words of the model."""

    null_is_absent = True

    text: str = ""


class AudioContent(Tagged, kw_only=True, tag="audio"):
    """Sound of the model, and its words."""

    null_is_absent = True

    transcript: Opt[str] = UNSET
    audio: Opt[bytes] = UNSET


StreamedPart = TextContent | AudioContent


# Whose parts are whose

_PARTS_BY_ROLE: dict[Role, tuple[type[Part], ...]] = {
    "system": (InputText,),
    "user": (InputText, InputAudio, InputImage),
    "assistant": (OutputText, OutputAudio),
}


def check_item(item: InputItem, path: str) -> None:
    """
    Refuse what no item that a client sends can be: another role's parts, or parts with nothing in them.

    Args:
        item: as it was read.
        path: where it stands, for error messages.

    Raises:
        ClientError: it is such an item.
    """
    if not isinstance(item, MessageItem):
        return
    for index, part in enumerate(item.content):
        place = f"{path}.content[{index}]"
        if not isinstance(part, _PARTS_BY_ROLE[item.role]):
            raise errors.invalid_value(place, part.type, [str(kind.__struct_config__.tag) for kind in _PARTS_BY_ROLE[item.role]])
        if isinstance(part, InputImage) and part.image_url is UNSET:
            raise errors.missing_parameter(f"{place}.image_url")
        if isinstance(part, InputAudio) and part.audio is UNSET and not part.transcript:
            raise errors.missing_parameter(f"{place}.audio")
