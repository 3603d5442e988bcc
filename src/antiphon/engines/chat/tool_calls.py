"""
The tool calls of a streamed chat completion, from the many forms in which servers stream `tool_calls`.

A call starts for the client once its arguments do: by then its id and name have come, if they ever will. It is done
when the next one begins and its arguments are complete JSON. Where they are not, the server may interleave its calls,
and continue this one later.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from antiphon.engine_api import events
from antiphon.engine_api.options import CustomTool, Tool
from antiphon.errors import invalid_tool_call
from antiphon.wire.upstream import chat_completions

MAX_CALL_ID_CHARS = 64
"""The longest `call_id` that the Responses API accepts back."""

MAX_CALLS = 2048
"""In one response; calls that are not yet complete wait for each other, so these must not become many."""


class CallIds:
    """The call ids of one response: the upstream's where a client can send them back, else new ones."""

    def __init__(self, response_id: str) -> None:
        self._prefix = f"call_{response_id.removeprefix('resp_')[:24]}"
        self._used_ids: set[str] = set()

    def take(self, upstream_id: str) -> str:
        """An id for the next call, unique in the response."""
        is_usable = 0 < len(upstream_id) <= MAX_CALL_ID_CHARS and upstream_id not in self._used_ids
        call_id = upstream_id if is_usable else f"{self._prefix}{len(self._used_ids) + 1}"
        self._used_ids.add(call_id)
        return call_id


class _Call:
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
    The calls of one response.

    Args:
        id: of the response.
        tools: by the names that the server was sent.
    """

    def __init__(self, id: str, tools: Mapping[str, Tool]) -> None:
        self._id = id
        self._tools = tools
        self._open_call: _Call | None = None
        self._suspended_calls: dict[int, _Call] = {}
        self._closed_indexes: set[int] = set()
        self._call_ids = CallIds(id)
        self._call_count = 0

    def add(self, part: chat_completions.ToolCall, out: list[events.EngineEvent]) -> None:
        """
        Read part of a call, and append its events to `out`.

        Raises:
            UpstreamError: it continues a call that was done.
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
        End all calls that are open; they are done if `is_complete`, else cut off.

        Raises:
            UpstreamError: one of them never got a name.
        """
        calls = [*self._suspended_calls.values(), *([] if self._open_call is None else [self._open_call])]
        self._suspended_calls.clear()
        self._open_call = None
        for call in calls:
            self._finish_call(call, out, is_complete=is_complete)

    def _switch_to(self, part: chat_completions.ToolCall, function: chat_completions.Function, out: list[events.EngineEvent]) -> _Call:
        """
        The call of `part`, from now on the open one. The call open before is done if its arguments are complete, else
        suspended.
        """
        call = self._open_call
        if call is not None:
            if call.index is None or part.index in (None, call.index) or _is_json("".join(call.argument_pieces)):
                self._finish_call(call, out)
            else:
                self._suspended_calls[call.index] = call
                if call.name:
                    self._emit_start(call, out)  # calls start in the order in which they came
        call = None if part.index is None else self._suspended_calls.pop(part.index, None)
        if call is not None and part.id and call.upstream_id and part.id != call.upstream_id:
            self._finish_call(call, out)
            call = None
        if call is None and part.index in self._closed_indexes and not part.id and not function.name:
            raise invalid_tool_call(f"number {part.index} continued after its end")
        if call is None:
            self._call_count += 1
            if self._call_count > MAX_CALLS:
                raise invalid_tool_call(f"there are more than {MAX_CALLS} in one response")
        self._open_call = call or _Call(part.index)
        return self._open_call

    def _finish_call(self, call: _Call, out: list[events.EngineEvent], *, is_complete: bool = True) -> None:
        if call.index is not None:
            self._closed_indexes.add(call.index)
        if not call.name:
            if call.argument_pieces and is_complete:
                raise invalid_tool_call("it has no name")
            return  # an empty call
        self._emit_start(call, out)
        if call.input_extractor is not None and (rest := call.input_extractor.end()):
            out.append(events.ToolArgumentsDelta(self._id, call.call_id, rest))
        if is_complete:
            # Of a function without parameters; clients parse the arguments as JSON.
            if not call.argument_pieces and call.input_extractor is None:
                out.append(events.ToolArgumentsDelta(self._id, call.call_id, "{}"))
            out.append(events.ToolCallDone(self._id, call.call_id))

    def _starts_another_call(self, call: _Call, part: chat_completions.ToolCall, function: chat_completions.Function) -> bool:
        """
        Whether `part` belongs to another call. Some servers send index 0 for all calls, or none; then id and name
        decide.
        """
        if part.index is not None and part.index != call.index:
            return True
        name = function.name
        if not name:
            return False
        if part.id and call.upstream_id:
            return part.id != call.upstream_id
        if not call.name:  # this is its name, late
            return False
        if call.argument_pieces:
            # Some servers repeat the name with every part, others start the next call of the same function: complete
            # arguments decide.
            return name != call.name or (bool(function.arguments) and _is_json("".join(call.argument_pieces)))
        return call.name in self._tools and name in self._tools and not name.startswith(call.name)

    def _emit_start(self, call: _Call, out: list[events.EngineEvent]) -> None:
        if call.call_id:
            return
        call.call_id = self._call_ids.take(call.upstream_id)
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
    """
    A name that comes in pieces, or repeated with each part, or longer each time; the names of the tools tell which.
    """
    if not name or name + piece in tools:
        return name + piece
    if piece in tools or name in tools:
        return piece if piece in tools else name
    return name + piece


_INPUT_START = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_STRING_BODY = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class FreeTextExtractor:
    """The text in `{"input": "…"}` as it streams. Anything that is no such object is passed on unchanged at the end."""

    def __init__(self) -> None:
        self._buffer = ""
        self._is_in_text = False
        self._is_over = False

    def feed(self, piece: str) -> str:
        """More of the JSON; returns more of the text, as far as it can be decoded."""
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
        """What is left: the rest of a text that was never closed, or all of something that is no such object."""
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
        complete = self._buffer[:end]
        if not self._is_over and (half := _HIGH_SURROGATE.search(complete)):
            complete = complete[: half.start()]
        self._buffer = self._buffer[len(complete) :]
        try:
            return _replace_lone_surrogates(json.loads(f'"{complete}"', strict=False))
        except ValueError:  # an escape that JSON does not have, such as `\d`
            return complete


def _replace_lone_surrogates(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which UTF-8 can't encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
