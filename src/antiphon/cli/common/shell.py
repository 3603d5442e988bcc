"""What a verb has of the outside: the environment, the folder it runs in, and where it reads and writes."""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from msgspec import Struct

from antiphon.errors import ServerError

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 80

_CONTROL_REPLACEMENTS = {code: " " if chr(code).isspace() else "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""What stands for characters that break a line, or that a terminal obeys: cells have what strangers said."""


_GAP = "  "

_MIN_COLUMNS = 40
"""Narrower text is harder to read than text below."""


class UsageError(ServerError):
    """What was typed or configured can't be used as it stands; the program ends with code 2."""


class Shell(Struct, frozen=True, eq=False, kw_only=True):
    """
    The process around a verb, handed to it so that tests can give it another.

    Attributes:
        cwd: absolute.
        stdout: for what was asked; `stderr` takes everything else, so that a pipe carries answers alone.
        name: what to type for this program here.
    """

    environ: Mapping[str, str]
    cwd: Path
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    name: str = "antiphon"

    def say(self, text: str = "", end: str = "\n") -> None:
        """Print part of the answer, at once."""
        print(text, end=end, file=self.stdout, flush=True)

    def say_json(self, value: Any, indent: int = 2) -> None:
        """Print the answer as JSON; with `indent` 0 on one line."""
        encoded = msgspec.json.encode(value)
        self.say((msgspec.json.format(encoded, indent=indent) if indent else encoded).decode())

    def say_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows with their columns aligned: on a terminal no wider than it is, elsewhere a line each, as programs read them."""
        for line in align_columns(rows, self.columns if self.stdout.isatty() else None):
            self.say(line)

    def note(self, text: str) -> None:
        """Print what is going on, or going wrong."""
        for line in text.splitlines():
            print(f"antiphon: {line}", file=self.stderr, flush=True)

    @property
    def is_interactive(self) -> bool:
        """Whether a person at a terminal sees the notes, so that a line may be drawn over."""
        return self.stderr.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """How wide a line of the answer may be: as wide as the terminal, or as `COLUMNS` says."""
        return self._columns_override or (os.get_terminal_size(self.stdout.fileno()).columns if self.stdout.isatty() else _PIPE_COLUMNS)

    @property
    def _columns_override(self) -> int | None:
        columns = self.environ.get("COLUMNS", "")
        return int(columns) if columns.isdigit() and int(columns) else None

    def console(self, stream: TextIO | None = None) -> "Console":
        """A rich console on the standard output, or on the `stream` given; without colour where `NO_COLOR` asks for none."""
        from rich.console import Console  # noqa: PLC0415 - as slow to load as the rest of a short verb; most never draw

        target = stream or self.stdout
        width = self._columns_override or (None if target.isatty() else _PIPE_COLUMNS)
        return Console(file=target, width=width, no_color=bool(self.environ.get("NO_COLOR")) or None, highlight=False)


def align_columns(rows: Sequence[Sequence[str]], columns: int | None = None) -> Iterable[str]:
    """
    Lines of cells, each column as wide as its widest cell, two spaces apart.

    Args:
        columns: where the last cell is broken into several lines; below the others if there is no room beside them. Where None it is as
            long as it likes.
    """
    plain = [[cell.translate(_CONTROL_REPLACEMENTS) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    begin = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    for row in plain:
        beside = _GAP.join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False))
        if columns is None or begin + widths[-1] <= columns:
            yield f"{beside}{_GAP if beside else ''}{row[-1]}".rstrip()
        elif columns - begin >= _MIN_COLUMNS:
            yield from _wrap_cell(row[-1], columns, f"{beside}{_GAP}", " " * begin)
        else:
            yield beside.rstrip()
            yield from _wrap_cell(row[-1], columns, _GAP, _GAP)


def _wrap_cell(text: str, columns: int, first: str, after: str) -> list[str]:
    """The text in lines; a path or an address is not broken."""
    lines = textwrap.wrap(text, columns, initial_indent=first, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
    return lines or [first.rstrip()]
