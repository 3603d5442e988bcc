"""
The lock of the home folder, and files in it that only the server's user may read.

One server per home folder: a second one would take the first one's unfinished responses for those of a dead server.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import ServerError


def is_home_locked(home: Path) -> bool:
    """Whether a server uses the home folder now."""
    try:
        with (home / "server.lock").open() as lock:
            # Shared, so that two that look at the same time don't take each other for a server.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def home_lock(home: Path) -> Iterator[int]:
    """
    Lock the home folder; the operating system unlocks it however this process ends.

    Yields:
        The file descriptor of the lock; a process that inherits it holds the lock as well.

    Raises:
        ServerError: another server holds the lock, or the folder can't be written.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (home / "server.lock").open("w")
    except OSError as error:
        raise ServerError(f"The folder {home} can't be used: {error.strerror}. Choose another with ANTIPHON_HOME.") from None
    with lock:
        try:
            # flock(2): the lock belongs to the open file, so a child process that inherits the descriptor holds it too.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ServerError(
                f"Another server is using the folder {home}. Stop it, or give this one its own folder with ANTIPHON_HOME."
            ) from None
        yield lock.fileno()


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder against every other process, and thread, that does the same."""
    # The folder is locked and not the file, as each write puts another file in its place.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Write the file at once: a reader finds the old content or the new one. The folder is locked."""
    draft = path.with_name(f"{path.name}.new")
    # A process that died may have left one.
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # Before it gets its name: a power failure must not leave an empty file there.
        os.fsync(descriptor)
    draft.replace(path)
