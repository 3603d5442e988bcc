"""
The prompt: instructions, tools and conversation, in ChatML or the model's own template.

Law: no text of people or tools ever becomes a control token. A prompt is a list of segments, and only those written
here are tokenised with control tokens recognised. Tools use the format that Qwen2.5 was trained on (Hermes):
https://qwen.readthedocs.io/en/v2.5/framework/function_call.html
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local.tool_grammar import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, GrammarTool
from antiphon.errors import ClientError


class PromptSegment(NamedTuple):
    """Part of a prompt; with `parse_special`, control tokens in it are recognised."""

    text: str
    parse_special: bool = False


PromptSegments = tuple[PromptSegment, ...]


PromptRole = Literal["system", "user", "assistant"]


class PromptMessage(NamedTuple):
    """One turn."""

    role: PromptRole
    segments: PromptSegments


DEFAULT_INSTRUCTIONS = "You are a helpful assistant."

_TOOLS_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

# Measured: without this the default model calls the same function again after five results of eight, with it after
# none.
_AFTER_RESULTS_PROMPT = "If that answers me, tell me in plain words. If something is still missing, call a function for it."

_FORMAT_PROMPTS = {
    JsonObject: "Answer with one JSON object and nothing else.",
    JsonSchema: "Answer with JSON that satisfies this JSON Schema, and nothing else:\n{schema}",
}


def prompt_messages(
    request: commands.Respond, tools: Sequence[GrammarTool], history: Sequence[engine_history.HistoryItem]
) -> list[PromptMessage]:
    """
    The conversation, system message first; neighbours of the same role are merged.

    Args:
        tools: those that may be called.
        history: the request's, or what truncation left of it.

    Raises:
        ClientError: it has something other than text and tool calls.
    """
    rest = list(history)
    system_texts = [request.instructions] if request.instructions else []
    while rest and isinstance(item := rest[0], engine_history.Message) and item.role in ("system", "developer"):
        system_texts.append(_parts_text(item.parts))
        rest.pop(0)
    system_texts = system_texts or [DEFAULT_INSTRUCTIONS]
    system_texts += _tools_prompt(tools)
    system_texts += _format_prompt(request)
    messages = [PromptMessage("system", (PromptSegment("\n\n".join(system_texts)),))]
    for is_result, items in groupby(rest, lambda item: isinstance(item, engine_history.ToolResult)):
        messages += (message for item in items for message in _item_messages(item))
        if is_result:
            messages.append(PromptMessage("user", (PromptSegment(_AFTER_RESULTS_PROMPT),)))
    return [_merge_messages(role, list(group)) for role, group in groupby(messages, lambda message: message.role)]


def _tools_prompt(tools: Sequence[GrammarTool]) -> list[str]:
    if not tools:
        return []
    return [_TOOLS_PROMPT.format(tools="\n".join(json.dumps(one.signature, ensure_ascii=False) for one in tools))]


def _format_prompt(request: commands.Respond) -> list[str]:
    match request.format:
        case None:
            return []
        case JsonObject():
            return [_FORMAT_PROMPTS[JsonObject]]
        case JsonSchema(schema=schema, description=description):
            note = _FORMAT_PROMPTS[JsonSchema].format(schema=json.dumps(schema, ensure_ascii=False))
            return [note if description is None else f"{note}\n{description}"]


def _item_messages(item: engine_history.HistoryItem) -> Iterator[PromptMessage]:
    match item:
        case engine_history.Message(role, parts):
            yield PromptMessage("system" if role == "developer" else role, (PromptSegment(_parts_text(parts)),))
        case engine_history.ToolCall():
            yield PromptMessage(
                "assistant", (PromptSegment(TOOL_CALL_OPEN, True), PromptSegment(_call_text(item)), PromptSegment(TOOL_CALL_CLOSE, True))
            )
        case engine_history.ToolResult(parts=parts):
            yield PromptMessage("user", (PromptSegment(f"<tool_response>\n{_parts_text(parts)}\n</tool_response>"),))
        case engine_history.HostedToolItem():
            return  # this engine has no hosted tools
        case engine_history.ReasoningItem():
            return  # the model doesn't reason, and has no use for another's reasoning


def _call_text(call: engine_history.ToolCall) -> str:
    name = f"{call.namespace}.{call.name}" if call.namespace else call.name
    arguments = json.dumps({"input": call.arguments}) if call.custom else call.arguments
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _parts_text(parts: Iterable[engine_history.HistoryPart]) -> str:
    return "\n".join(map(_part_text, parts))


def _part_text(part: engine_history.HistoryPart) -> str:
    match part:
        # It has no audio input, but transcripts are text.
        case engine_history.TextPart(text) | engine_history.RefusalPart(text) | engine_history.SpeechPart(transcript=str(text)):
            return text
        case _:
            kind = type(part).__name__.removesuffix("Part").lower()
            message = f"This model takes only text; the input has a part of type '{kind}'."
            raise ClientError(message, code="unsupported_value", param="input")


def _merge_messages(role: PromptRole, messages: list[PromptMessage]) -> PromptMessage:
    """One message of several; calls and results each on lines of their own."""
    segments: list[PromptSegment] = []
    for one in messages:
        if segments:
            segments.append(PromptSegment("\n", True))
        segments += one.segments
    return PromptMessage(role, tuple(segments))


def chatml(messages: Sequence[PromptMessage], assistant_prefix: str = "") -> PromptSegments:
    """
    The prompt in ChatML; the model continues after `assistant_prefix`.

    Source: https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct (tokenizer_config.json)
    """
    segments: list[PromptSegment] = []
    for one in messages:
        segments += (PromptSegment(f"<|im_start|>{one.role}\n", True), *one.segments, PromptSegment("<|im_end|>\n", True))
    return (*segments, PromptSegment("<|im_start|>assistant\n" + assistant_prefix, True))


class TemplatePlaceholders:
    """
    Renders the model's own template with placeholders, then puts the texts in their place.

    So the template's own text, with its control tokens, stays apart from what people wrote.

    Attributes:
        messages: role and content, as `/apply-template` takes them.
    """

    def __init__(self, messages: Sequence[PromptMessage]) -> None:
        # Random, so that no text written before can contain it; it needs no secrecy.
        self._mark = f"\u2039{secrets.token_hex(8)}\u203a"
        self._texts = [one.segments for one in messages]
        self.messages = [{"role": one.role, "content": f"{self._mark}{number}{self._mark}"} for number, one in enumerate(messages)]

    def fill(self, template_output: str, assistant_prefix: str = "") -> PromptSegments:
        """The prompt, from what the template rendered of `messages`."""
        segments: list[PromptSegment] = []
        for number, piece in enumerate(template_output.split(self._mark)):
            if number % 2:
                segments += self._texts[int(piece)]
            elif piece:
                segments.append(PromptSegment(piece, True))
        return (*segments, PromptSegment(assistant_prefix, True)) if assistant_prefix else tuple(segments)
