"""The tools of a request, the choice among them, and the format of the answer."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta

from antiphon.wire.codec.types import JsonDict, Maybe, Tagged, Wire
from antiphon.wire.responses.items import JsonObjectFormat
from antiphon.wire.responses.tools import TextFormat

# Longer than the original's 64 characters, and with the dots and slashes of local servers' tools.
FunctionName = Annotated[str, Meta(min_length=1, max_length=128)]


class FunctionDefinition(Wire, kw_only=True):
    """A function; `parameters` is the JSON Schema of its arguments."""

    null_is_absent = True

    name: FunctionName
    description: Maybe[str] = UNSET
    parameters: Maybe[JsonDict] = UNSET
    strict: Maybe[bool] = UNSET


class ChatFunctionTool(Tagged, kw_only=True, tag="function"):
    """A function that the model may call."""

    function: FunctionDefinition


class GrammarDefinition(Wire, kw_only=True):
    """A grammar."""

    definition: str
    syntax: Literal["lark", "regex"]


class ChatGrammarFormat(Tagged, kw_only=True, tag="grammar"):
    """Input that matches a grammar."""

    grammar: GrammarDefinition


class CustomDefinition(Wire, kw_only=True):
    """A tool that is called with text."""

    null_is_absent = True

    name: FunctionName
    description: Maybe[str] = UNSET
    format: Maybe[TextFormat | ChatGrammarFormat] = UNSET


class ChatCustomTool(Tagged, kw_only=True, tag="custom"):
    """A tool that is called with text instead of arguments."""

    custom: CustomDefinition


ChatTool = ChatFunctionTool | ChatCustomTool

# Choosing


class ToolReference(Wire, kw_only=True):
    """A tool by its name."""

    name: str


class ChatFunctionChoice(Tagged, kw_only=True, tag="function"):
    """The function that is to be called."""

    function: ToolReference


class ChatCustomChoice(Tagged, kw_only=True, tag="custom"):
    """The custom tool that is to be called."""

    custom: ToolReference


class AllowedTools(Wire, kw_only=True):
    """The only tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: list[ChatFunctionChoice | ChatCustomChoice]


class ChatAllowedTools(Tagged, kw_only=True, tag="allowed_tools"):
    """Only some of the tools may be called."""

    allowed_tools: AllowedTools


ChatToolChoice = Literal["none", "auto", "required"] | ChatFunctionChoice | ChatCustomChoice | ChatAllowedTools

# The format of the answer


class SchemaDefinition(Wire, kw_only=True):
    """A JSON Schema; `strict` asks for a guarantee."""

    null_is_absent = True

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+\Z")]
    schema: Maybe[JsonDict] = UNSET
    description: Maybe[str] = UNSET
    strict: Maybe[bool] = UNSET


class ChatSchemaFormat(Tagged, kw_only=True, tag="json_schema"):
    """The answer is JSON that matches a schema."""

    json_schema: SchemaDefinition


ChatFormat = TextFormat | JsonObjectFormat | ChatSchemaFormat
