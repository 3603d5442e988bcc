"""
The program inside the sandbox: confines itself, then runs code as a notebook does, one globals for all of it.

It stands alone: its text is given to a bare interpreter (`-I -S -c TEXT REPLIES_FD`), which has nothing of antiphon. What it says
is not to be believed, as code that it runs may write to the same pipes. Standard output and error go to one pipe as they come.
Two more carry JSON lines: standard input, moved elsewhere at once, has a `Setup` and then the code of each run; the other one
answers `ready` or `failed`, and then for each run any number of `image` and a `done`.
"""

import ast
import asyncio
import base64
import builtins
import ctypes
import importlib.abc
import importlib.machinery
import inspect
import io
import json
import linecache
import os
import resource
import signal
import struct
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, TypedDict

GUEST_FOLDER = "/mnt/data"
BACKEND = "antiphon_figures"
"""The module that matplotlib loads as its backend (`MPLBACKEND`)."""

_MAX_FDS = 1024
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _SECCOMP_MODE_FILTER = 38, 22, 24, 2
_LAST_CAPABILITY, _CAPABILITY_VERSION_3 = 40, 0x20080522

# Source: linux/landlock.h; the numbers of the three calls are the same on all architectures.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 9, 1 << 10, 1 << 11, 1 << 13, 1 << 14, 1 << 15


class Setup(TypedDict):
    """
    How to confine the process; the first line.

    Attributes:
        limits: by the name of `resource`'s constant.
        landlock: paths with what may be done beneath them: `read`, `execute` and `write`; None for no Landlock.
        seccomp: the filter in base64; None for none.
        packages: folders to import from.
        folder: where the container's files are.
        image_bytes: the most of a picture.
    """

    limits: dict[str, int]
    landlock: dict[str, list[str]] | None
    seccomp: str | None
    packages: list[str]
    folder: str
    image_bytes: int


class Confinement:
    """The inner wall: limits, no new privileges and no capabilities, Landlock, and seccomp last."""

    def __init__(self, setup: Setup) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setup = setup

    def install(self) -> int:
        """Confine this process for ever; returns the version of Landlock, 0 where it was not asked for. Raises `OSError`."""
        for name, value in self._setup["limits"].items():
            number = getattr(resource, name)
            _, hard = resource.getrlimit(number)
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (limit, limit))
        # landlock_restrict_self(2), seccomp(2): without privileges, both demand this first.
        self._check(self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        self._drop_capabilities()
        self._check(self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent's death signal")
        version = 0
        if self._setup["landlock"] is not None:
            version = self._restrict_files(self._setup["landlock"])
        if self._setup["seccomp"] is not None:
            # Last, as the filter refuses what the lines above need.
            self._filter_calls(base64.b64decode(self._setup["seccomp"]))
        return version

    def _drop_capabilities(self) -> None:
        for capability in range(_LAST_CAPABILITY + 1):
            self._libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # Fails in a process without capabilities, which has none to drop.
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        self._check(self._libc.capset(header, bytes(24)), "capset")

    def _restrict_files(self, paths: dict[str, list[str]]) -> int:
        version = int(self._check(self._libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock"))
        all_rights = (1 << 13) - 1
        # landlock(7): a right is known from that version on, and an older kernel refuses a ruleset that names it.
        for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
            all_rights |= right if version >= since else 0
        network, scopes = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
        attributes = struct.pack("=QQQ", all_rights, network, scopes)[: 8 if version < 4 else 16 if version < 6 else 24]
        ruleset = self._check(
            self._libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock ruleset"
        )
        # Execution, too: otherwise code could write a program and start it.
        never = _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _MAKE_FIFO | _IOCTL_DEV | _EXECUTE
        rights = {"read": _READ_FILE | _READ_DIR, "execute": _READ_FILE | _READ_DIR | _EXECUTE, "write": all_rights & ~never}
        for access, beneath in paths.items():
            for path in beneath:
                self._allow(ruleset, path, rights[access] & all_rights)
        self._check(self._libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock restriction")
        os.close(ruleset)
        return version

    def _allow(self, ruleset: int, path: str, rights: int) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # Not every path exists on every machine.
        if not os.path.isdir(path):
            # landlock_add_rule(2): a rule for a file may have no rights of folders (EINVAL).
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, descriptor)
        self._check(self._libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "landlock rule")
        os.close(descriptor)

    def _filter_calls(self, program: bytes) -> None:
        buffer = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
        self._check(self._libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")

    def _check(self, result: int, what: str) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
        return result


class PathRewriter(ast.NodeTransformer):
    """Code that names `/mnt/data` finds its files where they are, on a machine that can't mount them there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Replace the folder's name in a string or in bytes."""
        if isinstance(node.value, str):
            node.value = node.value.replace(GUEST_FOLDER, self._folder)
        elif isinstance(node.value, bytes):
            node.value = node.value.replace(GUEST_FOLDER.encode(), os.fsencode(self._folder))
        return node


class GuestKernel:
    """Runs code, one piece after another, each seeing the variables of those before."""

    def __init__(self, setup: Setup, commands_fd: int, replies_fd: int) -> None:
        folder = setup["folder"]
        self._image_bytes = setup["image_bytes"]
        self._commands_fd, self._replies_fd = commands_fd, replies_fd
        self._main = types.ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, display=self.display, exit=_exit, quit=_exit)
        self._rewriter = PathRewriter(folder) if folder != GUEST_FOLDER else None
        self._runs = 0

    def serve(self) -> None:
        """Answer commands until the pipe is closed."""
        sys.modules["__main__"] = self._main
        sys.meta_path.append(FigureBackend(self._show_figures))
        sys.displayhook = self.echo
        own_pid = os.getpid()
        commands = open(self._commands_fd, encoding="utf-8", newline="\n", closefd=False)
        while line := commands.readline():
            command = json.loads(line)
            self._runs += 1
            self.run(command["code"])
            if os.getpid() != own_pid:
                os._exit(0)  # Code called `os.fork`, and this is the child: it must not answer for its parent.
            reply(self._replies_fd, {"type": "done", "run": command["run"]})

    def run(self, code: str) -> None:
        """Run a piece of code; what it raises is printed."""
        filename = f"<cell {self._runs}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # How the server says that time is up.
                self._execute(code, filename)
                self._show_figures()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:
            _print_error(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # Code may have closed or replaced it.
                pass

    def echo(self, value: object) -> None:
        """Show the value of the last expression, as a notebook does."""
        if value is not None:
            self._main.__dict__["_"] = value
            self.display(value)

    def display(self, *values: object) -> None:
        """Show values: pictures as pictures, all else as text."""
        for value in values:
            picture = _picture(value)
            if picture is None:
                print(repr(value))  # noqa: T201 - the output of the code
            elif len(picture) > self._image_bytes:
                print(f"[A picture of {len(picture)} bytes can't be shown: the limit is {self._image_bytes}.]")  # noqa: T201 - likewise
            else:
                sys.stdout.flush()
                reply(self._replies_fd, {"type": "image", "png": base64.b64encode(picture).decode()})
                pyplot = sys.modules.get("matplotlib.pyplot")
                # A figure that was shown must not be shown again with those that are open at the end.
                if pyplot is not None and hasattr(value, "savefig"):
                    pyplot.close(value)

    def _execute(self, code: str, filename: str) -> None:
        # Parsed whole before anything runs: a syntax error at the end must not leave half of the code done.
        tree = ast.parse(code, filename)
        if self._rewriter is not None:
            tree = self._rewriter.visit(tree)
        last: list[ast.stmt] = []
        # As in a notebook, `;` keeps the last value from being shown.
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = [tree.body.pop()]
        for part in (tree, ast.Interactive(last)):
            if part.body:
                mode = "single" if isinstance(part, ast.Interactive) else "exec"
                code_object = compile(part, filename, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                result = eval(code_object, self._main.__dict__)
                if inspect.iscoroutine(result):
                    asyncio.run(result)

    def _show_figures(self) -> None:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                # A figure that was opened but never drawn on is an empty picture.
                if figure.axes:
                    self.display(figure)
            pyplot.close("all")


class FigureBackend(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the backend of matplotlib that shows figures with `show`; made only when matplotlib asks for it."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Claim the name of the backend, and no other."""
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == BACKEND else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill the module. Source: https://matplotlib.org/stable/users/explain/figure/writing_a_backend_pyplot_interface.html"""
        agg = importlib.import_module("matplotlib.backends.backend_agg")
        module.__dict__.update(FigureCanvas=agg.FigureCanvasAgg, show=lambda *_args, **_options: self._show())


def reply(replies_fd: int, message: dict[str, Any]) -> None:
    """Send a message to the server as a line of JSON; blocks while the pipe is full."""
    rest = memoryview(json.dumps(message).encode() + b"\n")
    while rest:
        rest = rest[os.write(replies_fd, rest) :]


def _picture(value: object) -> bytes | None:
    if isinstance(value, type):
        return None
    buffer = io.BytesIO()
    if type(value).__module__.startswith("matplotlib.") and hasattr(value, "savefig"):
        value.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()
    if type(value).__module__.startswith("PIL.") and hasattr(value, "save"):
        value.save(buffer, format="PNG")
        return buffer.getvalue()
    render = getattr(value, "_repr_png_", None)
    picture = render() if callable(render) else None
    return picture if isinstance(picture, bytes) else None


def _exit(code: object = None) -> None:
    raise SystemExit(code)


def _print_error(error: BaseException) -> None:
    # The frames of this program would tell the author of the code nothing.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # The error's own `__str__` may fail.
        text = f"{type(error).__name__}\n"
    try:
        sys.stdout.flush()
        sys.stderr.write(text)
    except BaseException:
        os.write(2, text.encode(errors="replace"))


def take_pipes() -> tuple[int, int]:
    """The descriptors of commands and replies, with nothing but them and the standard ones left open."""
    replies_fd = os.dup(int(sys.argv[1]))
    commands_fd = os.dup(0)
    # Code that reads standard input finds it empty, and not the commands.
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    own_fds = sorted((commands_fd, replies_fd))
    os.closerange(3, own_fds[0])
    os.closerange(own_fds[0] + 1, own_fds[1])
    os.closerange(own_fds[1] + 1, _MAX_FDS)
    del sys.argv[:]
    return commands_fd, replies_fd


def read_setup(commands_fd: int) -> Setup:
    """The first line of the commands' pipe."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(commands_fd, 1 << 16) or b"\n"
    setup: Setup = json.loads(line)
    return setup


def main() -> None:
    """Confine this process, and serve."""
    commands_fd, replies_fd = take_pipes()
    setup = read_setup(commands_fd)
    sys.path += setup["packages"]
    # The packages can't be written to.
    sys.dont_write_bytecode = True
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    try:
        os.chdir(setup["folder"])
        landlock = Confinement(setup).install()
    except OSError as error:
        reply(replies_fd, {"type": "failed", "reason": str(error.strerror)})
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = GuestKernel(setup, commands_fd, replies_fd)
    reply(replies_fd, {"type": "ready", "landlock": landlock})
    kernel.serve()


if __name__ == "__main__":
    main()
