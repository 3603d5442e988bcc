"""
The tool calls in a streamed chat completion, from whatever servers make of `tool_calls`.

A call begins to be told once its arguments do: by then its id and its name have come, if they ever will. It is told to be complete
when the next one begins and its arguments are whole. Where they are not, the server may mix its calls, and go on with this one later.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from antiphon.engine_api import events as talk_events
from antiphon.engine_api.options import CustomTool, Tool
from antiphon.errors import UpstreamTrouble
from antiphon.wire.upstream import chat_completions as chat

LONGEST_ID = 64
"""The longest id of a call that the Responses API takes back."""


class _Call:
    """One call as it comes."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.given_id = ""
        self.call_id = ""
        self.name = ""
        self.said: list[str] = []
        self.untold = ""
        self.unwrap: FreeText | None = None


class Calls:
    """
    The calls of one answer.

    Args:
        id: of the response.
        offered: the tools by the names that the server was given.
    """

    def __init__(self, id: str, offered: Mapping[str, Tool]) -> None:
        self._id = id
        self._offered = offered
        self._open: _Call | None = None
        self._aside: dict[int, _Call] = {}
        self._closed: set[int] = set()
        self._call_ids: set[str] = set()

    def take(self, part: chat.ToolCall, words: list[talk_events.FromEngine]) -> None:
        """
        Part of a call, its words added to `words`.

        Raises:
            UpstreamTrouble: it goes on with a call that was over.
        """
        function = part.function or chat.Function()
        call = self._open
        if call is None or self._is_another(call, part, function):
            call = self._turn_to(part, function, words)
        call.given_id = call.given_id or part.id or ""
        if function.name and not call.call_id:
            call.name = _whole_name(call.name, function.name, self._offered)
        text = function.arguments
        if isinstance(text, dict):
            text = msgspec.json.encode(text).decode()
        if text:
            call.said.append(text)
            call.untold += text
        if call.untold and call.name:
            self._announce(call, words)
            self._argue(call, words)

    def close(self, words: list[talk_events.FromEngine], *, is_whole: bool = True) -> None:
        """
        No more of any call comes; with `is_whole` they are complete.

        Raises:
            UpstreamTrouble: one of them was never named.
        """
        calls = [*self._aside.values(), *([] if self._open is None else [self._open])]
        self._aside.clear()
        self._open = None
        for call in calls:
            self._end(call, words, is_whole=is_whole)

    def _turn_to(self, part: chat.ToolCall, function: chat.Function, words: list[talk_events.FromEngine]) -> _Call:
        """The call that `part` is of, which is the open one from now on; what was open is over, if all its arguments have come."""
        call = self._open
        if call is not None:
            if call.index is None or part.index in (None, call.index) or _is_json("".join(call.said)):
                self._end(call, words)
            else:
                self._aside[call.index] = call
                if call.name:
                    self._announce(call, words)  # in the order in which they began
        call = None if part.index is None else self._aside.pop(part.index, None)
        if call is not None and part.id and call.given_id and part.id != call.given_id:
            self._end(call, words)
            call = None
        if call is None and part.index in self._closed and not part.id and not function.name:
            raise UpstreamTrouble(f"The model server garbled a tool call: it went on with call {part.index} when that was over.")
        self._open = call or _Call(part.index)
        return self._open

    def _end(self, call: _Call, words: list[talk_events.FromEngine], *, is_whole: bool = True) -> None:
        if call.index is not None:
            self._closed.add(call.index)
        if not call.name:
            if call.said and is_whole:
                raise UpstreamTrouble("The model server garbled a tool call: it never named it.")
            return  # nothing was called
        self._announce(call, words)
        if call.unwrap is not None and (rest := call.unwrap.end()):
            words.append(talk_events.Arguments(self._id, call.call_id, rest))
        if is_whole:
            if not call.said and call.unwrap is None:  # of a function without parameters; clients read it as JSON
                words.append(talk_events.Arguments(self._id, call.call_id, "{}"))
            words.append(talk_events.Called(self._id, call.call_id))

    def _is_another(self, call: _Call, part: chat.ToolCall, function: chat.Function) -> bool:
        """Whether `part` is not of the open call. Some servers give all calls the index 0, or none; then id and name must tell."""
        if part.index is not None and part.index != call.index:
            return True
        name = function.name
        if not name:
            return False
        if part.id and call.given_id:
            return part.id != call.given_id
        if not call.name:  # it comes late
            return False
        if call.said:
            # Its name with every part of a call is as common as none of its calls told apart: only a whole call is over.
            return name != call.name or (bool(function.arguments) and _is_json("".join(call.said)))
        return call.name in self._offered and name in self._offered and not name.startswith(call.name)

    def _announce(self, call: _Call, words: list[talk_events.FromEngine]) -> None:
        if call.call_id:
            return
        number = len(self._call_ids) + 1
        fresh = 0 < len(call.given_id) <= LONGEST_ID and call.given_id not in self._call_ids
        call.call_id = call.given_id if fresh else f"call_{self._id.removeprefix('resp_')[:24]}{number}"
        self._call_ids.add(call.call_id)
        tool = self._offered.get(call.name)
        is_custom = isinstance(tool, CustomTool)
        call.unwrap = FreeText() if is_custom else None
        name, namespace = (tool.name, tool.namespace) if tool is not None else (call.name, None)
        words.append(talk_events.Calling(self._id, call.call_id, name, custom=is_custom, namespace=namespace))

    def _argue(self, call: _Call, words: list[talk_events.FromEngine]) -> None:
        text, call.untold = call.untold, ""
        if call.unwrap is not None:
            text = call.unwrap.feed(text)
        if text:
            words.append(talk_events.Arguments(self._id, call.call_id, text))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _whole_name(have: str, more: str, offered: Mapping[str, Tool]) -> str:
    """A name that comes in pieces, or again with each piece, or longer each time; what was offered tells which."""
    if not have or have + more in offered:
        return have + more
    if more in offered or have in offered:
        return more if more in offered else have
    return have + more


_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_BODY = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class FreeText:
    """The text in `{"input": "…"}` while that is still being written; what is no such object is passed on as it is."""

    def __init__(self) -> None:
        self._come = ""
        self._is_inside = False
        self._is_over = False

    def feed(self, piece: str) -> str:
        """More of the JSON: more of the text, as far as it is certain."""
        self._come += piece
        if self._is_over:
            return ""
        if not self._is_inside:
            opening = _OPENING.match(self._come)
            if opening is None:
                return ""
            self._is_inside = True
            self._come = self._come[opening.end() :]
        return self._more()

    def end(self) -> str:
        """What is left: of a text that was never closed, or all of what was no such object."""
        if self._is_inside:
            return "" if self._is_over else self._come
        try:
            whole = json.loads(self._come, strict=False)
        except (ValueError, RecursionError):
            return self._come
        only = list(whole.values()) if isinstance(whole, dict) else [whole]
        text = whole.get("input") if isinstance(whole, dict) and "input" in whole else only[0] if len(only) == 1 else None
        return _sound(text) if isinstance(text, str) else self._come

    def _more(self) -> str:
        body = _BODY.match(self._come)
        assert body is not None
        end = body.end()
        self._is_over = end < len(self._come) and self._come[end] == '"'
        certain = self._come[:end]
        if not self._is_over and (half := _HIGH_SURROGATE.search(certain)):
            certain = certain[: half.start()]
        self._come = self._come[len(certain) :]
        try:
            return _sound(json.loads(f'"{certain}"', strict=False))
        except ValueError:  # an escape that JSON does not have, such as `\d`
            return certain


def _sound(text: str) -> str:
    """The text with halves of surrogate pairs, which no UTF-8 has, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
