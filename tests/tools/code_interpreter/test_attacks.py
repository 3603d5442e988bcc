"""
Escapes and bombs: each is tried behind both walls, and behind each wall alone, and is stopped there with the server unharmed. In the quick
run, only some bombs are tried behind one wall alone.

An attack prints `STOPPED` and why where it is refused, and `ESCAPED` where it is not. Attacks that are refused at once share a
process for each wall; bombs have their own. After each, the same process or a new one must still add two numbers.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.tools.code_interpreter.folder import remove_tree
from antiphon.tools.code_interpreter.kernel import Kernel, KernelLimits, RunOutcome
from antiphon.tools.code_interpreter.sandbox import Sandbox, Walls
from antiphon.tools.code_interpreter.watch import descendants

MIB = 1 << 20
DISK_BYTES, MEMORY_BYTES = 16 * MIB, 256 * MIB
LIMITS = KernelLimits(run_s=10, processes=6, files=100, output_bytes=10_000)

WALLS: tuple[Walls, ...] = ("both", "namespaces-only", "landlock-only")

PREAMBLE = """
import ctypes, errno, os, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == 'x86_64'
def attempt(function, *arguments):
    try:
        result = function(*arguments)
    except BaseException as error:
        print('STOPPED', type(error).__name__, error)
        return None
    print('ESCAPED', repr(result)[:200])
    return result
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def fill(path):
    with open(path, 'wb') as file:
        file.write(bytes(1 << 20))
def send(line):
    for fd in range(3, 30):
        try:
            os.write(fd, line)
        except OSError:
            pass
def prctl(*arguments):
    if libc.prctl(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""

REFUSALS = {
    # files of the machine
    "read the machine's users": "attempt(lambda: open('/etc/passwd').read())",
    "read the server's secret": "attempt(lambda: open(SECRET).read())",
    "list the server's folder": "attempt(os.listdir, os.path.dirname(SECRET))",
    "list the root's home": "attempt(os.listdir, '/root')",
    "list all homes": "attempt(os.listdir, '/home')",
    "read the first process's environment": "attempt(lambda: open('/proc/1/environ', 'rb').read())",
    "read the server's memory": "attempt(lambda: open(f'/proc/{SERVER}/mem', 'rb').read(1))",
    "read the server's environment": "attempt(lambda: open(f'/proc/{SERVER}/environ', 'rb').read(1))",
    "list the server's descriptors": "attempt(os.listdir, f'/proc/{SERVER}/fd')",
    "read the own memory map": "attempt(lambda: open('/proc/self/maps').read(9))",
    "reach the server's root by proc": "attempt(lambda: open(f'/proc/{SERVER}/root' + '/etc/passwd').read())",
    "read the kernel's log": "attempt(lambda: open('/dev/kmsg').read(9))",
    "read the machine's memory": "attempt(lambda: open('/dev/mem', 'rb').read(9))",
    "open a disk": "attempt(lambda: [open(f'/dev/{name}', 'rb') for name in ('vda', 'sda', 'nvme0n1')])",
    "open the terminal": "attempt(lambda: open('/dev/tty', 'w'))",
    "open the virtual machine": "attempt(lambda: open('/dev/kvm', 'rb'))",
    "open fuse": "attempt(lambda: open('/dev/fuse', 'rb'))",
    "make a terminal": "attempt(lambda: open('/dev/ptmx', 'rb'))",
    "read a kernel setting": "attempt(lambda: open('/proc/sys/kernel/core_pattern').read())",
    "write a kernel setting": "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/mnt/data/x'))",
    "read the devices": "attempt(os.listdir, '/sys')",
    "read a control group": "attempt(os.listdir, '/sys/fs/cgroup')",
    "read the server's packages": "attempt(lambda: __import__('msgspec'))",
    "read the server's own code": "attempt(lambda: __import__('antiphon'))",
    "talk to a container engine": "attempt(lambda: os.listdir('/var/run'))",
    # symbolic links, and paths that look like others
    "follow a link out": "os.symlink('/etc/passwd', FOLDER + '/link'); attempt(lambda: open(FOLDER + '/link').read())",
    "follow a link to the server's secret": "os.symlink(SECRET, FOLDER + '/link2'); attempt(lambda: open(FOLDER + '/link2').read())",
    "climb out by dots": "attempt(lambda: open(FOLDER + '/../../../../../../../../etc/passwd').read())",
    "climb out by full-width dots": "attempt(lambda: open(FOLDER + '/\\uff0e\\uff0e/\\uff0e\\uff0e/etc/passwd').read())",
    "climb out by a dot and a combining mark": "attempt(lambda: open(FOLDER + '/.\\u200d./etc/passwd').read())",
    "climb out with a byte that is no UTF-8": "attempt(lambda: open(os.fsencode(FOLDER) + b'/\\xc0\\xae\\xc0\\xae/etc/passwd').read())",
    "make a hard link to the machine's users": "attempt(os.link, '/etc/passwd', FOLDER + '/hard')",
    "make a hard link to the server's secret": "attempt(os.link, SECRET, FOLDER + '/hard2')",
    "rename the server's secret": "attempt(os.rename, SECRET, FOLDER + '/mine')",
    "write over the server's secret": "attempt(lambda: open(SECRET, 'w'))",
    "write beside the server's secret": "attempt(lambda: open(SECRET + '2', 'w'))",
    "delete the server's secret": "attempt(os.unlink, SECRET)",
    "write to the system": "attempt(lambda: open('/usr/lib/evil', 'w'))",
    "write to the root folder": "attempt(lambda: open('/evil', 'w'))",
    "write to the interpreter": "attempt(lambda: open(os.__file__, 'a'))",
    "write to a package": "import numpy; attempt(lambda: open(numpy.__file__, 'a'))",
    "write into the packages' folder": "attempt(lambda: open(sys.path[-1] + '/evil.py', 'w'))",
    "make a device": "attempt(os.mknod, FOLDER + '/device', 0o20666, os.makedev(1, 1))",
    "make a pipe with a name": "attempt(os.mkfifo, FOLDER + '/fifo')",
    "change the root folder": "attempt(os.chroot, FOLDER)",
    # processes
    "signal the parent": "attempt(os.kill, SERVER, signal.SIGTERM)",
    "kill the server": "attempt(os.kill, SERVER, signal.SIGKILL)",
    "kill everything": "attempt(os.kill, -1, 0) if PID_1 else print('STOPPED not tried: all there is, is its own')",
    "kill the first process": "attempt(os.kill, 1, signal.SIGSEGV) if not NAMESPACES else print('STOPPED its own first process')",
    "signal by a descriptor": "attempt(os.pidfd_open, SERVER)",
    "trace the server": "attempt(call, 101 if x86 else 117, 16, SERVER, 0, 0)",
    "let itself be traced": "attempt(call, 101 if x86 else 117, 0, 0, 0, 0)",
    "read another's memory": "attempt(call, 310 if x86 else 270, SERVER, 0, 0, 0, 0, 0)",
    "write another's memory": "attempt(call, 311 if x86 else 271, SERVER, 0, 0, 0, 0, 0)",
    "change the server's limits": "import resource; attempt(resource.prlimit, SERVER, resource.RLIMIT_NOFILE, (1, 1))",
    "raise the own limits": "import resource; attempt(resource.setrlimit, resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    "compare kernel pointers": "attempt(call, 312 if x86 else 272, os.getpid(), SERVER, 0, 0, 0)",
    "get signals sent to the server": "import fcntl; r, w = os.pipe(); attempt(fcntl.fcntl, r, 8, SERVER)",
    "run with priority": "attempt(os.nice, -10)",
    "run in real time": "attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))",
    "start a shell": "import subprocess; attempt(subprocess.run, ['/bin/sh', '-c', 'id'])",
    "start a program": "import subprocess; attempt(subprocess.run, ['/usr/bin/id'])",
    "become root": "attempt(os.setuid, 0) if os.getuid() else attempt(os.setresuid, 1, 1, 1)",
    "change groups": "attempt(os.setgroups, [0, 1])",
    # new namespaces, mounts and other parts of the kernel
    "make a user namespace": "attempt(call, 272 if x86 else 97, 0x10000000)",
    "make a mount namespace": "attempt(call, 272 if x86 else 97, 0x00020000)",
    "fork into a user namespace": "attempt(call, 56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)",
    "fork into a namespace the new way": "attempt(call, 435, struct.pack('=11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)",
    "join the server's namespace": "attempt(call, 308 if x86 else 268, 0, 0)",
    "mount": "attempt(call, 165 if x86 else 40, b'none', os.fsencode(FOLDER), b'tmpfs', 0, 0)",
    "mount the new way": "attempt(call, 430, b'tmpfs', 0)",
    "open a tree to mount": "attempt(call, 428, -100, b'/', 1)",
    "unmount": "attempt(call, 166 if x86 else 39, b'/mnt/data', 2)",
    "pivot the root": "attempt(call, 155 if x86 else 41, b'/', b'/')",
    "load a BPF program": "attempt(call, 321 if x86 else 280, 0, 0, 0)",
    "watch performance": "attempt(call, 298 if x86 else 241, 0, 0, -1, -1, 0)",
    "set up io_uring": "attempt(call, 425, 4, ctypes.create_string_buffer(120))",
    "register io_uring": "attempt(call, 427, -1, 0, 0, 0)",
    "make a nameless file": "attempt(os.memfd_create, 'x')",
    "make secret memory": "attempt(call, 447, 0)",
    "handle page faults": "attempt(call, 323 if x86 else 282, 0)",
    "add a key": "attempt(call, 248 if x86 else 217, b'user', b'x', b'y', 1, -3)",
    "read a key": "attempt(call, 250 if x86 else 219, 0, -3, 0, 0, 0)",
    "load a module": "attempt(call, 313 if x86 else 273, -1, b'', 0)",
    "load another kernel": "attempt(call, 246 if x86 else 104, 0, 0, 0, 0)",
    "reboot": "attempt(call, 169 if x86 else 142, 0xfee1dead, 672274793, 0x89abcdef, 0)",
    "set the clock": "attempt(time.clock_settime, time.CLOCK_REALTIME, 0)",
    "set the host name": "attempt(socket.sethostname, 'evil')",
    "swap to a file": "attempt(call, 167 if x86 else 224, os.fsencode(FOLDER) + b'/x', 0)",
    "account processes": "attempt(call, 163 if x86 else 89, os.fsencode(FOLDER) + b'/x')",
    "open by handle": "attempt(call, 304 if x86 else 265, -100, 0, 0)",
    "watch all files": "attempt(call, 300 if x86 else 262, 0, 0)",
    "splice into a page": "r, w = os.pipe(); attempt(call, 278 if x86 else 75, w, 0, 0, 0)",
    "make System V memory": "attempt(call, 29 if x86 else 194, 0, 4096, 0o1600)",
    "make a message queue": "attempt(call, 240 if x86 else 180, b'q', 0o102, 0o600, 0)",
    "set extended attributes": "open(FOLDER + '/attributes', 'w').close(); attempt(os.setxattr, FOLDER + '/attributes', 'user.x', b'y')",
    "stay readable by nobody": "attempt(prctl, 4, 0, 0, 0, 0)",
    "outlive the server": "attempt(prctl, 1, 0, 0, 0, 0) if not NAMESPACES else print('STOPPED it dies with its namespace')",
    "filter calls with a listener": "attempt(call, 317 if x86 else 277, 1, 8, 0)",
    "fake input at a terminal": "import fcntl; attempt(fcntl.ioctl, 0, 0x5412, b'x')",
    # the network, by every family
    **{
        f"open a socket of {name}": f"attempt(socket.socket, {family}, {kind})"
        for name, family, kind in (
            ("the internet", 2, 1),
            ("the internet for datagrams", 2, 2),
            ("the internet as it is", 2, 3),
            ("the internet of version 6", 10, 1),
            ("this machine", 1, 1),
            ("this machine for datagrams", 1, 2),
            ("the kernel's routes", 16, 3),
            ("packets", 17, 3),
            ("the hypervisor", 40, 1),
            ("the kernel's ciphers", 38, 5),
            ("Bluetooth", 31, 3),
            ("a car's bus", 29, 3),
            ("express data paths", 44, 3),
            ("clusters", 30, 1),
            ("remote memory", 21, 5),
        )
    },
    "connect by a library": "import urllib.request; attempt(urllib.request.urlopen, 'http://127.0.0.1:1/', None, 1)",
    "look up a name": "attempt(socket.getaddrinfo, 'example.com', 80)",
    "connect to the server": "attempt(socket.create_connection, ('127.0.0.1', PORT), 1)",
    "send from a pair to an address": "attempt(lambda: socket.socketpair(1, 2)[0].sendto(b'x', '/dev/log'))",
    "pass a descriptor on": "a, b = socket.socketpair(); attempt(socket.send_fds, a, [b'x'], [0])",
}

QUIET = {
    # These may be allowed to try; what counts is what is left of it.
    "see what the server's environment has": ("print(sorted(os.environ))", "ANTIPHON_TEST_SECRET"),
    "see descriptors left open": (
        "import stat\nfor fd in range(256):\n  try: mode = os.fstat(fd).st_mode\n  except OSError: continue\n"
        "  kind = 'pipe' if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else 'null' if stat.S_ISCHR(mode) else 'OTHER'\n  print(fd, kind)",
        "OTHER",
    ),
    "change the mode of the server's secret": ("try: os.chmod(SECRET, 0o777)\nexcept OSError as e: print(e)", "ESCAPED"),
    "change the time of the server's secret": ("try: os.utime(SECRET, (0, 0))\nexcept OSError as e: print(e)", "ESCAPED"),
    "empty the server's secret": ("try: os.truncate(SECRET, 0)\nexcept OSError as e: print(e)", "ESCAPED"),
    "find capabilities": (
        "header = struct.pack('=Ii', 0x20080522, 0); data = ctypes.create_string_buffer(24)\nprint(data.raw.strip(bytes(1)) and 'ESCAPED')",
        "ESCAPED",
    ),
}


class Server:
    """One guest behind walls, and what it must not harm."""

    def __init__(self, walls: Walls, folder: Path) -> None:
        self.walls: Walls = walls
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.secret = folder / "secret"
        self.secret.write_text("secret")
        self.secret.chmod(0o600)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.runner = asyncio.Runner()
        self.sandbox = Sandbox(walls, packages=("numpy",))
        self.kernel: Kernel | None = None
        self.stamp = self.secret.stat()

    def start(self) -> Kernel:
        limits = {"memory_bytes": MEMORY_BYTES, "disk_bytes": DISK_BYTES}
        self.kernel = Kernel(self.sandbox, LIMITS, self.data, self.folder / "scratch", **limits)
        self.runner.run(self.kernel.start())
        names = {
            "SECRET": str(self.secret),
            "SERVER": os.getpid(),
            "FOLDER": str(self.data) if self.walls == "landlock-only" else "/mnt/data",
            "PORT": self.listener.getsockname()[1],
            "NAMESPACES": self.walls != "landlock-only",
            "PID_1": self.walls == "landlock-only",
        }
        self.runner.run(self.kernel.run(f"globals().update({names!r})\n" + PREAMBLE, DISK_BYTES))
        return self.kernel

    def run(self, code: str) -> RunOutcome:
        kernel = self.kernel if self.kernel is not None and self.kernel.is_alive else self.start()
        return self.runner.run(kernel.run(code, DISK_BYTES))

    def check_unharmed(self) -> None:
        status = self.secret.stat()
        assert self.secret.read_text() == "secret"
        assert (status.st_mode, status.st_mtime_ns, status.st_uid) == (self.stamp.st_mode, self.stamp.st_mtime_ns, self.stamp.st_uid)
        assert self.run("20 + 22").logs == "42\n"

    def forget(self) -> None:
        """End the guest, and empty its folder."""
        if self.kernel is not None:
            pids = descendants(self.kernel._process.pid)
            self.runner.run(self.kernel.stop())
            assert not any(os.path.exists(f"/proc/{pid}") for pid in pids if pid != os.getpid())
        self.kernel = None

    def close(self) -> None:
        self.forget()
        self.listener.close()
        self.runner.close()
        assert not list((self.folder / "scratch").iterdir())


@pytest.fixture(scope="module", params=WALLS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    os.environ["ANTIPHON_TEST_SECRET"] = secrets.token_hex(8)
    server = Server(request.param, tmp_path_factory.mktemp(request.param))
    yield server
    server.close()
    del os.environ["ANTIPHON_TEST_SECRET"]


@pytest.mark.parametrize("name", REFUSALS)
def test_an_attack_is_refused(server, name):
    logs = server.run(REFUSALS[name]).logs
    assert "ESCAPED" not in logs, logs
    assert "STOPPED" in logs, logs
    server.check_unharmed()


@pytest.mark.parametrize("name", QUIET)
def test_an_attack_finds_nothing(server, name):
    code, sign = QUIET[name]
    outcome = server.run(code)
    assert sign not in outcome.logs
    assert outcome.is_alive
    server.check_unharmed()


# Bombs. Each says at which limit it ends: words of the problem, or of what it prints; None where it may run to its end.
BOMBS: dict[str, tuple[str, str | None]] = {
    "fork without end": ("while True:\n  try: os.fork()\n  except OSError as e: print(e); break", "processes|not permitted"),
    "fork and wait": ("for _ in range(50):\n  if not os.fork(): time.sleep(60)\ntime.sleep(60)", "processes|not permitted"),
    "start threads without end": (
        "import threading\nfor _ in range(10000):\n  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "new thread",
    ),
    "take a gigabyte": ("bytearray(1 << 30)", "MemoryError"),
    "take memory bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "MemoryError"),
    "take memory in many processes": (
        "for _ in range(4):\n  if not os.fork():\n    x = bytearray(os.urandom(1 << 20) * 120); time.sleep(60)\ntime.sleep(60)",
        "memory|not permitted",
    ),
    "map memory": ("import mmap\nmaps = []\nwhile True: maps.append(mmap.mmap(-1, 1 << 26))", "memory"),
    "square a string": ("x = 'x' * 1000\nwhile True: x = x * 1000", "MemoryError|OverflowError"),
    "recur without end": ("f = lambda: f()\nf()", "RecursionError"),
    "recur in native code": (
        "sys.setrecursionlimit(10**9)\nclass A:\n  def __getattr__(self, name): return getattr(self, name + 'x')\nA().x",
        "SIGSEGV|RecursionError|MemoryError|ended",
    ),
    "compile a deep expression": ("eval('(' * 10**5 + ')' * 10**5)", "SyntaxError|MemoryError"),
    "crash": ("ctypes.string_at(0)", "ended|killed"),
    "abort": ("os.abort()", "ended|killed"),
    "leave": ("os._exit(0)", "ended|killed"),
    "kill itself": ("os.kill(os.getpid(), signal.SIGKILL)", "ended|killed"),
    "write a large file": ("with open(FOLDER + '/x', 'wb') as f:\n  while True: f.write(bytes(1 << 20))", "too large|disk"),
    "write many files": ("for n in range(60):\n  fill(f'{FOLDER}/{n}')\ntime.sleep(60)", "disk"),
    "write many files elsewhere": (
        "import tempfile\nd = tempfile.gettempdir()\nfor n in range(60):\n  fill(f'{d}/{n}')\ntime.sleep(60)",
        "disk",
    ),
    "write files that have no name": (
        "fs = []\nfor n in range(60):\n  fill(FOLDER + '/n'); fs.append(open(FOLDER + '/n')); os.unlink(FOLDER + '/n')\ntime.sleep(60)",
        "disk",
    ),
    "map files that have no name": (
        "import mmap\nms = []\nfor n in range(60):\n  f = open(FOLDER + '/m', 'w+b'); os.unlink(FOLDER + '/m'); f.truncate(1 << 20)\n"
        "  ms.append(mmap.mmap(f.fileno(), 4096)); f.close(); libc.close(0)\ntime.sleep(60)",
        "disk",
    ),
    "make a file with a hole": ("open(FOLDER + '/h', 'wb').truncate(1 << 40)", "too large|disk"),
    "allocate a file": ("f = open(FOLDER + '/h', 'wb'); os.posix_fallocate(f.fileno(), 0, 1 << 40)", "too large|disk|Invalid|space"),
    "make a hundred thousand files": ("for n in range(100000): open(f'{FOLDER}/{n}', 'w').close()\ntime.sleep(60)", "files"),
    "make folders in folders": ("os.chdir(FOLDER)\nfor n in range(500): os.mkdir('d'); os.chdir('d')\ntime.sleep(60)", "files|folders"),
    "hide files in a folder that can't be read": (
        "os.mkdir(FOLDER + '/p'); os.chmod(FOLDER + '/p', 0o300)\nfor n in range(40): fill(f'{FOLDER}/p/{n}')\ntime.sleep(60)",
        "disk",
    ),
    "open descriptors without end": ("fs = []\nwhile True: fs.append(os.open('/dev/null', 0))", "open files"),
    "print without end": ("while True: print('x' * 1000)", "output"),
    "print at the descriptor": ("while True: os.write(1, b'x' * 65536)", "output"),
    "raise what can't be shown": ("class E(Exception):\n  def __str__(self): raise SystemExit\nraise E", "E"),
    "show what can't be shown": ("class R:\n  def __repr__(self): os._exit(9)\nR()", "ended|killed"),
    "close the output": ("os.close(1); os.close(2); print('x')", None),
    "replace the output": ("sys.stdout = sys.stderr = None; print('x')", None),
    "close all descriptors": ("os.closerange(0, 256)", "ended|killed"),
    "say that it is done": (
        'import gc\nsend(b\'{"type":"done","run":"0"}\\n\')\ntime.sleep(60)',
        "protocol",
    ),
    "say that it is ready": (
        'send(b\'{"type":"ready","landlock":7}\\n\')\ntime.sleep(60)',
        "protocol",
    ),
    "hand back a pickle": (
        "import pickle\nclass P:\n  def __reduce__(self): return (os.system, ('touch /tmp/pwned',))\n"
        "send(pickle.dumps(P()) + b'\\n')\ntime.sleep(60)",
        "protocol",
    ),
    "hand back an endless line": ("while True: send(b'x' * 65536)", "too large|protocol"),
    "hand back deep JSON": (
        "send(b'[' * 60000 + b'\\n')\ntime.sleep(60)",
        "protocol",
    ),
    "hand back a picture that is none": (
        'send(b\'{"type":"image","png":"PHN2Zz4="}\\n\')',
        None,
    ),
    "hand back pictures without end": (
        "class P:\n  def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nwhile True: display(P())",
        "pictures",
    ),
    "show a picture that is too large": (
        "class P:\n  def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20 << 20)\ndisplay(P())",
        "can't be shown",
    ),
    "hand back a picture that is too large": (
        'send(b\'{"type":"image","png":"\' + b\'A\' * (20 << 20) + b\'"}\\n\')\ntime.sleep(60)',
        "too large|protocol",
    ),
    "call as a program for 32 bits would": ("call(0x40000000 | 39) if x86 else os.abort()", "ended|killed"),
    "replace its own program": ("os.execv('/usr/bin/id', ['id'])", "not permitted|No such file|Permission"),
    "leave a thread that runs on": ("threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()", None),
    "change its own kernel": ("sys.modules.clear(); __builtins__.__dict__.clear()", None),
    "name a file so that it looks like another": (
        "open(FOLDER + '/\u202egpj.exe', 'w').close(); open(os.fsencode(FOLDER) + b'/\\xff', 'w').close()",
        None,
    ),
}

LONG_BOMBS: dict[str, tuple[str, str | None]] = {
    "compute without end": ("while True: pass", "seconds"),
    "sleep without end": ("time.sleep(10**6)", "seconds"),
    "compute and take no interrupt": ("signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "seconds"),
    "catch the interrupt and go on": ("while True:\n  try:\n    while True: pass\n  except BaseException: pass", "seconds"),
    "compute in native code": ("10 ** 10 ** 9", "seconds|MemoryError"),
    "match without end": ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", "seconds"),
    "wait for a lock": ("l = threading.Lock(); l.acquire(); l.acquire()", "seconds"),
    "stop itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "seconds"),
    "wait for input that never comes": ("r, w = os.pipe(); os.read(r, 1)", "seconds"),
}


def explode(server: Server, code: str, signs: str | None) -> None:
    outcome = server.run(code)
    words = f"{outcome.logs} {outcome.problem}"
    assert signs is None or any(sign in words for sign in signs.split("|")), words
    assert len(outcome.logs) <= LIMITS.output_bytes + 100
    assert str(server.folder) not in words
    server.forget()
    assert not list((server.folder / "scratch").iterdir())
    for path in list(server.data.iterdir()):
        remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    server.check_unharmed()


# What ends a bomb is no wall: behind one alone, in the quick run, only those are tried that a wall counts or that ends with it.
EACH_WALL = ("fork without end", "take memory in many processes", "write many files elsewhere", "kill itself", "replace its own program")


@pytest.mark.parametrize(
    ("server", "name"),
    [
        pytest.param(walls, name, marks=[] if walls == "both" or name in EACH_WALL else pytest.mark.long)
        for walls in WALLS
        for name in BOMBS
    ],
    indirect=["server"],
)
def test_a_bomb_ends_at_its_limit(server, name):
    explode(server, *BOMBS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_BOMBS)
def test_a_bomb_of_time_ends_at_its_limit(server, name):
    explode(server, *LONG_BOMBS[name])
