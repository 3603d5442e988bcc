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

from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.options import JsonObject, JsonSchema
from antiphon.engines.local.tool_grammar import CLOSE, OPEN, Offer
from antiphon.errors import ClientMistake


class Segment(NamedTuple):
    """A stretch of the prompt; in one with `control`, control tokens are recognised."""

    text: str
    control: bool = False


Segments = tuple[Segment, ...]


class Said(NamedTuple):
    """What one side said without a break."""

    role: Literal["system", "user", "assistant"]
    segments: Segments


DEFAULT_INSTRUCTIONS = "You are a helpful assistant."

_TOOLS = """# Tools

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
_AFTER_RESULTS = "If that answers me, tell me in plain words. If something is still missing, call a function for it."

_FORMS = {
    JsonObject: "Answer with one JSON object and nothing else.",
    JsonSchema: "Answer with JSON that satisfies this JSON Schema, and nothing else:\n{schema}",
}


def conversation(ask: commands.Respond, offers: Sequence[Offer], history: Sequence[turns.Turn]) -> list[Said]:
    """
    The whole conversation, system turn first, sides alternating as far as they did.

    Args:
        offers: the tools that may be called in this answer.
        history: of `ask`, or what is left of it.

    Raises:
        ClientMistake: something in it is neither words nor a tool's.
    """
    rest = list(history)
    opening = [ask.instructions] if ask.instructions else []
    while rest and isinstance(turn := rest[0], turns.Message) and turn.role in ("system", "developer"):
        opening.append(_words(turn.parts))
        rest.pop(0)
    opening = opening or [DEFAULT_INSTRUCTIONS]
    opening += _shown(offers)
    opening += _form(ask)
    said = [Said("system", (Segment("\n\n".join(opening)),))]
    for is_result, run in groupby(rest, lambda turn: isinstance(turn, turns.ToolResult)):
        said += (one for turn in run for one in _said(turn))
        if is_result:
            said.append(Said("user", (Segment(_AFTER_RESULTS),)))
    return [_joined(role, list(run)) for role, run in groupby(said, lambda one: one.role)]


def _shown(offers: Sequence[Offer]) -> list[str]:
    if not offers:
        return []
    return [_TOOLS.format(tools="\n".join(json.dumps(one.signature, ensure_ascii=False) for one in offers))]


def _form(ask: commands.Respond) -> list[str]:
    match ask.format:
        case None:
            return []
        case JsonObject():
            return [_FORMS[JsonObject]]
        case JsonSchema(schema=schema, description=description):
            note = _FORMS[JsonSchema].format(schema=json.dumps(schema, ensure_ascii=False))
            return [note if description is None else f"{note}\n{description}"]


def _said(turn: turns.Turn) -> Iterator[Said]:
    match turn:
        case turns.Message(role, parts):
            yield Said("system" if role == "developer" else role, (Segment(_words(parts)),))
        case turns.ToolCall():
            yield Said("assistant", (Segment(OPEN, True), Segment(_called(turn)), Segment(CLOSE, True)))
        case turns.ToolResult(parts=parts):
            yield Said("user", (Segment(f"<tool_response>\n{_words(parts)}\n</tool_response>"),))
        case turns.Hosted():
            return  # of tools that no engine has which reads prompts
        case turns.Thought():
            return  # a small model that doesn't reason has no use for another's reasoning


def _called(call: turns.ToolCall) -> str:
    name = f"{call.namespace}.{call.name}" if call.namespace else call.name
    arguments = json.dumps({"input": call.arguments}) if call.custom else call.arguments
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _words(parts: Iterable[turns.Part]) -> str:
    return "\n".join(map(_part_words, parts))


def _part_words(part: turns.Part) -> str:
    match part:
        # It can't hear, but what was heard is words.
        case turns.TextPart(text) | turns.RefusalPart(text) | turns.SpeechPart(transcript=str(text)):
            return text
        case _:
            kind = type(part).__name__.removesuffix("Part").lower()
            message = f"This model reads text only; the input has a part of kind '{kind}'."
            raise ClientMistake(message, code="unsupported_value", param="input")


def _joined(role: Any, run: list[Said]) -> Said:
    """One turn of several that follow each other; calls and results each on lines of their own."""
    segments: list[Segment] = []
    for one in run:
        if segments:
            segments.append(Segment("\n", True))
        segments += one.segments
    return Said(role, tuple(segments))


def chatml(said: Sequence[Said], lead: str = "") -> Segments:
    """
    The prompt in ChatML, open for the assistant to go on after `lead`.

    Source: https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct (tokenizer_config.json)
    """
    segments: list[Segment] = []
    for one in said:
        segments += (Segment(f"<|im_start|>{one.role}\n", True), *one.segments, Segment("<|im_end|>\n", True))
    return (*segments, Segment("<|im_start|>assistant\n" + lead, True))


class Stencil:
    """
    The conversation with every text cut out, for a template that is the model's own, and a way to put the texts back.

    The template is given marks that no text can contain, so that what it writes around them can be told from what people said.

    Attributes:
        messages: role and content, as `/apply-template` takes them.
    """

    def __init__(self, said: Sequence[Said]) -> None:
        # Not a matter of secrecy: a mark that is new each time can't be in a text that was written before.
        self._mark = f"\u2039{secrets.token_hex(8)}\u203a"
        self._texts = [one.segments for one in said]
        self.messages = [{"role": one.role, "content": f"{self._mark}{number}{self._mark}"} for number, one in enumerate(said)]

    def fill(self, rendered: str, lead: str = "") -> Segments:
        """The prompt, from what the template made of the messages."""
        segments: list[Segment] = []
        for number, piece in enumerate(rendered.split(self._mark)):
            if number % 2:
                segments += self._texts[int(piece)]
            elif piece:
                segments.append(Segment(piece, True))
        return (*segments, Segment(lead, True)) if lead else tuple(segments)


def droppable(history: Sequence[turns.Turn]) -> list[range]:
    """
    What may be dropped to make the history fit, oldest first, each to be dropped as a whole.

    Never the last, which is to be answered, nor what the developer said; a call goes together with its result.
    """
    groups: list[range] = []
    start = 0
    for _, run in groupby(range(len(history)), lambda number: number if isinstance(history[number], turns.Message) else None):
        size = len(list(run))
        groups.append(range(start, start + size))
        start += size
    return [group for group in groups[:-1] if not _developers(history[group[0]])]


def without(history: Sequence[turns.Turn], groups: Iterable[range]) -> tuple[turns.Turn, ...]:
    """The history with these left out."""
    dropped = {number for group in groups for number in group}
    return tuple(turn for number, turn in enumerate(history) if number not in dropped)


def _developers(turn: turns.Turn) -> bool:
    return isinstance(turn, turns.Message) and turn.role in ("system", "developer")
