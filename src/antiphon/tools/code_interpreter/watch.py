"""How much memory the processes of a sandbox use, and disk in files that no folder lists any more. By Linux's `/proc`."""

import contextlib
import os
import signal
import stat
from collections.abc import Sequence

from msgspec import Struct

from antiphon.tools.code_interpreter.folder import disk_bytes

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FREEZE_ROUNDS = 5


class ProcessUsage(Struct, frozen=True):
    """
    What processes use together.

    Attributes:
        memory_bytes: resident; pages that they share are counted for each.
        unlinked_bytes: of files that are open or mapped but have no name any more.
    """

    memory_bytes: int
    unlinked_bytes: int


def descendants(pid: int, limit: int = 10_000) -> list[int]:
    """The process and all that come from it, parents first, up to about `limit`; one that ends meanwhile may be among them."""
    # proc(5): only kernels built with CONFIG_PROC_CHILDREN have this file.
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return _scan_descendants(pid)
    pids = [pid]
    for each in pids:  # Grows while it is walked.
        if len(pids) > limit:
            break
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{each}/task/{thread}/children") as file:
                    pids += [int(child) for child in file.read().split()]
    return pids


def measure(pids: Sequence[int], largest_file_bytes: int) -> ProcessUsage:
    """
    Measure processes.

    Args:
        largest_file_bytes: what an unlinked file counts for whose size can't be seen, as it is mapped but not open.
    """
    memory_bytes = 0
    unlinked_sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            memory_bytes += int(file.read().split()[1]) * _PAGE_BYTES
        with contextlib.suppress(OSError):
            unlinked_sizes |= _unlinked_open_files(pid)
    mapped_inodes: set[tuple[int, int]] = set()
    # A file may be closed and deleted, and yet live on in a mapping.
    for pid in pids:
        with contextlib.suppress(OSError):
            mapped_inodes |= _unlinked_mapped_inodes(pid)
    open_inodes = {inode for _, inode in unlinked_sizes}
    unseen = sum(1 for _, inode in mapped_inodes if inode not in open_inodes)
    return ProcessUsage(memory_bytes, sum(unlinked_sizes.values()) + unseen * largest_file_bytes)


def freeze(pid: int) -> None:
    """Stop a process and all that come from it until `thaw`: they use no processor then."""
    stopped_pids: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):  # One may fork while the others are being stopped.
        new_pids = [each for each in descendants(pid) if each not in stopped_pids]
        if not new_pids:
            break
        _signal_all(new_pids, signal.SIGSTOP)
        stopped_pids.update(new_pids)


def thaw(pid: int) -> None:
    """Let what `freeze` stopped go on."""
    _signal_all(descendants(pid), signal.SIGCONT)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _scan_descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name, in parentheses, may hold anything.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    pids = [pid]
    for each in pids:
        pids += children.get(each, [])
    return pids


def _unlinked_open_files(pid: int) -> dict[tuple[int, int], int]:
    sizes: dict[tuple[int, int], int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{pid}/fd/{name}")
            # A file that still has a name is counted in its folder.
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                sizes[status.st_dev, status.st_ino] = disk_bytes(status)
    return sizes


def _unlinked_mapped_inodes(pid: int) -> set[tuple[int, int]]:
    inodes = set()
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            if line.endswith(b" (deleted)\n"):
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                inodes.add((hash(device), int(inode)))
    return inodes
