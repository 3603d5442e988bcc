"""A partial download, which survives a crash, a lost connection or a full disk."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

BytesCallback = Callable[[int], None]
"""Called with the number of bytes of the file that are here by now."""


class SourceUnavailable(Exception):
    """One source can't provide the file, another may; the message is the end of a sentence."""


class PartialFile:
    """
    The first bytes of a file, beside its final path.

    Attributes:
        path: `<file>.part`; a journal beside it lists its complete pieces.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = target.with_name(target.name + ".part")
        self._journal = target.with_name(target.name + ".part.json")

    @property
    def size_bytes(self) -> int:
        """Its size; 0 where nothing was downloaded yet."""
        return self.path.stat().st_size if self.path.exists() else 0

    def open_for_append(self) -> BinaryIO:
        """Open it to write more at its end; creates it where it is missing."""
        return self.path.open("ab")

    def truncate(self, size_bytes: int) -> None:
        """Cut it after `size_bytes`; a shorter file stays as it is."""
        if self.size_bytes > size_bytes:
            os.truncate(self.path, size_bytes)

    def count_complete(self, pieces: Sequence[str]) -> tuple[int, int]:
        """
        How many of `pieces`, from the first on, are complete, and how many bytes they have.

        Args:
            pieces: the name of each piece, in the order of the file.
        """
        journal = self._complete_pieces()
        count = 0
        while count < len(journal) and count < len(pieces) and journal[count][0] == pieces[count]:
            count += 1
        size_bytes = journal[count - 1][1] if count else 0
        return (count, size_bytes) if size_bytes <= self.size_bytes else (0, 0)

    def resume(self, pieces: Sequence[str]) -> int:
        """Cut the file after its last complete piece; returns how many are, as `count_complete`."""
        count, size_bytes = self.count_complete(pieces)
        self.truncate(size_bytes)
        self._write_journal(self._complete_pieces()[:count])
        return count

    def mark_complete(self, piece: str) -> None:
        """Note that the piece just appended is complete."""
        self._write_journal([*self._complete_pieces(), (piece, self.size_bytes)])

    def finish(self) -> None:
        """Move the complete file to its final path, atomically."""
        # Before the move: after a power cut, the final name must not stand for bytes that never reached the disk.
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(self._target)
        self._journal.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete it with its journal."""
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
