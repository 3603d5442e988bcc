"""A file on its way: what of it is here already survives a crash, a lost connection, a full disk."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

BytesCallback = Callable[[int], None]
"""Takes the bytes of the file that are here by now."""


class SourceUnavailable(Exception):
    """One source can't give the file, and why, in words that finish a sentence; another may."""


class PartialFile:
    """
    The first bytes of a file, beside the place where it will be.

    Attributes:
        path: `<file>.part`; a journal beside it tells which pieces of it are whole.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = target.with_name(target.name + ".part")
        self._journal = target.with_name(target.name + ".part.json")

    @property
    def size_bytes(self) -> int:
        """How much is here."""
        return self.path.stat().st_size if self.path.exists() else 0

    def open_for_append(self) -> BinaryIO:
        """Open to write more at the end."""
        return self.path.open("ab")

    def truncate(self, size_bytes: int) -> None:
        """Keep only the first bytes."""
        if self.size_bytes > size_bytes:
            os.truncate(self.path, size_bytes)

    def resume(self, pieces: Sequence[str]) -> int:
        """
        How many of the pieces, from the first, are whole; what is here beyond them is cut off.

        Args:
            pieces: the name of each piece, in the order of the file.
        """
        whole = self._complete_pieces()
        count = 0
        while count < len(whole) and count < len(pieces) and whole[count][0] == pieces[count]:
            count += 1
        if count and self.size_bytes < whole[count - 1][1]:
            count = 0
        self.truncate(whole[count - 1][1] if count else 0)
        self._write_journal(whole[:count])
        return count

    def mark_complete(self, piece: str) -> None:
        """The piece just appended is complete."""
        self._write_journal([*self._complete_pieces(), (piece, self.size_bytes)])

    def finish(self) -> None:
        """It is complete: put it in its place, all at once."""
        with self.path.open("rb") as opened:
            os.fsync(opened.fileno())
        self.path.replace(self._target)
        self._journal.unlink(missing_ok=True)

    def discard(self) -> None:
        """Forget what is here."""
        self.path.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def _complete_pieces(self) -> list[tuple[str, int]]:
        try:
            return msgspec.json.decode(self._journal.read_bytes(), type=list[tuple[str, int]])
        except (OSError, msgspec.DecodeError):
            return []

    def _write_journal(self, pieces: Sequence[tuple[str, int]]) -> None:
        if pieces:
            self._journal.write_bytes(msgspec.json.encode(pieces))
        else:
            self._journal.unlink(missing_ok=True)
