"""The body of a request for a message, and of one to count its tokens."""

from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta

from antiphon.errors import missing_parameter
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import JsonDict, Maybe, Opt, Tagged, Unknown, Wire
from antiphon.wire.messages.blocks import ContentBlockParam, TextBlockParam

MessageEffort = Literal["low", "medium", "high", "xhigh", "max"]


class MessageParam(Wire, kw_only=True):
    """One message of the conversation. `system` stands where it applies from, since May 2026."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlockParam]


class ToolParam(Wire, kw_only=True):
    """
    A tool. One that the client runs has an `input_schema`, unless its `type` is a version of one whose schema the
    original's models know; any other `type` is a tool that the original's servers run.
    """

    name: Opt[str] = UNSET
    type: Maybe[str] = UNSET
    description: Maybe[str] = UNSET
    input_schema: Maybe[JsonDict] = UNSET
    strict: Maybe[bool] = UNSET


class AutoToolChoice(Tagged, kw_only=True, tag="auto"):
    """The model decides whether it calls a tool."""

    disable_parallel_tool_use: Maybe[bool] = UNSET


class AnyToolChoice(Tagged, kw_only=True, tag="any"):
    """The model calls at least one tool."""

    disable_parallel_tool_use: Maybe[bool] = UNSET


class NamedToolChoice(Tagged, kw_only=True, tag="tool"):
    """The model calls this tool."""

    name: str
    disable_parallel_tool_use: Maybe[bool] = UNSET


class NoToolChoice(Tagged, kw_only=True, tag="none"):
    """The model calls no tool."""


MessageToolChoice: TypeAlias = AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice

ThinkingDisplay = Literal["summarized", "omitted"]


class ThinkingEnabled(Tagged, kw_only=True, tag="enabled"):
    """The model thinks first, for about so many tokens."""

    budget_tokens: Annotated[int, Meta(ge=1)]
    display: Maybe[ThinkingDisplay] = UNSET


class ThinkingAdaptive(Tagged, kw_only=True, tag="adaptive"):
    """The model decides how much it thinks."""

    display: Maybe[ThinkingDisplay] = UNSET


class ThinkingBetweenTools(Tagged, kw_only=True, tag="between_tools"):
    """The model thinks between tool calls."""

    display: Maybe[ThinkingDisplay] = UNSET


class ThinkingDisabled(Tagged, kw_only=True, tag="disabled"):
    """The model does not think."""


Thinking: TypeAlias = ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled


class JsonOutputFormat(Tagged, kw_only=True, tag="json_schema"):
    """The answer is JSON that satisfies `schema`."""

    schema: JsonDict


class OutputConfig(Wire, kw_only=True):
    """How much effort the answer is worth, and its form."""

    effort: Maybe[MessageEffort] = UNSET
    format: Maybe[JsonOutputFormat | Unknown] = UNSET


class CountTokensRequest(Wire, kw_only=True):
    """What counts as input of a message. Fields that are not listed are accepted and mean nothing here."""

    model: str
    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    system: Maybe[str | list[TextBlockParam]] = UNSET
    tools: Maybe[list[ToolParam]] = UNSET
    tool_choice: Maybe[MessageToolChoice] = UNSET
    thinking: Maybe[Thinking] = UNSET
    output_config: Maybe[OutputConfig] = UNSET


class MessageMetadata(Wire, kw_only=True):
    """Who makes the request; Claude Code puts the id of its session there."""

    user_id: Maybe[str] = UNSET


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A request for a message."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: Maybe[bool] = UNSET
    temperature: Maybe[Annotated[float, Meta(ge=0, le=2)]] = UNSET
    top_p: Maybe[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    top_k: Maybe[Annotated[int, Meta(ge=0)]] = UNSET
    stop_sequences: Maybe[list[str]] = UNSET
    metadata: Maybe[MessageMetadata] = UNSET


RequestT = TypeVar("RequestT", bound=CountTokensRequest)

_reader: Reader[MessagesRequest] = Reader(MessagesRequest)
_counting_reader: Reader[CountTokensRequest] = Reader(CountTokensRequest)


def decode_messages_request(body: bytes) -> MessagesRequest:
    """
    Decode a request for a message.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    return _require_model(_reader.read(body))


def decode_count_tokens_request(body: bytes) -> CountTokensRequest:
    """
    Decode a request to count the tokens of an input.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    return _require_model(_counting_reader.read(body))


def _require_model(request: RequestT) -> RequestT:
    if not request.model:
        raise missing_parameter("model")
    return request
