"""What the endpoints around `POST /v1/responses` take and give: lists, counts, compaction, conversations."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import Maybe, Opt, Tagged, Unknown, Wire
from antiphon.wire.responses.hosted_calls import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
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
from antiphon.wire.responses.items import (
    AdditionalTools,
    AnyRole,
    Compaction,
    ConfigurationUpdate,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Reasoning,
)
from antiphon.wire.responses.parts import (
    ComputerScreenshot,
    InputFile,
    InputImage,
    InputText,
    OutputText,
    PlainText,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antiphon.wire.responses.request import (
    ConversationReference,
    ImageOptions,
    Includable,
    Items,
    Metadata,
    PromptCacheOptions,
    ReasoningOptions,
    TextOptions,
)
from antiphon.wire.responses.response import ResponseImage, ResponseUsage
from antiphon.wire.responses.tools import Tool, ToolChoice

# Queries, for `reading.read_query`


class RetrieveQuery(Wire, kw_only=True):
    """How a response is to be shown: whole, or its stream again, after the event `starting_after`."""

    include: Opt[list[Includable]] = UNSET
    include_obfuscation: Opt[bool] = UNSET
    starting_after: Opt[int] = UNSET
    stream: Opt[bool] = UNSET


class ListQuery(Wire, kw_only=True):
    """Which items of a list are to be shown: at most `limit`, after the item with the id `after`."""

    after: Opt[str] = UNSET
    include: Opt[list[Includable]] = UNSET
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class IncludeQuery(Wire, kw_only=True):
    """What is to be shown with an item."""

    include: Opt[list[Includable]] = UNSET


# Of responses


class ItemList(Wire, kw_only=True):
    """A page of a response's items; `last_id` is where the next begins."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Wire, kw_only=True):
    """A response is no longer there."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokensRequest(Wire, kw_only=True):
    """An input whose tokens are to be counted."""

    conversation: Maybe[str | ConversationReference] = UNSET
    input: Maybe[str | Items] = UNSET
    instructions: Maybe[str] = UNSET
    model: Maybe[str] = UNSET
    parallel_tool_calls: Maybe[bool] = UNSET
    personality: Opt[str] = UNSET
    previous_response_id: Maybe[str] = UNSET
    reasoning: Maybe[ReasoningOptions] = UNSET
    text: Maybe[TextOptions] = UNSET
    tool_choice: Maybe[ToolChoice] = UNSET
    tools: Maybe[list[Tool]] = UNSET
    truncation: Opt[Literal["auto", "disabled"]] = UNSET


class InputTokens(Wire, kw_only=True):
    """Tokens counted."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class CompactRequest(Wire, kw_only=True):
    """A context to be compacted."""

    model: str
    image: Opt[ImageOptions] = UNSET
    input: Maybe[str | Items] = UNSET
    instructions: Maybe[str] = UNSET
    previous_response_id: Maybe[str] = UNSET
    prompt_cache_key: Maybe[str] = UNSET
    prompt_cache_options: Maybe[PromptCacheOptions] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    service_tier: Maybe[Literal["auto", "default", "fast", "flex", "priority"]] = UNSET


class CompactedResponse(Wire, kw_only=True):
    """A compacted context: the user's messages, then one compaction item; `created_at` is in Unix seconds."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: ResponseUsage
    image: Maybe[ResponseImage] = UNSET


# Of conversations


class ConversationRequest(Wire, kw_only=True):
    """A conversation to be made."""

    items: Maybe[Annotated[list[Item], Meta(max_length=20)]] = UNSET
    metadata: Maybe[Metadata] = UNSET


class ConversationUpdate(Wire, kw_only=True):
    """What is to be changed about a conversation."""

    metadata: Metadata | None


class ItemsRequest(Wire, kw_only=True):
    """Items to be added to a conversation."""

    items: Annotated[list[Item], Meta(max_length=20)]


class Conversation(Wire, kw_only=True):
    """A conversation; `created_at` is in Unix seconds."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Any


class ConversationDeleted(Wire, kw_only=True):
    """A conversation is no longer there; its items still are."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationMessage(Tagged, kw_only=True, tag="message"):
    """Something said in a conversation, by anyone."""

    id: str
    status: Status
    content: list[InputText | OutputText | PlainText | SummaryText | ReasoningText | Refusal | InputImage | ComputerScreenshot | InputFile]
    role: AnyRole
    phase: Maybe[Literal["commentary", "final_answer"]] = UNSET


ConversationItem = (
    ConversationMessage
    | FunctionCall
    | FunctionCallOutput
    | FileSearchCall
    | WebSearchCall
    | ImageGenerationCall
    | ComputerCall
    | ComputerCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ConfigurationUpdate
    | Reasoning
    | Program
    | ProgramOutput
    | Compaction
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
    | CustomToolCall
    | CustomToolCallOutput
    | Unknown
)


class ConversationItemList(Wire, kw_only=True):
    """A page of a conversation's items; `last_id` is where the next begins."""

    object: Literal["list"] = "list"
    data: list[ConversationItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
