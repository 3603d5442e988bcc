"""
Verifies that a file is, byte for byte, the one in the catalogue.

Reading a gigabyte takes a second or more, so a mark beside a verified file stays valid until its size or modification
time changes. The mark saves work; it doesn't protect against someone who can write to the folder.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.weights.catalogue import CatalogueModel, ModelFile

ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done, and the total bytes."""

_CHUNK_BYTES = 1 << 20


class _VerifiedMark(Struct, frozen=True):
    sha256: str
    size_bytes: int
    changed_ns: int


def is_intact(path: Path, file: ModelFile, report: ProgressCallback) -> bool:
    """
    Whether `path` holds `file`; marks it as verified if so.

    Raises:
        OSError: it is there but can't be read.
    """
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    if is_verified(path, file):
        return True
    if digest(path, digest_progress(path.name, file, report)) != file.sha256:
        return False
    mark_verified(path, file)
    return True


def altered_files(model: CatalogueModel, home: Path) -> tuple[Path, ...]:
    """
    The files of a model in `home` that are missing or differ from the catalogue; those with a valid mark are not read.

    Raises:
        OSError: one can't be read.
    """
    files = [(home / file.path, file) for file in model.files]
    return tuple(path for path, file in files if not (is_verified(path, file) or _matches(path, file)))


def _matches(path: Path, file: ModelFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes and digest(path, lambda _bytes: None) == file.sha256


def is_verified(path: Path, file: ModelFile) -> bool:
    """Whether `path` was verified before and has not changed since; doesn't read the file."""
    try:
        return msgspec.json.decode(_mark_path(path).read_bytes(), type=_VerifiedMark) == _mark(path, file)
    except (OSError, msgspec.DecodeError):
        return False


def mark_verified(path: Path, file: ModelFile) -> None:
    """Mark `path` as verified; the mark is valid until the file's size or modification time changes."""
    _mark_path(path).write_bytes(msgspec.json.encode(_mark(path, file)))


def digest(path: Path, advance: Callable[[int], None]) -> str:
    """The file's SHA-256 in hexadecimal; `advance` is called with the bytes read so far."""
    done_bytes, sha256 = 0, hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            sha256.update(chunk)
            done_bytes += len(chunk)
            advance(done_bytes)
    return sha256.hexdigest()


def digest_progress(name: str, file: ModelFile, report: ProgressCallback) -> Callable[[int], None]:
    """A callback for `digest` that passes the progress on to `report`."""
    return lambda done_bytes: report(f"checking {name}", done_bytes, file.size_bytes)


def remove(path: Path) -> None:
    """Delete the file and its mark."""
    path.unlink(missing_ok=True)
    _mark_path(path).unlink(missing_ok=True)


def _mark(path: Path, file: ModelFile) -> _VerifiedMark:
    return _VerifiedMark(file.sha256, file.size_bytes, path.stat().st_mtime_ns)


def _mark_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")
