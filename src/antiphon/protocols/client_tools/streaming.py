"""
Texts within a call's arguments as they are written: a shell's commands and a patch's diff are shown before the call is
complete, as soon as it is sure what they are.
"""

import json
import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from antiphon.wire.codec.types import JsonDict
from antiphon.wire.responses import hosted_calls as calls

_STRUCTURE = re.compile(r'[{}\[\],:"]')
_STRING_BODY = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class TextPiece(Struct, frozen=True):
    """
    Some of a text in an object: its `begin`, more of it, or its `end`, which has it whole.

    Attributes:
        index: of the text in a list; None for one that is the member itself.
    """

    kind: Literal["begin", "more", "end"]
    key: str
    index: int | None
    text: str = ""


def whole_text(key: str, index: int | None, text: str) -> tuple[TextPiece, ...]:
    """The three pieces of a text that comes whole."""
    return TextPiece("begin", key, index), TextPiece("more", key, index, text), TextPiece("end", key, index, text)


class MemberTextReader:
    """Reads the texts that are members of a JSON object, or in lists that are, from JSON that comes in pieces."""

    def __init__(self) -> None:
        self._buffer = ""
        self._depth = 0
        self._is_list = False  # Whether what is open at the second level is a list.
        self._is_key_next = False
        self._key = ""
        self._index = 0
        self._chunks: list[str] | None = None  # Of the text that is open.

    def feed(self, text: str) -> Iterator[TextPiece]:
        """Read more of the JSON. Invalid JSON gives some pieces or none: it is found out when the arguments are read whole."""
        self._buffer += text
        while self._buffer:
            if self._chunks is None:
                if (piece := self._to_next_text()) is not None:
                    yield piece
                elif self._chunks is None:
                    return
            else:
                before = len(self._buffer)
                yield from self._text(self._chunks)
                if len(self._buffer) == before:
                    return

    @property
    def _is_told(self) -> bool:
        return not self._is_key_next and (self._depth == 1 or (self._depth == 2 and self._is_list))

    def _piece(self, kind: Literal["begin", "more", "end"], text: str = "") -> TextPiece:
        return TextPiece(kind, self._key, self._index if self._depth == 2 else None, text)

    def _to_next_text(self) -> TextPiece | None:
        """Read up to the beginning of a text; None if the text is not reported, or has not begun yet."""
        for match in _STRUCTURE.finditer(self._buffer):
            mark = match[0]
            if mark == '"':
                self._chunks, self._buffer = [], self._buffer[match.end() :]
                return self._piece("begin") if self._is_told else None
            self._enter(mark)
        self._buffer = ""
        return None

    def _enter(self, mark: str) -> None:
        if mark in "{[":
            self._depth += 1
            if self._depth == 2:
                self._is_list, self._index = mark == "[", 0
            self._is_key_next = self._depth == 1
        elif mark in "}]":
            self._depth -= 1
        elif mark == ",":
            self._is_key_next = self._depth == 1
            self._index += self._depth == 2
        else:
            self._is_key_next = False

    def _text(self, chunks: list[str]) -> Iterator[TextPiece]:
        body = _STRING_BODY.match(self._buffer)
        end = body.end() if body is not None else 0
        is_over = self._buffer[end : end + 1] == '"'
        complete = self._buffer[:end]
        # Half of a surrogate pair waits for the other half: alone it is no character.
        if not is_over and (half := _HIGH_SURROGATE.search(complete)):
            complete = complete[: half.start()]
        self._buffer = self._buffer[len(complete) + is_over :]
        if text := _decode(complete):
            chunks.append(text)
            if self._is_told:
                yield self._piece("more", text)
        if is_over:
            whole, self._chunks = "".join(chunks), None
            if self._is_told:
                yield self._piece("end", whole)
            elif self._is_key_next:
                self._key = whole


def _decode(body: str) -> str:
    try:
        text: str = json.loads(f'"{body}"', strict=False)
    except ValueError:  # An escape that JSON does not have.
        return body
    # A lone surrogate could not be sent as UTF-8.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class CommandStream:
    """
    The commands of a shell's call.

    Attributes:
        is_open: whether it is sure that this is such a call.
        pieces: those that are not shown yet.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.pieces: list[TextPiece] = []
        self._reader = MemberTextReader()
        self._commands: list[list[str]] = []

    def feed(self, text: str) -> None:
        """Read more of the arguments; texts in them are appended to `pieces`."""
        for piece in self._reader.feed(text):
            if piece.key == "commands" and piece.index is not None:
                self.is_open = True
                self.pieces.append(piece)
                if piece.kind == "begin":
                    self._commands.append([])
                elif piece.kind == "more":
                    self._commands[-1].append(piece.text)

    @property
    def fields(self) -> JsonDict:
        """The fields of the item with what is known of it."""
        return {
            "action": calls.ShellAction(commands=["".join(chunks) for chunks in self._commands], max_output_length=None, timeout_ms=None)
        }


class DiffStream:
    """The diff of a patch, whose other fields come before it; attributes as in `CommandStream`."""

    def __init__(self) -> None:
        self.is_open = False
        self.pieces: list[TextPiece] = []
        self._reader = MemberTextReader()
        self._head: dict[str, str] = {}
        self._diff: list[str] = []

    def feed(self, text: str) -> None:
        """Read more of the arguments; texts in them are appended to `pieces`."""
        for piece in self._reader.feed(text):
            if piece.key == "diff" and piece.index is None:
                # Only then is it known which file the diff is for; a diff that comes first is shown at the end.
                if piece.kind == "begin" and self._head.get("type") in ("create_file", "update_file") and "path" in self._head:
                    self.is_open = True
                if self.is_open:
                    self.pieces.append(piece)
                    self._diff += [piece.text] if piece.kind == "more" else []
            elif piece.kind == "end" and piece.index is None:
                self._head[piece.key] = piece.text

    @property
    def fields(self) -> JsonDict:
        """The fields of the item with what is known of it."""
        kind = calls.CreateFile if self._head.get("type") == "create_file" else calls.UpdateFile
        return {"operation": kind(path=self._head.get("path", ""), diff="".join(self._diff))}


ArgumentStream = CommandStream | DiffStream
