"""
A conversation as a small model reads it: what it is told first, who said what, and the tools, in ChatML or the model's own template.

What people and tools say can never become a control token: each prompt is a list of segments, and only those that are written here are
tokenised with control tokens recognised. Tools are shown and called in the format that Qwen2.5 learnt (Hermes):
https://qwen.readthedocs.io/en/v2.5/framework/function_call.html
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local.tool_grammar import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, GrammarTool
from antiphon.errors import ClientError


class PromptSegment(NamedTuple):
    """A stretch of the prompt; in one with `control`, control tokens are recognised."""

    text: str
    parse_special: bool = False


PromptSegments = tuple[PromptSegment, ...]


class PromptMessage(NamedTuple):
    """What one side said without a break."""

    role: Literal["system", "user", "assistant"]
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

# Without this the default model calls the same function again after five results in eight, with it after none.
_AFTER_RESULTS_PROMPT = "If that answers me, tell me in plain words. If something is still missing, call a function for it."

_FORMAT_PROMPTS = {
    JsonObject: "Answer with one JSON object and nothing else.",
    JsonSchema: "Answer with JSON that satisfies this JSON Schema, and nothing else:\n{schema}",
}


def prompt_messages(
    request: commands.Respond, tools: Sequence[GrammarTool], history: Sequence[engine_history.HistoryItem]
) -> list[PromptMessage]:
    """
    The whole conversation, system turn first, sides alternating as far as they did.

    Args:
        offers: the tools that may be called in this answer.
        history: of `ask`, or what is left of it.

    Raises:
        ClientError: something in it is neither words nor a tool's.
    """
    rest = list(history)
    opening = [request.instructions] if request.instructions else []
    while rest and isinstance(turn := rest[0], engine_history.Message) and turn.role in ("system", "developer"):
        opening.append(_parts_text(turn.parts))
        rest.pop(0)
    opening = opening or [DEFAULT_INSTRUCTIONS]
    opening += _tools_prompt(tools)
    opening += _format_prompt(request)
    said = [PromptMessage("system", (PromptSegment("\n\n".join(opening)),))]
    for is_result, run in groupby(rest, lambda turn: isinstance(turn, engine_history.ToolResult)):
        said += (one for turn in run for one in _item_messages(turn))
        if is_result:
            said.append(PromptMessage("user", (PromptSegment(_AFTER_RESULTS_PROMPT),)))
    return [_merge_messages(role, list(run)) for role, run in groupby(said, lambda one: one.role)]


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
            return  # of tools that no engine has which reads prompts
        case engine_history.ReasoningItem():
            return  # a small model that doesn't reason has no use for another's reasoning


def _call_text(call: engine_history.ToolCall) -> str:
    name = f"{call.namespace}.{call.name}" if call.namespace else call.name
    arguments = json.dumps({"input": call.arguments}) if call.custom else call.arguments
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _parts_text(parts: Iterable[engine_history.HistoryPart]) -> str:
    return "\n".join(map(_part_text, parts))


def _part_text(part: engine_history.HistoryPart) -> str:
    match part:
        # It can't hear, but what was heard is words.
        case engine_history.TextPart(text) | engine_history.RefusalPart(text) | engine_history.SpeechPart(transcript=str(text)):
            return text
        case _:
            kind = type(part).__name__.removesuffix("Part").lower()
            message = f"This model reads text only; the input has a part of kind '{kind}'."
            raise ClientError(message, code="unsupported_value", param="input")


def _merge_messages(role: Any, messages: list[PromptMessage]) -> PromptMessage:
    """One turn of several that follow each other; calls and results each on lines of their own."""
    segments: list[PromptSegment] = []
    for one in messages:
        if segments:
            segments.append(PromptSegment("\n", True))
        segments += one.segments
    return PromptMessage(role, tuple(segments))


def chatml(messages: Sequence[PromptMessage], assistant_prefix: str = "") -> PromptSegments:
    """
    The prompt in ChatML, open for the assistant to go on after `lead`.

    Source: https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct (tokenizer_config.json)
    """
    segments: list[PromptSegment] = []
    for one in messages:
        segments += (PromptSegment(f"<|im_start|>{one.role}\n", True), *one.segments, PromptSegment("<|im_end|>\n", True))
    return (*segments, PromptSegment("<|im_start|>assistant\n" + assistant_prefix, True))


class TemplatePlaceholders:
    """
    The conversation with every text cut out, for a template that is the model's own, and a way to put the texts back.

    The template is given marks that no text can contain, so that what it writes around them can be told from what people said.

    Attributes:
        messages: role and content, as `/apply-template` takes them.
    """

    def __init__(self, messages: Sequence[PromptMessage]) -> None:
        # Not a matter of secrecy: a mark that is new each time can't be in a text that was written before.
        self._mark = f"\u2039{secrets.token_hex(8)}\u203a"
        self._texts = [one.segments for one in messages]
        self.messages = [{"role": one.role, "content": f"{self._mark}{number}{self._mark}"} for number, one in enumerate(messages)]

    def fill(self, template_output: str, assistant_prefix: str = "") -> PromptSegments:
        """The prompt, from what the template made of the messages."""
        segments: list[PromptSegment] = []
        for number, piece in enumerate(template_output.split(self._mark)):
            if number % 2:
                segments += self._texts[int(piece)]
            elif piece:
                segments.append(PromptSegment(piece, True))
        return (*segments, PromptSegment(assistant_prefix, True)) if assistant_prefix else tuple(segments)


def droppable_groups(history: Sequence[engine_history.HistoryItem]) -> list[range]:
    """
    What may be dropped to make the history fit, oldest first, each to be dropped as a whole.

    Never the last, which is to be answered, nor what the developer said; a call goes together with its result.
    """
    groups: list[range] = []
    start = 0
    for _, run in groupby(range(len(history)), lambda number: number if isinstance(history[number], engine_history.Message) else None):
        size = len(list(run))
        groups.append(range(start, start + size))
        start += size
    return [group for group in groups[:-1] if not _is_developer_message(history[group[0]])]


def drop_groups(history: Sequence[engine_history.HistoryItem], groups: Iterable[range]) -> tuple[engine_history.HistoryItem, ...]:
    """The history with these left out."""
    dropped = {number for group in groups for number in group}
    return tuple(turn for number, turn in enumerate(history) if number not in dropped)


def _is_developer_message(item: engine_history.HistoryItem) -> bool:
    return isinstance(item, engine_history.Message) and item.role in ("system", "developer")
