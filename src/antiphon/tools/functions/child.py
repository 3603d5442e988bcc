"""
The process of an operator's functions: it loads them once, and forks for each call.

So a call costs no start, and ends alone: at its time, at its memory, or when it crashes. What a call changes in memory
is gone with it. Standard input is a socket to the server.

The process itself has one thread and runs no function, so that a fork is safe. Source: fork(2).
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from typing import NamedTuple

from antiphon.framing import FrameDecoder, pack_frame
from antiphon.subprocesses import end_with_parent, take_parent_socket
from antiphon.tools.functions.call import answer_call, limit_memory
from antiphon.tools.functions.load import LoadError, load_functions
from antiphon.tools.functions.messages import (
    FROM_PROCESS,
    TO_PROCESS,
    CallAnswered,
    CallFunction,
    CancelCall,
    FunctionsLoaded,
    LoadedFunction,
    LoadFailed,
    LoadFunctions,
    ToProcess,
)
from antiphon.tools.functions.signature import ToolFunction

READ_BYTES = 1 << 16


class _RunningCall(NamedTuple):
    """A call: its id, its process, and the end of the pipe that its answer comes through."""

    id: int
    pid: int
    pipe: int
    answer: bytearray


class FunctionProcess:
    """Serves the calls that come through `link`, one forked process for each."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._frames: FrameDecoder[ToProcess] = FrameDecoder(TO_PROCESS)
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._functions: dict[str, ToolFunction] = {}
        self._options: LoadFunctions | None = None
        self._calls: dict[int, _RunningCall] = {}

    def run(self) -> None:
        """Serve until the server is gone."""
        # Python, `signal.set_wakeup_fd`: the descriptor must be non-blocking, and only signals with a handler write to it.
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        self._selector.register(self._link, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        is_open = True
        while is_open:
            for key, _ in self._selector.select():
                if key.fileobj is self._link:
                    is_open = self._read_link()
                elif key.fileobj is self._wakeup:
                    self._reap()
                elif (call := self._calls.get(key.data)) is not None:
                    self._read_answer(call)
        for call in self._calls.values():
            _kill(call)

    def _read_link(self) -> bool:
        chunk = self._link.recv(READ_BYTES)
        for message in self._frames.feed(chunk):
            match message:
                case LoadFunctions():
                    self._load(message)
                case CallFunction():
                    self._start(message)
                case CancelCall():
                    for call in self._calls.values():
                        if call.id == message.id:
                            _kill(call)
        return bool(chunk)

    def _load(self, options: LoadFunctions) -> None:
        self._options = options
        try:
            self._functions = load_functions(options.file, options.entry_point)
        except LoadError as error:
            self._link.sendall(pack_frame(LoadFailed(str(error))))
            return
        gc.collect()
        gc.freeze()  # Otherwise a collection in a call would write to, and so copy, the pages of all that was loaded.
        offer = tuple(LoadedFunction(name, each.description, each.parameters) for name, each in self._functions.items())
        self._link.sendall(pack_frame(FunctionsLoaded(offer)))

    def _start(self, call: CallFunction) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._run_call(call, reader, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        # Both processes do this, so that the group exists whichever of them runs first: a call may be cancelled at once.
        with contextlib.suppress(OSError):  # The child did it already, or has ended.
            os.setpgid(pid, pid)
        self._calls[pid] = _RunningCall(call.id, pid, reader, bytearray())
        self._selector.register(reader, selectors.EVENT_READ, pid)

    def _run_call(self, call: CallFunction, reader: int, writer: int) -> None:
        """Run a call in this process, which is its own, and end it."""
        code = 1
        try:
            parent = os.getppid()
            os.setpgid(0, 0)  # A group with all that it starts, so that all of it can be killed.
            # The socket is shared with the parent, which would take this process's signals for its own.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with_parent()
            # prctl(2): a parent that died before the call above sends no signal.
            if os.getppid() != parent:
                return
            # A function must reach neither the server's socket nor the answers of other calls.
            for end in (self._link, self._wakeup, self._wakeup_writer, self._selector):
                end.close()
            os.close(reader)
            for other in self._calls.values():
                os.close(other.pipe)
            options = self._options
            assert options is not None
            limit_memory(options.memory_bytes)
            answer = answer_call(call, self._functions[call.name], options.output_chars, options.memory_bytes)
            with open(writer, "wb") as pipe:
                pipe.write(pack_frame(answer))
            code = 0
        finally:
            os._exit(code)  # Skips `atexit` handlers of the operator's modules, which are for the end of the whole process.

    def _read_answer(self, call: _RunningCall) -> None:
        # While the call runs: an answer that is longer than the pipe would otherwise block its process for ever.
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(call.pipe, READ_BYTES):
                call.answer.extend(chunk)
            self._selector.unregister(call.pipe)  # The end of the pipe: the process is about to exit.

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(READ_BYTES):
                pass
        # Signals are not queued: one may stand for several calls that have ended.
        for call in list(self._calls.values()):
            pid, status = os.waitpid(call.pid, os.WNOHANG)
            if pid:
                self._end(call, os.waitstatus_to_exitcode(status))

    def _end(self, call: _RunningCall, code: int) -> None:
        _kill(call)  # What the call started and left running.
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(call.pipe, READ_BYTES):
                call.answer.extend(chunk)
        with contextlib.suppress(KeyError):
            self._selector.unregister(call.pipe)
        os.close(call.pipe)
        del self._calls[call.pid]
        # A process that failed may have written a part of its answer.
        answers = [*FrameDecoder(FROM_PROCESS).feed(bytes(call.answer))] if code == 0 else []
        reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        answer = answers[0] if answers else CallAnswered(call.id, "The function crashed.", is_error=True, detail=f"Its process {reason}.")
        self._link.sendall(pack_frame(answer))


def _kill(call: _RunningCall) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(call.pid, signal.SIGKILL)


def main() -> None:
    """Serve the server that started this process."""
    end_with_parent()
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        del os.environ[name]  # The server's own settings and keys.
    with take_parent_socket() as link, contextlib.suppress(ConnectionError):
        FunctionProcess(link).run()
    sys.exit(0)


if __name__ == "__main__":
    main()
