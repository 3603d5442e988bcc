"""
The line of every key in a TOML text, for messages about its value.

No parser we could use says where a value stands: `tomllib` and `tomlkit` give none for a valid text, and tree-sitter
would be two native packages. As `tomllib` has read the text before, only what separates values must be understood here.

Source: TOML 1.0.
"""

import itertools
import re
import tomllib
from collections.abc import Mapping

KeyPath = tuple[str | int, ...]
"""Keys of tables and indices of arrays, from the outermost."""

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|' r"'[^']*'|[\w-]+")
_SCALAR = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # One or two quotes before the last three belong to the text.
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'"
    r"|[^,\]}#\n]+",  # A number, a word or a time, which may contain a space.
    re.DOTALL,
)


def format_key(path: KeyPath) -> str:
    """A path as in messages: `models[0].engine`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def find_lines(text: str) -> dict[KeyPath, int]:
    """
    The line, from 1, of every key, table and element of an array.

    A table that stands in parts has the line of its own header, or else of its first part.

    Args:
        text: valid TOML.
    """
    return _Scanner(text).scan()


def nearest_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of a value, or of the table that should have it."""
    return next((lines[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in lines), 1)


class _Scanner:
    """Scans a valid text once, and records the line of every key."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1
        self._line_position = 0  # Lines are counted up to here.
        self._lines: dict[KeyPath, int] = {}
        self._table_counts: dict[KeyPath, int] = {}  # Of arrays of tables.

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while True:
            self._take(_BLANK)
            if self._position == len(self._text):
                return self._lines
            if self._text[self._position] == "[":
                table = self._scan_header()
            else:
                self._scan_pair(table)

    def _scan_header(self) -> KeyPath:
        """Read a table's header; returns the path of the table."""
        line = self._current_line()
        brackets = 2 if self._text.startswith("[[", self._position) else 1
        self._position += brackets
        path: KeyPath = ()
        keys = self._scan_key()
        self._position += brackets
        for number, key in enumerate(keys, start=1):
            path = (*path, key)
            self._lines.setdefault(path, line)
            if brackets == 2 and number == len(keys):
                self._table_counts[path] = self._table_counts.get(path, 0) + 1
            # A header within an array of tables belongs to the table that came last.
            if path in self._table_counts:
                path = (*path, self._table_counts[path] - 1)
        self._lines[path] = line
        return path

    def _scan_pair(self, table: KeyPath) -> None:
        line = self._current_line()
        path = table
        for key in self._scan_key():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._position += 1  # The equals sign.
        self._take(_SPACE)
        self._scan_value(path)

    def _scan_key(self) -> list[str]:
        """The parts of a key, with the spaces around it."""
        keys = []
        while True:
            self._take(_SPACE)
            key = self._take(_KEY)
            # A quoted key may have escapes, which tomllib knows.
            keys.append(tomllib.loads(f"key = {key}")["key"] if key[0] in "\"'" else key)
            self._take(_SPACE)
            if not self._skips("."):
                return keys

    def _scan_value(self, path: KeyPath) -> None:
        if self._skips("["):
            for index in itertools.count():
                self._take(_BLANK)
                if self._skips("]"):
                    return
                self._lines[*path, index] = self._current_line()
                self._scan_value((*path, index))
                self._take(_BLANK)
                self._skips(",")
        elif self._skips("{"):
            while True:
                self._take(_BLANK)
                if self._skips("}"):
                    return
                self._scan_pair(path)
                self._take(_BLANK)
                self._skips(",")
        else:
            self._take(_SCALAR)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        assert match is not None, f"not TOML at character {self._position}"
        self._position = match.end()
        return match[0]

    def _skips(self, sign: str) -> bool:
        is_there = self._text.startswith(sign, self._position)
        self._position += is_there
        return is_there

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._line_position, self._position)
        self._line_position = self._position
        return self._line
