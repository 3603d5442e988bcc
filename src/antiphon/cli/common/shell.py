"""What a command sees of the process, and how it prints."""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError
from antiphon.wire.codec.types import encode

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 80

_CONTROL_REPLACEMENTS = {code: " " if chr(code).isspace() else "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""Replaces line breaks and terminal control codes: cells may hold text from strangers."""

_TERMINAL_REPLACEMENTS = _CONTROL_REPLACEMENTS | {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}
"""The same for text of several lines. By such codes a model or a server could write into the terminal's title or clipboard."""

_GAP = "  "

_MIN_COLUMNS = 40
"""A narrower last column is harder to read than one on a line of its own."""


class UsageError(ServerError):
    """The arguments or the configuration are wrong; the program exits with code 2."""


class Shell(Struct, frozen=True, eq=False, kw_only=True):
    """
    The process around a command; tests pass another.

    Attributes:
        cwd: absolute.
        stdout: for results; everything else goes to `stderr`, so that a pipe carries results only.
        name: what to type to run this program here.
    """

    environ: Mapping[str, str]
    cwd: Path
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    name: str = "antiphon"

    def say(self, text: str = "", end: str = "\n") -> None:
        """Print a part of the result, at once; on a terminal without its control codes."""
        if self.stdout.isatty():
            text = text.translate(_TERMINAL_REPLACEMENTS)
        print(text, end=end, file=self.stdout, flush=True)

    def say_json(self, value: object, indent: int = 2) -> None:
        """Print the result as JSON; with `indent` 0 on one line."""
        text = encode(value)
        self.say((msgspec.json.format(text, indent=indent) if indent else text).decode())

    def say_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows with aligned columns: wrapped on a terminal, one line a row for programs."""
        for line in align_columns(rows, self.columns if self.stdout.isatty() else None):
            self.say(line)

    def note(self, text: str) -> None:
        """Print progress or an error, on stderr."""
        for line in text.splitlines():
            print(f"antiphon: {line.translate(_CONTROL_REPLACEMENTS)}", file=self.stderr, flush=True)

    @property
    def is_interactive(self) -> bool:
        """Whether the notes go to a terminal that can draw progress bars."""
        return self.stderr.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """The width of the output: `COLUMNS`, or the terminal's. One that does not know its width says 0."""
        if self._columns_override is not None:
            return self._columns_override
        terminal_columns = os.get_terminal_size(self.stdout.fileno()).columns if self.stdout.isatty() else 0
        return terminal_columns or _PIPE_COLUMNS

    @property
    def _columns_override(self) -> int | None:
        columns = self.environ.get("COLUMNS", "")
        return int(columns) if columns.isdigit() and int(columns) else None

    def console(self, stream: TextIO | None = None) -> "Console":
        """A rich console on `stream`, by default stdout; without colour if `NO_COLOR` is set."""
        from rich.console import Console  # noqa: PLC0415 - as slow to load as a whole short command; most never draw

        target = stream or self.stdout
        width = self._columns_override or (None if target.isatty() else _PIPE_COLUMNS)
        return Console(file=target, width=width, no_color=bool(self.environ.get("NO_COLOR")) or None, highlight=False)


def align_columns(rows: Sequence[Sequence[str]], columns: int | None = None) -> Iterable[str]:
    """
    Lines of cells, each column as wide as its widest cell.

    Args:
        columns: the width to wrap the last cell at; None for no wrapping. It goes below the others if there is no room
            beside them.
    """
    plain = [[cell.translate(_CONTROL_REPLACEMENTS) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    indent = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    for row in plain:
        front = _GAP.join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False))
        if columns is None or indent + widths[-1] <= columns:
            yield f"{front}{_GAP if front else ''}{row[-1]}".rstrip()
        elif columns - indent >= _MIN_COLUMNS:
            yield from _wrap_cell(row[-1], columns, f"{front}{_GAP}", " " * indent)
        else:
            yield front.rstrip()
            yield from _wrap_cell(row[-1], columns, _GAP, _GAP)


def _wrap_cell(text: str, columns: int, first: str, after: str) -> list[str]:
    # Paths and addresses stay whole, to be copied.
    lines = textwrap.wrap(text, columns, initial_indent=first, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    return lines or [first.rstrip()]


def format_time(at: float | None, *, seconds: bool = False) -> str:
    """A Unix time in UTC, to the minute or the second; `-` for None."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M") if at is not None else "-"


def format_size(size_bytes: int) -> str:
    """A size in megabytes."""
    return f"{size_bytes / 1e6:.0f} MB"
