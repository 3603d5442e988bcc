"""What a verb has of the outside: the environment, the folder it runs in, and where it reads and writes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from msgspec import Struct

from antiphon.errors import OurFault

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 80

_PLAIN = {code: " " if chr(code).isspace() else "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""What stands for characters that break a line, or that a terminal obeys: cells have what strangers said."""


class UsageMistake(OurFault):
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
        """Print rows with their columns aligned."""
        for line in aligned(rows):
            self.say(line)

    def note(self, text: str) -> None:
        """Print what is going on, or going wrong."""
        for line in text.splitlines():
            print(f"antiphon: {line}", file=self.stderr, flush=True)

    @property
    def watched(self) -> bool:
        """Whether a person at a terminal sees the notes, so that a line may be drawn over."""
        return self.stderr.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """How wide a line of the answer may be: as wide as the terminal, or as `COLUMNS` says."""
        return self._wanted_columns or (os.get_terminal_size(self.stdout.fileno()).columns if self.stdout.isatty() else _PIPE_COLUMNS)

    @property
    def _wanted_columns(self) -> int | None:
        columns = self.environ.get("COLUMNS", "")
        return int(columns) if columns.isdigit() and int(columns) else None

    def console(self, stream: TextIO | None = None) -> "Console":
        """A rich console on the standard output, or on the `stream` given; without colour where `NO_COLOR` asks for none."""
        from rich.console import Console  # noqa: PLC0415 - as slow to load as the rest of a short verb; most never draw

        target = stream or self.stdout
        width = self._wanted_columns or (None if target.isatty() else _PIPE_COLUMNS)
        return Console(file=target, width=width, no_color=bool(self.environ.get("NO_COLOR")) or None, highlight=False)


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines of cells, each column as wide as its widest cell, two spaces apart; the last is as long as it likes."""
    plain = [[cell.translate(_PLAIN) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
