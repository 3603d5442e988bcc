"""One server in one home folder: the second would take the first one's unfinished responses for a dead server's."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import ServerError


@contextlib.contextmanager
def home_lock(home: Path) -> Iterator[int]:
    """
    Hold the home folder; the operating system lets go of it however this process ends.

    Yields:
        The file descriptor that holds it; a process that inherits it holds the folder as well.

    Raises:
        ServerError: another server holds it, or it can't be written.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (home / "server.lock").open("w")
    except OSError as error:
        raise ServerError(f"The folder {home} can't be used: {error.strerror}. Name another with ANTIPHON_HOME.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ServerError(
                f"Another server is running with the folder {home}. Stop it, or give this one a folder of its own with ANTIPHON_HOME."
            ) from None
        yield lock.fileno()
