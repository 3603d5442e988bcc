"""
What a model's words amount to: text, or calls of tools.

Where a call is required the model is held to one by a grammar, and its arguments are passed on as they come. Where it may choose, it
writes what it likes, and what it writes is a call if it looks like one, names a tool that was offered, and has arguments that the tool
takes; all else is text, and text that doesn't look like a call is passed on at once.
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

# A call larger than this is text: a model that never closes its braces would otherwise say nothing at all.
MAX_CALL_CHARACTERS = 32_000


def new_call_id() -> str:
    """A new id for a call."""
    return f"call_{secrets.token_hex(12)}"


class OutputParser(Protocol):
    """
    Makes words of what the model writes.

    Attributes:
        done: nothing that the model may still write matters.
    """

    is_done: bool

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """
        The words that `text`, more of the answer, makes sayable.

        Raises:
            ClientError: the model is not where it was to be held.
        """

    def finish(self, is_truncated: bool) -> EventList:
        """
        What is left to say at the end; `cut` where the answer was cut off.

        Raises:
            ClientError: the answer is not what was promised.
        """


class TextParser:
    """All of it is text."""

    def __init__(self, id: str) -> None:
        self.is_done = False
        self._id = id

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """The text."""
        return [events.TextDelta(self._id, text, tuple(logprobs))] if text or logprobs else []

    def finish(self, is_truncated: bool) -> EventList:
        """Nothing: all was said."""
        return []


class JsonFormatParser(TextParser):
    """Text that is to satisfy a schema; looked after here, since the native side drops a constraint without saying so."""

    def __init__(self, id: str, schema: OutputSchema, strict: bool) -> None:
        super().__init__(id)
        self._schema = schema
        self._strict = strict
        self._text = ""

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """The text."""
        self._text += text
        if self._schema.is_object and self._text and self._text[0] != "{":
            raise unsatisfiable_schema("text.format.schema")
        return super().feed(text, logprobs)

    def finish(self, is_truncated: bool) -> EventList:
        """Nothing, if the text is what was promised."""
        if self._strict and not is_truncated and not self._schema.accepts(_decode_json(self._text)):
            raise unsatisfiable_schema("text.format.schema")
        return []


class ForcedCallParser:
    """One call, held to the grammar."""

    def __init__(self, id: str, tools: Sequence[GrammarTool], new_id: Callable[[], str] = new_call_id) -> None:
        self.is_done = False
        self._id = id
        self._tools = tools
        self._call_id = new_id()
        self._tool: GrammarTool | None = None
        self._buffer = ""
        self._object_scanner = JsonObjectScanner()

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """The call, then its arguments as they come."""
        if self.is_done:
            return []
        if self._tool is not None:
            return self._read_arguments(self._tool, text)
        self._buffer += text
        for offer in self._tools:
            if self._buffer.startswith(offer.call_prefix):
                self._tool, text, self._buffer = offer, self._buffer.removeprefix(offer.call_prefix), ""
                return [offer.start_event(self._id, self._call_id), *self._read_arguments(offer, text)]
        if not any(offer.call_prefix.startswith(self._buffer) for offer in self._tools):
            raise unsatisfiable_schema("tools")
        return []

    def finish(self, is_truncated: bool) -> EventList:
        """Nothing more; a call that was cut off stays without its `ToolCallDone`."""
        return []

    def _read_arguments(self, tool: GrammarTool, text: str) -> EventList:
        end = self._object_scanner.feed(text)
        self.is_done = end is not None
        piece = text[:end]
        if tool.is_custom:  # its input is one JSON string: there is nothing to say before all of it is there
            self._buffer += piece
            piece = tool.call_input(self._buffer) if self.is_done else ""
        said: EventList = [events.ToolArgumentsDelta(self._id, self._call_id, piece)] if piece else []
        return [*said, events.ToolCallDone(self._id, self._call_id)] if self.is_done else said


_CALL_MARKS = (TOOL_CALL_OPEN.strip(), "```json", "```", "")
_END_MARKS = (TOOL_CALL_CLOSE.strip(), "```")
_FIRST_KEYS = ('{"name":', '{"arguments":')


class ToolCallDetector:
    """
    Text, unless it looks like calls and is.

    A call is looked for where the answer begins, and wherever `<tool_call>` is written; after one, only another may follow.

    Args:
        parallel: whether calls after the first are kept.
        plain: what reads that which turns out to be text.
    """

    def __init__(
        self, id: str, tools: Sequence[GrammarTool], parallel: bool, text_parser: TextParser, new_id: Callable[[], str] = new_call_id
    ) -> None:
        self.is_done = False
        self._id = id
        self._tools = {offer.name: offer for offer in tools}
        self._parallel = parallel
        self._text_parser = text_parser
        self._new_id = new_id
        self._buffer = ""
        self._logprobs: list[events.TokenLogprob] = []
        self._step: Callable[[], EventList | None] = self._detect_call
        self._object_scanner = JsonObjectScanner()
        self._call_count = 0

    def feed(self, text: str, logprobs: Logprobs = ()) -> EventList:
        """What is certain by now."""
        self._buffer += text
        self._logprobs += logprobs
        said: EventList = []
        while not self.is_done and (words := self._step()) is not None:
            said += words
        return said

    def finish(self, is_truncated: bool) -> EventList:
        """What was held back for a call that never was, as the text that it is."""
        return [] if self._call_count else [*self._emit_text(len(self._buffer)), *self._text_parser.finish(is_truncated)]

    def _detect_call(self) -> EventList | None:
        """Undecided: what is held may be the beginning of a call."""
        if (at := _find_object(self._buffer)) is None:
            return None
        if at < 0:
            return self._reject_call()
        self._call_start, self._scan_position = at, at
        self._object_scanner = JsonObjectScanner()
        self._step = self._read_call
        return []

    def _read_call(self) -> EventList | None:
        """In what looks like a call, up to where its object ends."""
        fed, self._scan_position = self._scan_position, len(self._buffer)
        if (size := self._object_scanner.feed(self._buffer[fed:])) is None:
            return self._reject_call() if len(self._buffer) > MAX_CALL_CHARACTERS else None
        end = fed + size
        if (words := self._parse_call(self._buffer[self._call_start : end])) is None:
            return self._reject_call()
        self._buffer = self._buffer[end:]
        self._logprobs.clear()
        self._call_count += 1
        self._step = self._after_call
        self.is_done = not self._parallel
        return words

    def _reject_call(self) -> EventList:
        if self._call_count:  # what follows a call and is none is chatter about a result that isn't there yet
            self.is_done = True
            return []
        self._step = self._read_text
        # Past a mark that opened nothing, or it would be found again.
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
        if (at := self._buffer.find(mark)) >= 0:
            self._step = self._detect_call
            return self._emit_text(at)
        return self._emit_text(len(self._buffer) - _overlap(self._buffer, mark)) or None

    def _emit_text(self, size: int) -> EventList:
        piece, self._buffer = self._buffer[:size], self._buffer[size:]
        if not piece:
            return []
        logprobs, self._logprobs = self._logprobs, []
        return self._text_parser.feed(piece, logprobs)

    def _parse_call(self, text: str) -> EventList | None:
        """The words of the call that `text` is, if it is one."""
        match _decode_json(text):
            case {"name": str(name), **rest} if name in self._tools and rest.keys() <= {"arguments"}:
                offer, arguments = self._tools[name], rest.get("arguments", {})
            case _:
                return None
        if isinstance(arguments, str):
            arguments = _decode_json(arguments)
        if not isinstance(arguments, dict) or not offer.schema.accepts(arguments):
            return None
        call_id = self._new_id()
        given = offer.call_input(json.dumps(arguments, ensure_ascii=False))
        return [
            offer.start_event(self._id, call_id),
            events.ToolArgumentsDelta(self._id, call_id, given),
            events.ToolCallDone(self._id, call_id),
        ]


class JsonObjectScanner:
    """Where a JSON object ends, found as it comes."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """How much of `text` belongs to the object, or None where it goes on."""
        for at, character in enumerate(text):
            if self._is_in_string:
                self._scan_string(character)
            elif character == '"':
                self._is_in_string = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    return at + 1
        return None

    def _scan_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False


def unsatisfiable_schema(param: str) -> ClientError:
    """The schema is one, but the model can't be held to it: such as where nothing satisfies it."""
    return ClientError(
        "Invalid schema: the model could not be held to it. Perhaps nothing satisfies it, or it is too complex.",
        code="invalid_json_schema",
        param=param,
    )


def _find_object(text: str) -> int | None:
    """Where the object begins in what looks like a call; -1 where it can't be one; None where that is open."""
    rest = text.lstrip()
    verdict: int | None = -1
    for mark in _CALL_MARKS:
        if rest.startswith(mark):
            found = _looks_like_call(inner := rest[len(mark) :].lstrip())
            if found:
                return len(text) - len(inner)
            if found is None:
                verdict = None
        elif mark.startswith(rest):
            verdict = None
    return verdict


def _looks_like_call(text: str) -> bool | None:
    """Whether this is the beginning of a call's object; None where it is too short to tell."""
    squeezed = re.sub(r"\s", "", text[:64])
    if squeezed.startswith(_FIRST_KEYS):
        return True
    return None if any(key.startswith(squeezed) for key in _FIRST_KEYS) else False


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


def _decode_json(text: str) -> Any:
    """The JSON value that `text` is, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
