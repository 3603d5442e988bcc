"""
Stored prompts: a request with its prompt filled in.

Law: a value is never searched for placeholders, so no client can reach another variable, or grow a text without end.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import UNSET, Struct, structs

from antiphon.errors import ClientError, missing_prompt_variables, prompt_too_large, unknown_prompt_variables
from antiphon.wire.codec.fields import is_set, value_or
from antiphon.wire.codec.types import Maybe, Opt, Wire, encode
from antiphon.wire.responses.items import Item, Message
from antiphon.wire.responses.parts import InputFile, InputImage, InputText, MessagePart, OutputText
from antiphon.wire.responses.prompts import VARIABLE_NAME, PromptTemplate
from antiphon.wire.responses.request import CreateRequest, ReasoningOptions

MAX_FILLED_BYTES = 32 << 20
"""The most that the texts of a prompt come to with the values of its variables: as much as a request may have."""

OptionsT = TypeVar("OptionsT", bound=Wire)

MAX_PART_CHARACTERS = 10_485_760
"""The most characters of one text, as in a request (Responses reference, under `input`)."""

PromptValue = str | InputText | InputImage | InputFile

_PLACEHOLDER = re.compile(r"\{\{[ \t]*(" + VARIABLE_NAME + r")[ \t]*\}\}")

_OVERRIDABLE_FIELDS = (
    "model",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
)


class FilledRequest(Struct, frozen=True):
    """
    A request with all that its prompt brings.

    Attributes:
        added_bytes: about as much as it has grown.
    """

    request: CreateRequest
    added_bytes: int


def variable_names(template: PromptTemplate) -> Sequence[str]:
    """The variables of a prompt, in the order in which they are first used; then those that only have a default."""
    texts = (template.instructions or "", *_texts(template.messages or ()))
    return [*dict.fromkeys([*_placeholders(texts), *(template.variables or ())])]


def fill_messages(
    template: PromptTemplate, variables: Mapping[str, PromptValue], *, has_own_instructions: bool = False
) -> tuple[list[Message], int]:
    """
    The prompt's messages with the values of their variables, and about how many bytes they have.

    Args:
        variables: by name, from the request.
        has_own_instructions: whether the request has instructions, so that those of the prompt don't count.

    Raises:
        ClientError: a variable has no value or does not exist, or stands where its value can't, or all is too large.
    """
    known_names = {*variable_names(template)}
    if unknown := [name for name in variables if name not in known_names]:
        raise unknown_prompt_variables(unknown)
    values = {**(template.variables or {}), **{name: _plain(value) for name, value in variables.items()}}
    messages = [*(template.messages or ())]
    if template.instructions and not has_own_instructions:
        messages.insert(0, Message(role="developer", content=template.instructions))
    counts: dict[str, int] = {}
    for name in _placeholders(_texts(messages)):
        counts[name] = counts.get(name, 0) + 1
    missing = [name for name in counts if name not in values]
    if missing:
        raise missing_prompt_variables(missing)
    size_bytes = len(encode(messages)) + sum(count * _size_bytes(values[name]) for name, count in counts.items())
    if size_bytes > MAX_FILLED_BYTES:  # before anything is built
        raise prompt_too_large(f"{MAX_FILLED_BYTES >> 20} MiB")
    return [_fill_message(message, values) for message in messages], size_bytes


def fill_request(request: CreateRequest, template: PromptTemplate, version: str) -> FilledRequest:
    """
    The request with what it does not say itself from its prompt.

    The prompt's messages become the `instructions`, which the original shows in the response, too: they come before
    everything else, and no later response inherits them.

    Args:
        version: which one the template is; the response names it.

    Raises:
        ClientError: as `fill_messages`.
    """
    prompt = request.prompt
    assert is_set(prompt)
    variables = value_or(prompt.variables, {})
    messages, size_bytes = fill_messages(template, variables, has_own_instructions=is_set(request.instructions))
    template_fields: dict[str, object] = {
        name: value for name in _OVERRIDABLE_FIELDS if is_set(value := getattr(template, name)) and not is_set(getattr(request, name))
    }
    full_request = structs.replace(
        request,
        **template_fields,
        instructions=[*_own_instructions(request), *messages],
        reasoning=_merge_reasoning(request.reasoning, template.reasoning),
        text=_merge(request.text, template.text),
        prompt=structs.replace(prompt, version=version, variables=variables),
    )
    return FilledRequest(full_request, size_bytes)


def _own_instructions(request: CreateRequest) -> Sequence[Item]:
    if isinstance(request.instructions, str):
        return [_developer_message(request.instructions)] if request.instructions else []
    return request.instructions or []


def _developer_message(text: str) -> Message:
    return Message(role="developer", content=[InputText(text=text)])


def _merge_reasoning(own: Maybe[ReasoningOptions], template_options: Opt[ReasoningOptions]) -> Maybe[ReasoningOptions]:
    options = _merge(own, template_options)
    if is_set(own) and is_set(options) and is_set(options.summary) and is_set(options.generate_summary):
        # two names of one option: that of the request counts
        return structs.replace(options, **{"generate_summary" if is_set(own.summary) else "summary": UNSET})
    return options


def _merge(own: Maybe[OptionsT], template_options: Opt[OptionsT]) -> Maybe[OptionsT]:
    """The prompt's options with all that is set in the request's own."""
    if not is_set(own) or not is_set(template_options):
        return own if is_set(own) else template_options
    return structs.replace(template_options, **{name: value for name in own.__struct_fields__ if is_set(value := getattr(own, name))})


# Variables


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if isinstance(message.content, str):
            yield message.content
        else:
            yield from (part.text for part in message.content if isinstance(part, InputText | OutputText))


def _placeholders(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _PLACEHOLDER.findall(text)


def _plain(value: PromptValue) -> str | InputImage | InputFile:
    return value.text if isinstance(value, InputText) else value


def _size_bytes(value: str | InputImage | InputFile) -> int:
    return len(value.encode()) if isinstance(value, str) else len(encode(value))


def _fill_message(message: Message, values: Mapping[str, str | InputImage | InputFile]) -> Message:
    content = message.content
    if not isinstance(content, str):
        return structs.replace(message, content=[part for template_part in content for part in _fill_part(template_part, values)])
    if message.role != "assistant":
        return structs.replace(message, content=[*_fill_part(InputText(text=content), values)])
    filled_parts = _fill_part(OutputText(text=content), values)
    # Text, as it came: OpenAI's types take parts from the model only with an id and a status.
    return structs.replace(message, content="".join(part.text for part in filled_parts if isinstance(part, OutputText)))


def _fill_part(part: MessagePart, values: Mapping[str, str | InputImage | InputFile]) -> Iterator[MessagePart]:
    """The part, cut at each placeholder whose value is a part itself."""
    if not isinstance(part, InputText | OutputText):
        yield part
        return
    texts: list[str] = []
    is_cut = False
    for index, piece in enumerate(_PLACEHOLDER.split(part.text)):  # text and names by turns
        value = values[piece] if index % 2 else piece
        if isinstance(value, str):
            texts.append(value)
            continue
        if isinstance(part, OutputText):
            raise ClientError(
                f"Invalid type for 'prompt.variables.{piece}': it stands in a message of the assistant, which takes text only, but got "
                f"an {value.type} instead.",
                code="invalid_type",
                param=f"prompt.variables.{piece}",
            )
        if any(texts):
            yield _with_text(part, texts)
        texts.clear()
        is_cut = True
        yield value
    # Of a text that was all placeholder only the value is left; one that was never cut stays, even if it is empty.
    if any(texts) or not is_cut:
        yield _with_text(part, texts)


def _with_text(part: InputText | OutputText, texts: Sequence[str]) -> MessagePart:
    if sum(map(len, texts)) > MAX_PART_CHARACTERS:
        raise prompt_too_large(f"{MAX_PART_CHARACTERS:,} characters in one text")
    return structs.replace(part, text="".join(texts))
