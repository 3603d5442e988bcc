"""
The process that reads one file, and ends.

A file is whatever a client sends, and some parsers are native code. So each file has a process of its own, which sees no
other file, and before it looks at the first byte gives up what it doesn't need: it can open no file and no socket, write
no file, start no process where its user is not root, and has limits of memory and of processor time.

Standard input is a socket. The request is a line of JSON (`ParseTask`) and the file; the answer a line of JSON
(`ParseAnswer`) and the text in UTF-8.
"""

import contextlib
import importlib
import mmap
import resource
import sys
from collections.abc import Callable
from typing import Literal

import msgspec

from antiphon.subprocesses import end_with_parent, take_parent_socket
from antiphon.tools.file_search.formats import Format, UnreadableFileError, text_of, tidy

_MODULES: dict[Format, tuple[str, str]] = {
    "pdf": ("antiphon.tools.file_search.pdf", "read_pdf"),
    "docx": ("antiphon.tools.file_search.office", "read_docx"),
    "pptx": ("antiphon.tools.file_search.office", "read_pptx"),
    "html": ("antiphon.tools.file_search.web_page", "read_html"),
}
"""What reads a format; a module is loaded only where it is used, as each has a library of its own."""

_RESERVE_BYTES = 8 << 20
"""Memory that is kept back and released when the rest is used up: the answer that says so needs some."""


class ParseTask(msgspec.Struct, frozen=True, kw_only=True):
    """
    A file to read, of `size_bytes`, and the limits.

    Attributes:
        memory_bytes: of all memory of the process, with its code.
        cpu_s: seconds of a processor.
    """

    format: Format
    size_bytes: int
    memory_bytes: int
    cpu_s: int


class ParseAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result: a text of `size_bytes`, or an error."""

    size_bytes: int = 0
    code: Literal["unsupported_file", "invalid_file", "server_error"] | None = None
    message: str = ""


def read(format: Format, content: bytes) -> str:
    """
    The text of a file.

    Raises:
        UnreadableFileError: it has none that can be read.
    """
    return tidy(_reader(format)(content))


def main() -> None:
    """Read the one file that comes through the socket, and exit."""
    end_with_parent()
    with take_parent_socket() as link, link.makefile("rwb") as stream:
        task = msgspec.json.decode(stream.readline(), type=ParseTask)
        _reader(task.format)  # Loads the module and its library while files can be opened.
        reserve = mmap.mmap(-1, _RESERVE_BYTES)
        limit_process(task)
        text = b""
        try:
            text = read(task.format, stream.read(task.size_bytes)).encode()
            answer = ParseAnswer(size_bytes=len(text))
        except UnreadableFileError as error:
            answer = ParseAnswer(code=error.code, message=error.message)
        except MemoryError:
            reserve.close()
            answer = ParseAnswer(code="invalid_file", message="The file takes too much memory to be read.")
        except RecursionError:
            answer = ParseAnswer(code="invalid_file", message="The file is nested too deeply.")
        stream.write(msgspec.json.encode(answer) + b"\n" + text)
    sys.exit(0)


def _reader(format: Format) -> Callable[[bytes], str]:
    if format == "text":
        return text_of
    module, name = _MODULES[format]
    function = getattr(importlib.import_module(module), name)
    return (lambda content: function(text_of(content))) if format == "html" else function


def limit_process(task: ParseTask) -> None:
    """Give up, for good, what reading a file doesn't need."""
    limits = {
        resource.RLIMIT_AS: task.memory_bytes,
        resource.RLIMIT_CPU: task.cpu_s,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 0,  # What is open stays open; nothing more can be opened, so there is no network either.
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):  # A limit is lower already.
            # setrlimit(2): at the soft limit comes SIGXCPU, at the hard one SIGKILL, which also means that memory is short.
            resource.setrlimit(kind, (limit, limit + 1 if kind == resource.RLIMIT_CPU else limit))


if __name__ == "__main__":
    main()
