"""What the endpoints beside `POST /v1/responses` take and return: queries, lists, token counts."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import Maybe, Opt, Wire
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.parts import LongText
from antiphon.wire.responses.request import (
    ConversationReference,
    ImageOptions,
    Includable,
    Items,
    Prompt,
    PromptCacheOptions,
    ReasoningOptions,
    ServiceTier,
    ShortKey,
    TextOptions,
)
from antiphon.wire.responses.response import ResponseUsage
from antiphon.wire.responses.tools import Tool, ToolChoice


class RetrieveQuery(Wire, kw_only=True):
    """How to return a response: whole, or as its stream again, after the event `starting_after`."""

    include: Opt[list[Includable]] = UNSET
    include_obfuscation: Opt[bool] = UNSET
    starting_after: Opt[Annotated[int, Meta(ge=0)]] = UNSET
    stream: Opt[bool] = UNSET


class IncludeQuery(Wire, kw_only=True):
    """What to include with an item."""

    include: Opt[list[Includable]] = UNSET


class ItemList(Wire, kw_only=True):
    """A page of a response's items; the next one follows `last_id`. Both ids are empty where there is no item."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str
    last_id: str
    has_more: bool


class ResponseDeleted(Wire, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokensRequest(Wire, kw_only=True):
    """An input whose tokens are to be counted. OpenAI's types have no `prompt` here."""

    conversation: Maybe[str | ConversationReference] = UNSET
    input: Maybe[str | Items] = UNSET
    instructions: Maybe[str] = UNSET
    model: Maybe[str] = UNSET
    parallel_tool_calls: Maybe[bool] = UNSET
    personality: Opt[str] = UNSET
    previous_response_id: Maybe[str] = UNSET
    prompt: Maybe[Prompt] = UNSET
    reasoning: Maybe[ReasoningOptions] = UNSET
    text: Maybe[TextOptions] = UNSET
    tool_choice: Maybe[ToolChoice] = UNSET
    tools: Maybe[list[Tool]] = UNSET
    truncation: Opt[Literal["auto", "disabled"]] = UNSET


class CompactRequest(Wire, kw_only=True):
    """
    A conversation that is to be made shorter, and the model that summarises it. OpenAI's types have no `prompt` here.
    """

    null_is_absent = True

    model: str
    input: Maybe[LongText | Items] = UNSET
    previous_response_id: Maybe[str] = UNSET
    instructions: Maybe[str] = UNSET
    prompt: Maybe[Prompt] = UNSET
    prompt_cache_key: Maybe[ShortKey] = UNSET
    prompt_cache_options: Opt[PromptCacheOptions] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    service_tier: Maybe[ServiceTier] = UNSET
    image: Opt[ImageOptions] = UNSET


class CompactedResponse(Wire, kw_only=True):
    """The shorter conversation: its user messages, and an item that stands for the rest."""

    id: str
    created_at: int
    object: Literal["response.compaction"] = "response.compaction"
    output: list[Item]
    usage: ResponseUsage


class InputTokens(Wire, kw_only=True):
    """Tokens counted."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
