"""
A process that has loaded antiphon, and forks a new one at each request of `forks.Popen`.

A forked process is like a new interpreter: it has its own session, arguments, environment, folder, signals, standard
streams and `__main__`, and no other descriptor. When its program ends, its threads, its functions for the exit and its
streams end as in any other. Modules that load numpy are not loaded: numpy starts threads, which don't survive a fork.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import forks

MODULES = (
    *("antiphon.cli.main", "antiphon.cli.commands.serve", "antiphon.cli.commands.worker", "antiphon.cli.commands.keys"),
    *("antiphon.server.processes.run", "antiphon.server.processes.supervisor", "antiphon.server.processes.child_main"),
    *("antiphon.stores.sql.store", "antiphon.runtime.service", "antiphon.engines.scripted.engine"),
)
"""The modules that a server with scripted models loads."""

MOST_DESCRIPTORS = 16
_MOVED = 500
_PR_SET_PDEATHSIG = 1


def main():
    del sys.path[0]  # the folder of this file
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would write to the loaded modules' memory, and so copy it into each fork
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None and request["children"]:
        request = nest(request)
    if request is not None:
        run_to_the_end(request)


def nest(request):
    """Fork a template for this process's children, before anything has run here; returns each forked process's request."""
    ours, theirs = socket.socketpair()
    if not (pid := os.fork()):
        ours.close()
        request = serve(theirs)
        return nest(request) if request is not None and request["children"] else request
    theirs.close()
    forks.NestedPopen.template = forks.Template(ours, functools.partial(os.waitpid, pid, 0))
    forks.NestedPopen.children = request["children"]
    subprocess.Popen = forks.NestedPopen
    return request


def serve(channel):
    """Fork for each request: returns the request in the forked process, and None here once all clients are gone."""
    while True:
        header, received, _, _ = socket.recv_fds(channel, forks.HEADER_BYTES, MOST_DESCRIPTORS)
        if not header:
            return None
        request = json.loads(_read(channel, int.from_bytes(header)))
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, threads
        reader, writer = os.pipe()
        if not (middle := os.fork()):
            middle = os.getpid()
            if child := os.fork():
                os.write(writer, child.to_bytes(forks.HEADER_BYTES))
                os._exit(0)
            channel.detach()
            _become(request, received, middle)
            return request
        for descriptor in (*received, writer):
            os.close(descriptor)
        os.waitpid(middle, 0)  # now the forked process is a child of the requesting one
        channel.sendall(os.read(reader, forks.HEADER_BYTES))
        os.close(reader)


def _read(channel, count):
    data = bytearray()
    while len(data) < count:
        data += channel.recv(count - len(data))
    return data


def _become(request, received, middle):
    """Make this process like a new one."""
    while os.getppid() == middle:
        time.sleep(0.0005)
    os.setsid()
    _take(received, request["descriptors"])
    if not request.get("is_nested"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the tests
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGTERM):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number == request["ignores"] else default)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        more = {"mode": "w", "newline": "\n"} if number else {"mode": "r"}
        buffering = 1 if name == "stderr" or os.isatty(number) else -1
        stream = open(number, buffering=buffering, encoding=old.encoding, errors=old.errors, closefd=False, **more)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _take(received, numbers):
    """Move these descriptors to their numbers, and close all others."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _MOVED) for descriptor in received]
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in numbers:
            with contextlib.suppress(OSError):  # the folder that lists them is gone
                os.close(int(name))


def run_to_the_end(request):
    """
    Run it, and end the process, without tearing down the interpreter where all went well: to free each loaded object copies
    nearly all memory that is shared with the template, which takes longer than most programs here.
    """
    try:
        run(request)
        status = 0
    except SystemExit as ended:
        if not (ended.code is None or isinstance(ended.code, int)):
            raise
        status = ended.code or 0
    # In the order of `Py_FinalizeEx`. If it fails, the interpreter does it again, and says so.
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(status)
    os._exit(status & 0xFF)


def run(request):
    """Run a module, a file, or a program that is an argument, as the interpreter does."""
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    arguments = list(request["arguments"])
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-P":
        del arguments[0]
    else:
        sys.path.insert(0, {"-m": os.getcwd(), "-c": ""}.get(arguments[0], os.path.dirname(os.path.abspath(arguments[0]))))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    match arguments:
        case ["-m", module, *rest]:
            sys.argv = ["-m", *rest]
            runpy._run_module_as_main(module)
        case ["-c", program, *rest]:
            sys.argv = ["-c", *rest]
            exec(compile(program, "<string>", "exec"), main.__dict__)
        case [file, *_]:
            sys.argv, main.__file__ = arguments, file
            exec(compile(Path(file).read_text(), file, "exec"), main.__dict__)


if __name__ == "__main__":
    main()
