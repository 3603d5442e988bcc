"""
Standard error as JSON lines, also what native libraries, child processes and the interpreter write.

The process's file descriptor 2 becomes a pipe, which its children inherit. A thread reads it, and writes each line to
the former standard error: what is a JSON object already as it is, everything else as the message of one. The lines of a
traceback become one object.
"""

import atexit
import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

import msgspec

MAX_LINE_BYTES = 64 << 10
"""Longer lines are cut into several."""

MAX_TRACEBACK_LINES = 1000

_READ_BYTES = 1 << 16
_DRAIN_S = 1.0
"""How long the last lines may take at the end; children that still live keep the pipe open."""

_STDERR = 2
_TRACEBACK = re.compile(r"(\s*\+ )?.*Traceback \(most recent call last\):$")


class LineGrouper:
    """Cuts bytes into messages: lines, or the whole of a traceback."""

    def __init__(self) -> None:
        self._rest = b""
        self._traceback: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The messages that are complete now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._take(line)
        while len(self._rest) > MAX_LINE_BYTES:
            line, self._rest = self._rest[:MAX_LINE_BYTES], self._rest[MAX_LINE_BYTES:]
            yield from self._take(line)

    def end(self) -> Iterator[str]:
        """What is left."""
        if self._rest:
            yield from self._take(self._rest)
        yield from self._end_traceback()

    def _take(self, raw_line: bytes) -> Iterator[str]:
        line = raw_line.decode(errors="replace").rstrip()
        if self._traceback and line[:1] in (" ", "\t") and len(self._traceback) < MAX_TRACEBACK_LINES:
            self._traceback.append(line)
            return
        if self._traceback and line and not self._is_group and not line.startswith("{"):  # the exception itself
            self._traceback.append(line)
            yield from self._end_traceback()
            return
        yield from self._end_traceback()
        if _TRACEBACK.match(line):
            self._traceback = [line]
        elif line:
            yield line

    @property
    def _is_group(self) -> bool:
        """Whether it is the traceback of an exception group, whose lines are all indented."""
        return self._traceback[0][:1].isspace()

    def _end_traceback(self) -> Iterator[str]:
        lines, self._traceback = self._traceback, []
        if lines:
            yield "\n".join(lines)


class StderrCapture:
    """
    Takes standard error over, until `close` or the end of the process.

    Args:
        log: writes a message that is no JSON object.

    Attributes:
        file: the former standard error.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        sys.stderr.flush()
        self.file = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="replace")
        reader, writer = os.pipe()
        os.dup2(writer, _STDERR)
        os.close(writer)
        self._thread = threading.Thread(target=self._run, args=(reader,), name="stderr", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is left, and give standard error back; idempotent."""
        atexit.unregister(self.close)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        with contextlib.suppress(ValueError, OSError):
            os.dup2(self.file.fileno(), _STDERR)
        self._thread.join(_DRAIN_S)

    def _run(self, reader: int) -> None:
        grouper = LineGrouper()
        with io.FileIO(reader) as pipe:
            while piece := pipe.read(_READ_BYTES):
                for message in grouper.feed(piece):
                    self._write(message)
        for message in grouper.end():
            self._write(message)

    def _write(self, message: str) -> None:
        if not _is_json_object(message):
            self._log(message)
            return
        with contextlib.suppress(OSError, ValueError):
            self.file.write(f"{message}\n")
            self.file.flush()


def _is_json_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False
