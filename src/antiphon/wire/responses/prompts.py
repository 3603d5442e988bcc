"""The content of a stored prompt: parts of a request, with placeholders for variables."""

import re
from difflib import get_close_matches
from typing import Annotated

from msgspec import UNSET, Meta

from antiphon import errors
from antiphon.wire.codec.fields import is_set
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Opt, Wire, encode
from antiphon.wire.responses.items import Message, check_message
from antiphon.wire.responses.parts import LongText
from antiphon.wire.responses.request import ReasoningOptions, TextOptions
from antiphon.wire.responses.tools import Tool, ToolChoice

MAX_TEMPLATE_BYTES = 1 << 20
"""The largest content of a version, as JSON: it is read for each request that names it."""

VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"


class PromptTemplate(Wire, kw_only=True):
    """
    A version of a prompt, as far as it is not its texts with the fields of a request.

    Attributes:
        instructions: the text of a developer message, before `messages`.
        messages: what begins the conversation of every request with the prompt.
        variables: defaults, by name. A variable without one must be in the request.
    """

    instructions: Opt[LongText] = UNSET
    messages: Opt[list[Message]] = UNSET
    variables: Opt[dict[str, str]] = UNSET
    model: Opt[str] = UNSET
    tools: Opt[list[Tool]] = UNSET
    tool_choice: Opt[ToolChoice] = UNSET
    parallel_tool_calls: Opt[bool] = UNSET
    max_tool_calls: Opt[Annotated[int, Meta(ge=1)]] = UNSET
    max_output_tokens: Opt[Annotated[int, Meta(ge=16)]] = UNSET
    temperature: Opt[Annotated[float, Meta(ge=0, le=2)]] = UNSET
    top_p: Opt[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    reasoning: Opt[ReasoningOptions] = UNSET
    text: Opt[TextOptions] = UNSET


_reader: Reader[PromptTemplate] = Reader(PromptTemplate)


def decode_template(body: bytes) -> PromptTemplate:
    """
    Decode the content of a version.

    Raises:
        ClientError: it is invalid, or has a field that no prompt has; `param` says which.
    """
    check_structure(body)
    template = _reader.read(body)
    for name in template.extra or ():
        # A request keeps fields that it does not know; in a prompt one is a slip, which would go unseen at every use.
        similar = get_close_matches(name, PromptTemplate.__struct_fields__, n=1)
        hint = f" Did you mean '{similar[0]}'?" if similar else ""
        raise errors.ClientError(
            f"Unknown parameter: a prompt has no '{errors.shorten(name)}'.{hint}", code="unknown_parameter", param=errors.shorten(name)
        )
    if not template.instructions and not template.messages:
        raise errors.missing_parameter("instructions")
    for name in template.variables or ():
        if not re.fullmatch(VARIABLE_NAME, name):
            raise errors.pattern_mismatch(f"variables.{errors.shorten(name)}", f"^{VARIABLE_NAME}$")
    for index, message in enumerate(template.messages or ()):
        check_message(message, f"messages[{index}]")
    if template.reasoning and is_set(template.reasoning.summary) and is_set(template.reasoning.generate_summary):
        raise errors.mutually_exclusive("reasoning.generate_summary", ("reasoning.summary", "reasoning.generate_summary"))
    return template


def encode_template(template: PromptTemplate) -> bytes:
    """JSON of the content of a version."""
    return encode(template)
