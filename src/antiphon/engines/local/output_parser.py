"""
Parsers of the model's output: text, or tool calls.

Where a call is required, a grammar forces one, and its arguments stream as they come. Where it is optional, the output
is free: it is a call if it looks like one, names one of the tools, and its arguments fit the schema. All else is text,
and streams as soon as it can't be a call.
"""

import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antiphon.engine_api import events
from antiphon.engines.local.json_schema import OutputSchema
from antiphon.engines.local.tool_grammar import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, GrammarTool
from antiphon.errors import ClientError

Logprobs = Sequence[events.TokenLogprob]
EventList = list[events.EngineEvent]

# A larger call is text: a model that never closes its braces would otherwise deliver nothing.
MAX_CALL_CHARACTERS = 32_000


def new_call_id() -> str:
    """A new id for a call."""
    return f"call_{secrets.token_hex(12)}"


class OutputParser(Protocol):
    """
    Turns the model's output into engine events.

    Attributes:
        is_done: no further output is needed.
    """

    is_done: bool

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """
        The events that are certain with `text`, which is more of the output.

        Raises:
            ClientError: the output breaks its constraint.
        """

    def finish(self, is_truncated: bool) -> EventList:
        """
        The last events; `is_truncated` if the output hit its limit.

        Raises:
            ClientError: the output doesn't fit its schema.
        """


class TextParser:
    """All of it is text."""

    def __init__(self, id: str) -> None:
        self.is_done = False
        self._id = id

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        return [events.TextDelta(self._id, text, tuple(logprobs))] if text or logprobs else []

    def finish(self, is_truncated: bool) -> EventList:
        return []


class JsonFormatParser(TextParser):
    """Text that must fit a schema; checked here, as the native server drops constraints silently."""

    def __init__(self, id: str, schema: OutputSchema, strict: bool) -> None:
        super().__init__(id)
        self._schema = schema
        self._strict = strict
        self._text = ""

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        self._text += text
        if self._schema.is_object and self._text and self._text[0] != "{":
            raise unsatisfiable_schema("text.format.schema")
        return super().feed(text, logprobs)

    def finish(self, is_truncated: bool) -> EventList:
        if self._strict and not is_truncated and not self._schema.accepts(_decode_json(self._text)):
            raise unsatisfiable_schema("text.format.schema")
        return []


class ForcedCallParser:
    """One call, forced by the grammar."""

    def __init__(self, id: str, tools: Sequence[GrammarTool], new_id: Callable[[], str] = new_call_id) -> None:
        self.is_done = False
        self._id = id
        self._tools = tools
        self._call_id = new_id()
        self._tool: GrammarTool | None = None
        self._buffer = ""
        self._object_scanner = JsonObjectScanner()

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        if self.is_done:
            return []
        if self._tool is not None:
            return self._read_arguments(self._tool, text)
        self._buffer += text
        for tool in self._tools:
            if self._buffer.startswith(tool.call_prefix):
                self._tool, text, self._buffer = tool, self._buffer.removeprefix(tool.call_prefix), ""
                return [tool.start_event(self._id, self._call_id), *self._read_arguments(tool, text)]
        if not any(tool.call_prefix.startswith(self._buffer) for tool in self._tools):
            raise unsatisfiable_schema("tools")
        return []

    def finish(self, is_truncated: bool) -> EventList:
        return []  # a call that was cut off gets no `ToolCallDone`

    def _read_arguments(self, tool: GrammarTool, text: str) -> EventList:
        end = self._object_scanner.feed(text)
        self.is_done = end is not None
        piece = text[:end]
        if tool.is_custom:  # its input is one JSON string, which is decoded as a whole
            self._buffer += piece
            piece = tool.call_input(self._buffer) if self.is_done else ""
        batch: EventList = [events.ToolArgumentsDelta(self._id, self._call_id, piece)] if piece else []
        return [*batch, events.ToolCallDone(self._id, self._call_id)] if self.is_done else batch


# `<tools>` is the prompt's mark for the list of tools; the default model also puts calls between two of it.
_CALL_MARKS = (TOOL_CALL_OPEN.strip(), "<tools>", "```json", "```", "")
_END_MARKS = (TOOL_CALL_CLOSE.strip(), "</tools>", "```")
_FIRST_KEYS = ('{"name":', '{"arguments":')


class ToolCallDetector:
    """
    Text, with tool calls found in it.

    A call may stand at the start of the output and after any `<tool_call>`; after a call, only another may follow.

    Args:
        parallel: accept more than one call.
        text_parser: gets what turns out to be text.
    """

    def __init__(
        self, id: str, tools: Sequence[GrammarTool], parallel: bool, text_parser: TextParser, new_id: Callable[[], str] = new_call_id
    ) -> None:
        self.is_done = False
        self._id = id
        self._tools = {tool.name: tool for tool in tools}
        self._parallel = parallel
        self._text_parser = text_parser
        self._new_id = new_id
        self._buffer = ""
        self._logprobs: list[events.TokenLogprob] = []
        self._step: Callable[[], EventList | None] = self._detect_call
        self._object_scanner = JsonObjectScanner()
        self._call_count = 0

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        self._buffer += text
        self._logprobs += logprobs
        batch: EventList = []
        while not self.is_done and (step_events := self._step()) is not None:
            batch += step_events
        return batch

    def finish(self, is_truncated: bool) -> EventList:
        # An incomplete call is text.
        return [] if self._call_count else [*self._emit_text(len(self._buffer)), *self._text_parser.finish(is_truncated)]

    def _detect_call(self) -> EventList | None:
        """Undecided: the buffer may be the start of a call."""
        if (start := _find_object(self._buffer)) is None:
            return None
        if start < 0:
            return self._reject_call()
        self._call_start, self._scan_position = start, start
        self._object_scanner = JsonObjectScanner()
        self._step = self._read_call
        return []

    def _read_call(self) -> EventList | None:
        """In what looks like a call, up to where its object ends."""
        start, self._scan_position = self._scan_position, len(self._buffer)
        if (size := self._object_scanner.feed(self._buffer[start:])) is None:
            return self._reject_call() if len(self._buffer) > MAX_CALL_CHARACTERS else None
        end = start + size
        if (call_events := self._parse_call(self._buffer[self._call_start : end])) is None:
            return self._reject_call()
        self._buffer = self._buffer[end:]
        self._logprobs.clear()
        self._call_count += 1
        self._step = self._after_call
        self.is_done = not self._parallel
        return call_events

    def _reject_call(self) -> EventList:
        if self._call_count:  # text after a call is about a result that isn't there yet
            self.is_done = True
            return []
        self._step = self._read_text
        # Past the mark that started no call, or it would be found again.
        return self._emit_text(
            self._buffer.index(_CALL_MARKS[0]) + len(_CALL_MARKS[0]) if self._buffer.lstrip().startswith(_CALL_MARKS[0]) else 0
        )

    def _after_call(self) -> EventList | None:
        """After a call: its end mark, and perhaps another."""
        rest = self._buffer.lstrip()
        for mark in _END_MARKS:
            if rest.startswith(mark):
                self._buffer = rest.removeprefix(mark)
                self._step = self._detect_call
                return []
        if any(mark.startswith(rest) for mark in _END_MARKS):
            return None
        self._step = self._detect_call
        return []

    def _read_text(self) -> EventList | None:
        """In text, watching for the mark of a call."""
        mark = _CALL_MARKS[0]
        if (start := self._buffer.find(mark)) >= 0:
            self._step = self._detect_call
            return self._emit_text(start)
        return self._emit_text(len(self._buffer) - _overlap(self._buffer, mark)) or None

    def _emit_text(self, size: int) -> EventList:
        piece, self._buffer = self._buffer[:size], self._buffer[size:]
        if not piece:
            return []
        logprobs, self._logprobs = self._logprobs, []
        return self._text_parser.feed(piece, logprobs)

    def _parse_call(self, text: str) -> EventList | None:
        """The events of the call in `text`; None if it is none."""
        match _decode_json(text):
            case {"name": str(name), **rest} if name in self._tools and rest.keys() <= {"arguments"}:
                tool, arguments = self._tools[name], rest.get("arguments", {})
            case _:
                return None
        if isinstance(arguments, str):
            arguments = _decode_json(arguments)
        if not isinstance(arguments, dict) or not tool.schema.accepts(arguments):
            return None
        call_id = self._new_id()
        call_input = tool.call_input(json.dumps(arguments, ensure_ascii=False))
        return [
            tool.start_event(self._id, call_id),
            events.ToolArgumentsDelta(self._id, call_id, call_input),
            events.ToolCallDone(self._id, call_id),
        ]


class JsonObjectScanner:
    """Finds the end of a JSON object in text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` belong to the object; None if it isn't complete."""
        for index, character in enumerate(text):
            if self._is_in_string:
                self._scan_string(character)
            elif character == '"':
                self._is_in_string = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    return index + 1
        return None

    def _scan_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False


def unsatisfiable_schema(param: str) -> ClientError:
    """The error for a valid schema that the output breaks all the same, for example as nothing satisfies it."""
    return ClientError(
        "Invalid schema: the model could not be held to it. Perhaps nothing satisfies it, or it is too complex.",
        code="invalid_json_schema",
        param=param,
    )


def _find_object(text: str) -> int | None:
    """Where the object of a possible call begins; -1 if it can't be a call; None if the text is too short to tell."""
    rest = text.lstrip()
    verdict: int | None = -1
    for mark in _CALL_MARKS:
        if rest.startswith(mark):
            is_call = _looks_like_call(inner := rest[len(mark) :].lstrip())
            if is_call:
                return len(text) - len(inner)
            if is_call is None:
                verdict = None
        elif mark.startswith(rest):
            verdict = None
    return verdict


def _looks_like_call(text: str) -> bool | None:
    """Whether a call's object begins like this; None if it is too short to tell."""
    compact = re.sub(r"\s", "", text[:64])
    if compact.startswith(_FIRST_KEYS):
        return True
    return None if any(key.startswith(compact) for key in _FIRST_KEYS) else False


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` are the start of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


def _decode_json(text: str) -> Any:
    """The JSON value in `text`; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
