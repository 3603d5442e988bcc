"""The files of the page, as they lie in the package: `index.html`, and others whose names have a hash of their content."""

import gzip
import hashlib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from antiphon.offload import offload

INDEX = "index.html"

MIN_GZIP_BYTES = 1 << 10
"""Smaller files are sent plain: compressing them saves no packet."""

_HASHED_NAME = re.compile(r".+-[A-Za-z0-9_-]{8,}\.\w+")
"""The name that Vite gives a file: it changes with the content."""

_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "jpg": "image/jpeg",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webmanifest": "application/manifest+json",
    "woff2": "font/woff2",
}
_COMPRESSIBLE = ("css", "html", "ico", "js", "json", "svg", "txt", "wasm", "webmanifest", "wav")


class Content(NamedTuple):
    """
    A file of the page.

    Attributes:
        etag: identifies the content, without quotes.
        gzip: the same, compressed; None where that saves nothing.
    """

    plain: bytes
    etag: str
    gzip: bytes | None


class Asset:
    """
    A file of the page, read and compressed when it is first needed: most servers' pages are never opened, and to compress
    all of it would take 0.1 s of every start (record 0060).
    """

    def __init__(self, file: Traversable) -> None:
        self._file = file
        self._content: Content | None = None
        self.suffix = file.name.rpartition(".")[2].lower()
        self.media_type = _MEDIA_TYPES.get(self.suffix, "application/octet-stream")
        self.is_immutable = _HASHED_NAME.fullmatch(file.name) is not None

    async def content(self) -> Content:
        """What is in it; the first call reads and compresses the file."""
        if self._content is None:
            plain = self._file.read_bytes()
            # Four times the size: compressing takes some 40 ns a byte.
            self._content = await offload(4 * len(plain), _compress, plain, is_worthwhile=self.suffix in _COMPRESSIBLE)
        return self._content


def _compress(plain: bytes, *, is_worthwhile: bool) -> Content:
    small = gzip.compress(plain, 9, mtime=0) if is_worthwhile and len(plain) >= MIN_GZIP_BYTES else plain
    return Content(plain, hashlib.sha256(plain).hexdigest()[:32], small if len(small) < len(plain) else None)


class PageFiles(NamedTuple):
    """
    The files of the page.

    Attributes:
        index_page: `index.html`; None where this copy of antiphon has no page.
        assets: all others by name, wherever below the folder they lie.
    """

    index_page: Asset | None
    assets: dict[str, Asset]


def page_files(folder: Traversable | None = None) -> PageFiles:
    """
    The files below a folder, by default the package's. Requests look names up here and never on the disk, so that no name
    leads out of it.
    """
    folder = files("antiphon").joinpath("console") if folder is None else folder
    assets = {file.name: Asset(file) for file in _walk(folder)} if folder.is_dir() else {}
    return PageFiles(assets.pop(INDEX, None), assets)


def _walk(folder: Traversable) -> list[Traversable]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [file for entry in entries for file in ([entry] if entry.is_file() else _walk(entry) if entry.is_dir() else [])]
