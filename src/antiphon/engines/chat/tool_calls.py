"""
The tool calls in a streamed chat completion, from whatever servers make of `tool_calls`.

A call begins to be told once its arguments do: by then its id and its name have come, if they ever will. It is told to be complete
when the next one begins and its arguments are whole. Where they are not, the server may mix its calls, and go on with this one later.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from antiphon.engine_api import events
from antiphon.engine_api.options import CustomTool, Tool
from antiphon.errors import UpstreamError
from antiphon.wire.upstream import chat_completions

MAX_CALL_ID_CHARS = 64
"""The longest id of a call that the Responses API takes back."""


class _Call:
    """One call as it comes."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.upstream_id = ""
        self.call_id = ""
        self.name = ""
        self.argument_pieces: list[str] = []
        self.pending_arguments = ""
        self.input_extractor: FreeTextExtractor | None = None


class ToolCallAssembler:
    """
    The calls of one answer.

    Args:
        id: of the response.
        offered: the tools by the names that the server was given.
    """

    def __init__(self, id: str, tools: Mapping[str, Tool]) -> None:
        self._id = id
        self._tools = tools
        self._open_call: _Call | None = None
        self._suspended_calls: dict[int, _Call] = {}
        self._closed_indexes: set[int] = set()
        self._call_ids: set[str] = set()

    def add(self, part: chat_completions.ToolCall, out: list[events.EngineEvent]) -> None:
        """
        Part of a call, its words added to `words`.

        Raises:
            UpstreamError: it goes on with a call that was over.
        """
        function = part.function or chat_completions.Function()
        call = self._open_call
        if call is None or self._starts_another_call(call, part, function):
            call = self._switch_to(part, function, out)
        call.upstream_id = call.upstream_id or part.id or ""
        if function.name and not call.call_id:
            call.name = _merge_name(call.name, function.name, self._tools)
        text = function.arguments
        if isinstance(text, dict):
            text = msgspec.json.encode(text).decode()
        if text:
            call.argument_pieces.append(text)
            call.pending_arguments += text
        if call.pending_arguments and call.name:
            self._emit_start(call, out)
            self._emit_arguments(call, out)

    def close(self, out: list[events.EngineEvent], *, is_complete: bool = True) -> None:
        """
        No more of any call comes; with `is_whole` they are complete.

        Raises:
            UpstreamError: one of them was never named.
        """
        calls = [*self._suspended_calls.values(), *([] if self._open_call is None else [self._open_call])]
        self._suspended_calls.clear()
        self._open_call = None
        for call in calls:
            self._finish_call(call, out, is_complete=is_complete)

    def _switch_to(self, part: chat_completions.ToolCall, function: chat_completions.Function, out: list[events.EngineEvent]) -> _Call:
        """The call that `part` is of, which is the open one from now on; what was open is over, if all its arguments have come."""
        call = self._open_call
        if call is not None:
            if call.index is None or part.index in (None, call.index) or _is_json("".join(call.argument_pieces)):
                self._finish_call(call, out)
            else:
                self._suspended_calls[call.index] = call
                if call.name:
                    self._emit_start(call, out)  # in the order in which they began
        call = None if part.index is None else self._suspended_calls.pop(part.index, None)
        if call is not None and part.id and call.upstream_id and part.id != call.upstream_id:
            self._finish_call(call, out)
            call = None
        if call is None and part.index in self._closed_indexes and not part.id and not function.name:
            raise UpstreamError(f"The model server garbled a tool call: it went on with call {part.index} when that was over.")
        self._open_call = call or _Call(part.index)
        return self._open_call

    def _finish_call(self, call: _Call, out: list[events.EngineEvent], *, is_complete: bool = True) -> None:
        if call.index is not None:
            self._closed_indexes.add(call.index)
        if not call.name:
            if call.argument_pieces and is_complete:
                raise UpstreamError("The model server garbled a tool call: it never named it.")
            return  # nothing was called
        self._emit_start(call, out)
        if call.input_extractor is not None and (rest := call.input_extractor.end()):
            out.append(events.ToolArgumentsDelta(self._id, call.call_id, rest))
        if is_complete:
            if not call.argument_pieces and call.input_extractor is None:  # of a function without parameters; clients read it as JSON
                out.append(events.ToolArgumentsDelta(self._id, call.call_id, "{}"))
            out.append(events.ToolCallDone(self._id, call.call_id))

    def _starts_another_call(self, call: _Call, part: chat_completions.ToolCall, function: chat_completions.Function) -> bool:
        """Whether `part` is not of the open call. Some servers give all calls the index 0, or none; then id and name must tell."""
        if part.index is not None and part.index != call.index:
            return True
        name = function.name
        if not name:
            return False
        if part.id and call.upstream_id:
            return part.id != call.upstream_id
        if not call.name:  # it comes late
            return False
        if call.argument_pieces:
            # Its name with every part of a call is as common as none of its calls told apart: only a whole call is over.
            return name != call.name or (bool(function.arguments) and _is_json("".join(call.argument_pieces)))
        return call.name in self._tools and name in self._tools and not name.startswith(call.name)

    def _emit_start(self, call: _Call, out: list[events.EngineEvent]) -> None:
        if call.call_id:
            return
        number = len(self._call_ids) + 1
        fresh = 0 < len(call.upstream_id) <= MAX_CALL_ID_CHARS and call.upstream_id not in self._call_ids
        call.call_id = call.upstream_id if fresh else f"call_{self._id.removeprefix('resp_')[:24]}{number}"
        self._call_ids.add(call.call_id)
        tool = self._tools.get(call.name)
        is_custom = isinstance(tool, CustomTool)
        call.input_extractor = FreeTextExtractor() if is_custom else None
        name, namespace = (tool.name, tool.namespace) if tool is not None else (call.name, None)
        out.append(events.ToolCallStarted(self._id, call.call_id, name, custom=is_custom, namespace=namespace))

    def _emit_arguments(self, call: _Call, out: list[events.EngineEvent]) -> None:
        text, call.pending_arguments = call.pending_arguments, ""
        if call.input_extractor is not None:
            text = call.input_extractor.feed(text)
        if text:
            out.append(events.ToolArgumentsDelta(self._id, call.call_id, text))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _merge_name(name: str, piece: str, tools: Mapping[str, Tool]) -> str:
    """A name that comes in pieces, or again with each piece, or longer each time; what was offered tells which."""
    if not name or name + piece in tools:
        return name + piece
    if piece in tools or name in tools:
        return piece if piece in tools else name
    return name + piece


_INPUT_START = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_STRING_BODY = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class FreeTextExtractor:
    """The text in `{"input": "…"}` while that is still being written; what is no such object is passed on as it is."""

    def __init__(self) -> None:
        self._buffer = ""
        self._is_in_text = False
        self._is_over = False

    def feed(self, piece: str) -> str:
        """More of the JSON: more of the text, as far as it is certain."""
        self._buffer += piece
        if self._is_over:
            return ""
        if not self._is_in_text:
            opening = _INPUT_START.match(self._buffer)
            if opening is None:
                return ""
            self._is_in_text = True
            self._buffer = self._buffer[opening.end() :]
        return self._decode_available()

    def end(self) -> str:
        """What is left: of a text that was never closed, or all of what was no such object."""
        if self._is_in_text:
            return "" if self._is_over else self._buffer
        try:
            whole = json.loads(self._buffer, strict=False)
        except (ValueError, RecursionError):
            return self._buffer
        only = list(whole.values()) if isinstance(whole, dict) else [whole]
        text = whole.get("input") if isinstance(whole, dict) and "input" in whole else only[0] if len(only) == 1 else None
        return _replace_lone_surrogates(text) if isinstance(text, str) else self._buffer

    def _decode_available(self) -> str:
        body = _STRING_BODY.match(self._buffer)
        assert body is not None
        end = body.end()
        self._is_over = end < len(self._buffer) and self._buffer[end] == '"'
        certain = self._buffer[:end]
        if not self._is_over and (half := _HIGH_SURROGATE.search(certain)):
            certain = certain[: half.start()]
        self._buffer = self._buffer[len(certain) :]
        try:
            return _replace_lone_surrogates(json.loads(f'"{certain}"', strict=False))
        except ValueError:  # an escape that JSON does not have, such as `\d`
            return certain


def _replace_lone_surrogates(text: str) -> str:
    """The text with halves of surrogate pairs, which no UTF-8 has, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
