"""
Starts antiphon faster than `subprocess` does: as a fork of a process that has loaded it, see `template.py`.

The new process is a child of this one. Tests of the start itself use `subprocess`, which starts a new interpreter: those
of what a start loads, of `python -m antiphon` and the installed program, of engines and voices that have a process each,
of guides, and of official clients. Programs that a fork can't run in the same way, for example as their `PYTHONPATH` has
other modules, are started by `subprocess` too.
"""

import atexit
import contextlib
import ctypes
import functools
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

HEADER_BYTES = 8
_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
_PR_SET_CHILD_SUBREAPER = 36


class Popen(subprocess.Popen):
    """
    As `subprocess.Popen`.

    Args:
        ignores: the only signal that it ignores, as with `nohup`; the tests themselves may run under `nohup`.
        children: how many of its child processes are forks too, then how many of theirs each: [2] for a server of two
            processes, but not for their replacements.
    """

    def __init__(self, command, *, ignores=None, children=(), **options):
        self._more = {"ignores": ignores, "children": list(children)}
        if not can_fork(command, options.get("env")):
            options["preexec_fn"] = functools.partial(reset_signals, ignores)
            self._execute_child = super()._execute_child
        super().__init__(command, **options)

    def _execute_child(self, *values):
        begin(self, template(), values, self._more)


def shared_by(processes):
    """The `children` of a server of `processes` processes: a single one starts none."""
    return [processes] if processes > 1 else []


class NestedPopen(subprocess.Popen):
    """
    As `subprocess.Popen`, in a process that was forked.

    Attributes:
        template: the process that forks its children.
        children: as of `Popen`; the first number shrinks.
    """

    template = None
    children = ()

    def _execute_child(self, *values):
        left, *others = NestedPopen.children
        if not (left and can_fork([*values[0]], None)):
            super()._execute_child(*values)
            return
        begin(self, NestedPopen.template, values, {"ignores": None, "children": others, "is_nested": True})
        NestedPopen.children = [left - 1, *others]
        if left == 1:
            NestedPopen.template.stop()


def begin(process, template, values, more):
    """Fork the process, in place of `subprocess.Popen._execute_child`."""
    given = dict(zip(_PARAMETERS, values, strict=True))
    assert given["preexec_fn"] is None and not given["shell"], "only `subprocess.Popen` does that"
    request = {
        "arguments": [str(part) for part in given["args"][1:]],
        "cwd": os.path.abspath(given["cwd"] or "."),
        "env": dict(os.environ if given["env"] is None else given["env"]),
        "descriptors": [0, 1, 2, *given["pass_fds"]],
        **more,
    }
    os.stat(request["cwd"])
    streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
    streams = [number if stream == -1 else stream for number, stream in enumerate(streams)]
    process.pid = template.fork(request, [*streams, *given["pass_fds"]])
    process._child_created = True
    process._close_pipe_fds(*(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


def run(command, *, input=None, timeout=None, check=False, capture_output=False, **options):
    """As `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def can_fork(command, environ):
    """Whether a new interpreter would run the same modules in the same way."""
    if sys.platform != "linux" or command[0] != sys.executable or (command[1].startswith("-") and command[1] not in ("-m", "-c", "-P")):
        return False
    asked = dict(environ or {})
    paths = asked.pop("PYTHONPATH", "").split(os.pathsep)
    settings = [name for name in asked if name.startswith(("PYTHON", "LANG", "LC_"))]
    return {*paths} <= {"", *sys.path} and all(asked[name] == os.environ.get(name) for name in settings)


def reset_signals(ignores=None):
    """Ignore only this signal."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == ignores else signal.SIG_DFL)


class Template:
    """
    A process that forks others, which all become children of this one.

    Args:
        channel: to it.
        wait: waits until it has ended.
    """

    def __init__(self, channel, wait):
        self._channel, self._wait = channel, wait
        self._lock = threading.Lock()

    def fork(self, request, descriptors):
        """The id of a new process."""
        data = json.dumps(request).encode()
        with self._lock, _adopting():
            socket.send_fds(self._channel, [len(data).to_bytes(HEADER_BYTES)], descriptors)
            self._channel.sendall(data)
            pid = self._channel.recv(HEADER_BYTES)
        assert pid, "the template ended"
        return int.from_bytes(pid)

    def stop(self):
        self._channel.close()
        self._wait()


@functools.cache
def template():
    """The template of this process, which ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, str(Path(__file__).with_name("template.py")), str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True)
    started = Template(ours, process.wait)
    atexit.register(started.stop)
    return started


@contextlib.contextmanager
def _adopting():
    """
    Make this process the parent of orphaned descendants meanwhile.

    Source: PR_SET_CHILD_SUBREAPER in prctl(2).
    """
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
