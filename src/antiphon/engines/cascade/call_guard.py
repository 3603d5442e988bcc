"""
Calls that a model writes as text, which must not be read aloud.

Small models write calls in forms that their server doesn't take for calls, or of tools that nobody offered. So in a
session with tools, an answer that begins like a call is held back. If it is one of an offered tool, with arguments that
fit, it becomes that call. Otherwise the model is asked again without tools, once.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import CustomTool, Tool

MAX_HELD_CHARACTERS = 8_000
"""A longer text that is still no whole call is none."""

_TAGS = ("<tool", "<function", "<|tool")
_FENCE = re.compile(r"```(?:json|xml|tools?|tool_calls?|tool_code)?\s*([{\[<])", re.IGNORECASE)
_FENCE_START = re.compile(r"`{1,2}$|```\w*\s*$")
_FIRST_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"')
_FIRST_KEY = re.compile(r'\{\s*"(?:name|arguments|parameters|type|function)"')
_MAX_FIRST_KEY_CHARACTERS = 40
_DECODER = json.JSONDecoder()
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


class _State(Enum):
    UNDECIDED = "undecided"
    TEXT = "text"
    HELD = "held"
    CALL = "call"
    REFUSED = "refused"


class CallGuard:
    """
    Reads one answer on its way from the engine to the voice.

    Args:
        request: what the engine was asked.
        is_last: whether the model will not be asked again: then what is like a call is left out.
        usage: what another answer to the same request has used up already.

    Attributes:
        usage: what was used up, as far as the engine has said.
    """

    def __init__(self, request: commands.Respond, *, is_last: bool = False, usage: events.Usage | None = None) -> None:
        self.usage = usage
        self._earlier_usage = usage
        self._id = request.id
        self._is_last = is_last
        self._tools = {tool.key: tool for tool in offered_tools(request)}
        self._state = _State.UNDECIDED
        self._waiting: list[events.EngineEvent] = []
        self._text = ""

    @property
    def wants_other_answer(self) -> bool:
        """Whether the answer begins like a call, is none that can be made, and the model may be asked again."""
        return self._state is _State.REFUSED and not self._is_last

    def read(self, batch: Sequence[events.EngineEvent]) -> list[events.EngineEvent]:
        """What may be heard, now that these events have come, too."""
        return [audible for event in batch for audible in self._read_one(event)]

    def _read_one(self, event: events.EngineEvent) -> Sequence[events.EngineEvent]:
        match event:
            case events.TextDelta():
                return self._read_text(event)
            case events.Usage():
                self.usage = event.plus(self._earlier_usage)
                return (self.usage,)
            case events.ToolCallStarted() if self._state in (_State.UNDECIDED, _State.HELD):
                self._state = _State.TEXT  # the engine has found the call; what stood before it was the beginning of it
            case events.ResponseEnded(reason="stop" | "length"):
                rest = self._decide(is_over=True)
                return () if self.wants_other_answer else (*rest, event)
            case _:
                pass
        return (event,)

    def _read_text(self, event: events.TextDelta) -> Sequence[events.EngineEvent]:
        if self._state is _State.TEXT:
            return (event,)
        if self._state in (_State.CALL, _State.REFUSED):  # text after a call is about a result that isn't there yet
            return ()
        self._waiting.append(event)
        self._text += event.text
        return self._decide(is_over=False)

    def _decide(self, *, is_over: bool) -> Sequence[events.EngineEvent]:
        """What of the text that is held back may be heard."""
        if self._state is _State.UNDECIDED:
            begins = begins_like_call(self._text)
            if begins is False or (begins is None and is_over):
                return self._release()
            self._state = _State.HELD if begins else _State.UNDECIDED
        if self._state is not _State.HELD:
            return ()
        call = read_call(self._text, self._tools)
        if call is None and not is_over and len(self._text) <= MAX_HELD_CHARACTERS:
            return ()
        if isinstance(call, FoundCall):
            self._state = _State.CALL
            return call.events(self._id)
        if self._is_last and not is_like_call(self._text):  # what was asked for begins like that, such as an example
            return self._release()
        self._state = _State.REFUSED
        return ()

    def _release(self) -> Sequence[events.EngineEvent]:
        waiting, self._waiting, self._state = self._waiting, [], _State.TEXT
        return waiting


class FoundCall:
    """A call of an offered tool."""

    def __init__(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        self._tool = tool
        self._input = str(arguments["input"]) if isinstance(tool, CustomTool) else json.dumps(arguments, ensure_ascii=False)

    def events(self, id: str) -> Sequence[events.EngineEvent]:
        """The events of the call, in the response of that id."""
        tool, call_id = self._tool, f"call_{secrets.token_hex(12)}"
        return (
            events.ToolCallStarted(id, call_id, tool.name, custom=isinstance(tool, CustomTool), namespace=tool.namespace),
            events.ToolArgumentsDelta(id, call_id, self._input),
            events.ToolCallDone(id, call_id),
        )


def offered_tools(request: commands.Respond) -> Sequence[Tool]:
    """The tools that the model may call in a response, if it may also answer in plain words."""
    choice = request.tool_choice
    if choice.mode != "auto" or request.format is not None:
        return ()
    return [tool for tool in request.tools if choice.name_set is None or tool.key in choice.name_set]


def begins_like_call(text: str) -> bool | None:
    """Whether an answer begins like a call; None if it is too short to tell."""
    rest = text.lstrip()
    if rest.startswith(("{", *_TAGS)) or _FENCE.match(rest):
        return True
    if not rest or _FENCE_START.fullmatch(rest) or any(tag.startswith(rest) for tag in _TAGS):
        return None
    return re.match(r"\[\s*(?:\{|$)", rest) is not None and (None if rest.strip() == "[" else True)


def is_like_call(text: str) -> bool:
    """Whether a text that begins like a call goes on like one, whatever it calls."""
    return text.lstrip().startswith(_TAGS) or _FIRST_KEY.search(text) is not None


def read_call(text: str, tools: Mapping[str, Tool]) -> FoundCall | Literal[False] | None:
    """The call in a text that begins like one; False if there is none, None while more of the text may make it one."""
    start = text.find("{")
    if start < 0:
        return False if "</" in text else None
    head = text[start:]
    name = _FIRST_NAME.match(head)
    if (name is not None and name[1] not in tools) or (len(head) > _MAX_FIRST_KEY_CHARACTERS and not _FIRST_KEY.match(head)):
        return False
    if "}" not in head:
        return None
    try:
        value, _end = _DECODER.raw_decode(head)
    except ValueError:
        return None
    except RecursionError:
        return False
    return _as_call(value, tools) or False


def _as_call(value: Any, tools: Mapping[str, Tool]) -> FoundCall | None:
    """The call that a JSON object is, in any of the forms in use."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or value.get("name") not in tools:
        return None
    tool = tools[value["name"]]
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    # A model may also repeat the declaration of the tool, whose `parameters` are a schema.
    if not isinstance(arguments, dict) or isinstance(arguments.get("properties"), dict):
        return None
    return FoundCall(tool, arguments) if _fit(arguments, tool) else None


def _fit(arguments: Mapping[str, Any], tool: Tool) -> bool:
    """Whether the arguments are such as the tool takes, as far as their names and types go."""
    if isinstance(tool, CustomTool):
        return isinstance(arguments.get("input"), str)
    schema = tool.parameters or {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    names = schema.get("required")
    if isinstance(names, list) and any(name not in arguments for name in names):
        return False
    if schema.get("additionalProperties") is False and not arguments.keys() <= properties.keys():
        return False
    return all(_has_type(value, properties.get(name)) for name, value in arguments.items())


def _has_type(value: Any, schema: Any) -> bool:
    names = schema.get("type") if isinstance(schema, dict) else None
    names = names if isinstance(names, list) else [names] if isinstance(names, str) else []
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return False
    if isinstance(value, bool) and names and "boolean" not in names:  # it is a number to Python
        return False
    types = tuple(type for name in names for type in _JSON_TYPES.get(name, (object,)))
    return not types or isinstance(value, types)
