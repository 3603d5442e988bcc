"""The items of a conversation, from the client and from the model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, field

from antiphon import errors
from antiphon.wire.codec.media_urls import check_media_url
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import Maybe, Opt, Tagged, Typed, Unknown, Wire, encode
from antiphon.wire.responses.hosted_calls import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    Caller,
    CallId,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Program,
    ProgramOutput,
    ShellCall,
    ShellCallOutput,
    Status,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
)
from antiphon.wire.responses.parts import (
    ComputerScreenshot,
    InputFile,
    InputImage,
    InputPart,
    InputText,
    LongText,
    MessagePart,
    OutputPart,
    OutputText,
    ReasoningText,
    SummaryText,
    ToolOutputPart,
)
from antiphon.wire.responses.tools import Effort, TextFormat, Tool

MAX_ENCRYPTED_CHARACTERS = 20_971_520
"""The longest `encrypted_content` that the API takes."""

Role = Literal["user", "assistant", "system", "developer"]
# `MessageRole` of OpenAI's OpenAPI document: more roles than a message that a client sends may have.
AnyRole = Literal["unknown", "user", "assistant", "system", "critic", "discriminator", "developer", "tool"]
ToolOutput = LongText | list[ToolOutputPart]


class Message(Tagged, kw_only=True, tag="message"):
    """A message. Only the model's messages have an `id`, a `status` and a `phase`."""

    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET
    content: list[MessagePart] | LongText
    role: Role
    phase: Maybe[Literal["commentary", "final_answer"]] = UNSET

    @property
    def text(self) -> str:
        """All its text; images, files, audio and refusals are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, InputText | OutputText))

    @classmethod
    def takes_untyped(cls, fields: Mapping[str, object]) -> bool:
        """Whether an object with these fields but no `type` is a message: anything but a mere reference."""
        # In OpenAI's document `type` is optional here (`EasyInputMessage`), so many clients leave it out.
        return not ItemReference.takes_untyped(fields)


class Reasoning(Tagged, kw_only=True, tag="reasoning"):
    """The model's reasoning: summaries, the text itself, and an encrypted form for the service that made it."""

    null_is_absent = True

    id: Opt[str] = UNSET
    summary: list[Typed[SummaryText]]
    content: Maybe[list[Typed[ReasoningText]]] = UNSET
    encrypted_content: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET


class FunctionCall(Tagged, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text."""

    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET
    arguments: str
    call_id: CallId
    name: str
    async_: Maybe[bool] = field(default=UNSET, name="async")
    caller: Caller = UNSET
    namespace: Maybe[str] = UNSET
    created_by: Maybe[str] = UNSET


class FunctionCallOutput(Tagged, kw_only=True, tag="function_call_output"):
    """The output of a function."""

    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET
    call_id: Maybe[CallId] = UNSET
    output: ToolOutput
    caller: Caller = UNSET
    name: Maybe[str] = UNSET
    namespace: Maybe[Annotated[str, Meta(min_length=1, max_length=64)]] = UNSET
    created_by: Maybe[str] = UNSET


class CustomToolCall(Tagged, kw_only=True, tag="custom_tool_call"):
    """A call of a tool that takes text."""

    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET
    call_id: CallId
    input: str
    name: str
    async_: Maybe[bool] = field(default=UNSET, name="async")
    caller: Caller = UNSET
    namespace: Maybe[str] = UNSET
    created_by: Maybe[str] = UNSET


class CustomToolCallOutput(Tagged, kw_only=True, tag="custom_tool_call_output"):
    """The output of a tool that takes text."""

    id: Maybe[str] = UNSET
    status: Maybe[Status] = UNSET
    call_id: CallId
    output: ToolOutput
    caller: Caller = UNSET
    created_by: Maybe[str] = UNSET


class ItemReference(Tagged, kw_only=True, tag="item_reference"):
    """A reference to a stored item, by its id."""

    id: str

    @classmethod
    def takes_untyped(cls, fields: Mapping[str, object]) -> bool:
        """Whether an object with these fields but no `type` is a reference: it has an id and no content."""
        # In OpenAI's document the reference's `type` is optional, too: an `id` alone is one.
        return "id" in fields and not fields.keys() & {"role", "content"}


class AdditionalTools(Tagged, kw_only=True, tag="additional_tools"):
    """Tools that the model may use from here on."""

    role: AnyRole
    tools: list[Tool]
    id: Maybe[str] = UNSET


class JsonObjectFormat(Tagged, kw_only=True, tag="json_object"):
    """The output is a JSON object."""


class JsonSchemaFormat(Tagged, kw_only=True, tag="json_schema"):
    """The output is JSON that matches a schema; `strict` asks for a guarantee."""

    # Responses reference, `text.format`: letters, digits, `_` and `-`, up to 64 of them.
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]
    schema: dict[str, object]
    description: Maybe[str] = UNSET
    strict: Maybe[bool] = UNSET


AnswerFormat = TextFormat | JsonSchemaFormat | JsonObjectFormat


class EffortUpdate(Wire, kw_only=True):
    """How much to reason from here on."""

    effort: Maybe[Effort] = UNSET


class FormatUpdate(Wire, kw_only=True):
    """The output format from here on."""

    format: AnswerFormat


class ConfigurationUpdate(Tagged, kw_only=True, tag="configuration_update"):
    """Settings that apply from here on."""

    id: Maybe[str] = UNSET
    reasoning: Maybe[EffortUpdate] = UNSET
    text: Maybe[FormatUpdate] = UNSET


class Compaction(Tagged, kw_only=True, tag="compaction"):
    """The conversation before it, compacted and encrypted by the service that made it."""

    id: Maybe[str] = UNSET
    encrypted_content: Annotated[str, Meta(max_length=MAX_ENCRYPTED_CHARACTERS)]
    created_by: Maybe[str] = UNSET


class CompactionTrigger(Tagged, kw_only=True, tag="compaction_trigger"):
    """Asks to compact the conversation before it."""

    id: Maybe[str] = UNSET


Item = (
    Message
    | FileSearchCall
    | ComputerCall
    | ComputerCallOutput
    | WebSearchCall
    | FunctionCall
    | FunctionCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ConfigurationUpdate
    | Reasoning
    | Compaction
    | ImageGenerationCall
    | CodeInterpreterCall
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
    | McpCall
    | CustomToolCallOutput
    | CustomToolCall
    | CompactionTrigger
    | ItemReference
    | Program
    | ProgramOutput
    | Unknown
)

ITEM_TYPES = tuple(str(kind.__struct_config__.tag) for kind in get_args(Item) if kind is not Unknown)
"""The types that are known."""

_reader: Reader[Item] = Reader(Item)

_ALLOWED_PARTS: dict[bool, tuple[type[Tagged], ...]] = {True: get_args(OutputPart), False: get_args(InputPart)}


def newest_compaction(conversation: Sequence[Item]) -> int:
    """Where the newest compaction stands, before which nothing is read any more; 0 if there is none."""
    # OpenAI's guide to compaction lets clients drop the items before the newest one, so nothing may depend on them.
    return max((index for index, item in enumerate(conversation) if isinstance(item, Compaction)), default=0)


def id_of(item: Item) -> str | None:
    """An item's id; None where it has none, or, as only an unknown item can, one that is no string."""
    item_id = item.extra.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
    return item_id if isinstance(item_id, str) and item_id else None


def check_message(message: Message, path: str) -> None:
    """
    Check that a message has only parts of its role: output parts for the assistant, input parts for the others.

    Raises:
        ClientError: it has others.
    """
    if isinstance(message.content, str):
        return
    allowed_kinds = _ALLOWED_PARTS[message.role == "assistant"]
    for index, part in enumerate(message.content):
        if type(part) not in allowed_kinds:
            raise errors.invalid_value(f"{path}.content[{index}]", part.type, [str(kind.__struct_config__.tag) for kind in allowed_kinds])


def check_item(item: Item, path: str) -> None:
    """
    Check what the types of a client's item don't say: the parts of a message's role, and the URLs of images and documents.

    Raises:
        ClientError: it is invalid.
    """
    match item:
        case Message(content=content):
            check_message(item, path)
            _check_urls(content, f"{path}.content")
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            _check_urls(output, f"{path}.output")
        case ComputerCallOutput(output=ComputerScreenshot(image_url=str(url), file_id=file_id)) if not file_id:
            check_media_url(url, f"{path}.output.image_url")
        case _:
            pass


def _check_urls(content: Sequence[MessagePart | ToolOutputPart] | str, path: str) -> None:
    if isinstance(content, str):
        return
    for index, part in enumerate(content):
        match part:
            case InputImage(image_url=str(url), file_id=file_id) if not file_id:
                check_media_url(url, f"{path}[{index}].image_url")
            case InputFile(file_url=str(url)) if url:
                check_media_url(url, f"{path}[{index}].file_url")
            case _:
                pass


def decode_item(body: bytes, path: str = "item") -> Item:
    """
    Decode a client's item.

    Args:
        body: JSON.
        path: of the item in the request, for error messages.

    Raises:
        ClientError: it is invalid.
    """
    check_depth(body)
    item = _reader.read(body, path)
    if isinstance(item, Message):
        check_message(item, path)
    return item


def encode_item(item: Item) -> bytes:
    """JSON of an item."""
    return encode(item)
