"""
An index of pages on this machine: files of the operator's folders, and pages that were fetched before.

Words are found by SQLite's FTS5. All work is done in one thread of the index's own.

Source: https://www.sqlite.org/fts5.html
"""

import asyncio
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote

import structlog
from msgspec import Struct

from antiphon.tools.sqlite_files import write_ahead
from antiphon.tools.web_search.base import SearchFailure, SearchQuery, WebSearchResult
from antiphon.tools.web_search.domains import refusal
from antiphon.tools.web_search.page_text import FILE_TYPES, PageText, to_text
from antiphon.tools.web_search.urls import normalize

P = ParamSpec("P")
T = TypeVar("T")

MAX_FILES = 20_000
"""The most files in each folder."""
MAX_FILE_BYTES = 4 << 20
MAX_PAGE_CHARS = 1_000_000
MAX_QUERY_WORDS = 32
MAX_HITS = 500
BUSY_S = 10.0
"""How long to wait for another process that has locked the file."""
REFRESH_S = 10.0
"""How long the last scan of the folders is good enough for a search."""

APPLICATION_ID = 0x616E7470
"""In the header of a file that is an index. Source: https://www.sqlite.org/fileformat2.html, 1.3.17."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE IF NOT EXISTS pages (
    id INTEGER PRIMARY KEY,
    folder TEXT NOT NULL,
    tenant TEXT NOT NULL,
    url TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    size INTEGER NOT NULL,
    stamp TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (folder, tenant, url)
);
CREATE INDEX IF NOT EXISTS pages_url ON pages (url);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    title, text, content='pages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2');
CREATE TRIGGER IF NOT EXISTS pages_insert AFTER INSERT ON pages BEGIN
    INSERT INTO words (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER IF NOT EXISTS pages_delete AFTER DELETE ON pages BEGIN
    INSERT INTO words (words, rowid, title, text) VALUES ('delete', old.id, old.title, old.text);
END;
COMMIT;
"""
_log = structlog.get_logger(__name__)


class PageFolder(Struct, frozen=True):
    """A folder of text, Markdown and HTML files; a file's address is `url` with its path behind it."""

    path: Path
    url: str


class LocalIndex:
    """
    The index; a provider of searches.

    Args:
        file: where it is kept; None for memory.
        max_bytes: of fetched pages. When there are more, the tenant that has the most loses its oldest.
    """

    def __init__(self, file: Path | None, folders: Sequence[PageFolder], max_bytes: int, refresh_s: float = REFRESH_S) -> None:
        self._file = file
        self._folders = folders
        self._max_bytes = max_bytes
        self._refresh_s = refresh_s
        self._database: sqlite3.Connection | None = None
        self._next_scan_at = 0.0
        self._is_closing = threading.Event()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-web-index")

    async def search(self, query: SearchQuery) -> Sequence[WebSearchResult]:
        return await self._run(self._search, query)

    async def read(self, tenant: str, url: str) -> PageText | None:
        """A page by its address: a file of a folder, or a page that was fetched for this tenant. None if there is neither."""
        return await self._run(self._read, tenant, url)

    async def has_file(self, url: str) -> bool:
        """Whether a page is a file of one of the folders."""
        return bool(self._folders) and await self._run(self._has_file, url)

    async def add(self, tenant: str, url: str, page: PageText) -> None:
        """Keep a page that was fetched; the oldest pages make room for it."""
        await self._run(self._add, tenant, url, page)

    async def close(self) -> None:
        self._is_closing.set()
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        except (sqlite3.Error, OSError) as error:
            raise SearchFailure(
                "The index of pages can't be used at the moment.", f"The index of pages (tools.web_search.file) can't be used: {error}."
            ) from None

    # In the thread

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            database = sqlite3.connect(self._file or ":memory:", timeout=BUSY_S, check_same_thread=False, isolation_level=None)
            try:
                self._check_file(database)
                write_ahead(database, BUSY_S)
                # All pages can be fetched again, so the last commits may be lost with the machine's power.
                database.execute("PRAGMA synchronous = NORMAL")
                database.executescript(_SCHEMA)
                # Folders that are no longer configured are not searched any more.
                folders = ["", *(folder.url for folder in self._folders)]
                database.execute(f"DELETE FROM pages WHERE folder NOT IN ({', '.join('?' for _ in folders)})", folders)
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    def _check_file(self, database: sqlite3.Connection) -> None:
        # In this order: another process may be writing both now, in one transaction.
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (number,) = database.execute("PRAGMA application_id").fetchone()
        if tables and number != APPLICATION_ID:
            raise sqlite3.DatabaseError("the file is another program's database")

    def _search(self, query: SearchQuery) -> list[WebSearchResult]:
        words = _WORD.findall(query.text)[:MAX_QUERY_WORDS]
        if not words:
            return []
        self._refresh()
        # A word in the title counts four times. Any of the words is enough: the rank puts pages with most of them first.
        rows = self._open().execute(
            "SELECT pages.url, pages.title, snippet(words, 1, '', '', ' … ', 64) FROM words JOIN pages ON pages.id = words.rowid"
            " WHERE words MATCH ? AND (pages.folder != '' OR pages.tenant = ?) ORDER BY bm25(words, 4.0, 1.0) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), query.tenant, MAX_HITS),
        )
        results = []
        for url, title, snippet in rows:
            if refusal(url, query.allowed_domains, query.blocked_domains) is None:
                results.append(WebSearchResult(url=url, title=title, snippet=" ".join(snippet.split())[: query.snippet_chars]))
                if len(results) >= query.max_results:
                    break
        return results

    def _read(self, tenant: str, url: str) -> PageText | None:
        self._refresh()
        row = (
            self._open()
            .execute(
                "SELECT title, text FROM pages WHERE url = ? AND (folder != '' OR tenant = ?) ORDER BY folder = '' LIMIT 1", (url, tenant)
            )
            .fetchone()
        )
        return None if row is None else PageText(*row)

    def _has_file(self, url: str) -> bool:
        self._refresh()
        return self._open().execute("SELECT 1 FROM pages WHERE url = ? AND folder != ''", (url,)).fetchone() is not None

    def _add(self, tenant: str, url: str, page: PageText) -> None:
        database = self._open()
        with _Transaction(database):
            self._put("", tenant, url, page, "")
            # A tenant that reads much displaces its own pages first, not those of others.
            while True:
                (size,) = database.execute("SELECT coalesce(sum(size), 0) FROM pages WHERE folder = ''").fetchone()
                if size <= self._max_bytes:
                    return
                database.execute(
                    "DELETE FROM pages WHERE id = (SELECT id FROM pages WHERE folder = '' AND tenant ="
                    " (SELECT tenant FROM pages WHERE folder = '' GROUP BY tenant ORDER BY sum(size) DESC LIMIT 1) ORDER BY at, id LIMIT 1)"
                )

    def _put(self, folder: str, tenant: str, url: str, page: PageText, stamp: str) -> None:
        database, text = self._open(), page.text[:MAX_PAGE_CHARS]
        # Not an upsert: the index of words follows insertions and deletions by triggers, and there is none for updates.
        database.execute("DELETE FROM pages WHERE folder = ? AND tenant = ? AND url = ?", (folder, tenant, url))
        database.execute(
            "INSERT INTO pages (folder, tenant, url, title, text, size, stamp, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (folder, tenant, url, page.title, text, len(text.encode()) + len(url), stamp, time.time()),
        )

    def _refresh(self) -> None:
        """Look at the folders again, if the last look is too old."""
        if not self._folders or time.monotonic() < self._next_scan_at:
            return
        for folder in self._folders:
            self._refresh_folder(folder)
        self._next_scan_at = time.monotonic() + self._refresh_s

    def _refresh_folder(self, folder: PageFolder) -> None:
        stamps = dict(self._open().execute("SELECT url, stamp FROM pages WHERE folder = ?", (folder.url,)))
        for path, stamp in _text_files(folder.path):
            # Folders may be large, and the end of the server must not wait for them.
            if self._is_closing.is_set():
                return
            url = normalize(f"{folder.url.rstrip('/')}/{quote(path.relative_to(folder.path).as_posix())}")
            if url is None:
                continue
            if stamps.pop(url, None) != stamp and (page := _read_file(path)) is not None:
                with _Transaction(self._open()):
                    self._put(folder.url, "", url, page, stamp)
        # What is left in `stamps` was not found again: these files are gone.
        with _Transaction(self._open()):
            self._open().executemany("DELETE FROM pages WHERE folder = ? AND url = ?", [(folder.url, url) for url in stamps])


_WORD = re.compile(r"\w{1,64}")


class _Transaction:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._database.execute("COMMIT" if error_type is None else "ROLLBACK")


def _text_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that can be read, each with what changes when the file does. No link is followed."""
    count = 0
    for place, folder_names, names in os.walk(folder):
        folder_names[:] = sorted(name for name in folder_names if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if path.suffix.lower() not in FILE_TYPES or name.startswith(".") or path.is_symlink():
                continue
            count += 1
            if count > MAX_FILES:
                _log.warning("A folder for web searches has more files than are read.", folder=str(folder), files=MAX_FILES)
                return
            try:
                status = path.stat()
            except OSError:
                continue
            # A pipe would never be read to its end.
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
                yield path, f"{status.st_mtime_ns}:{status.st_size}"


def _read_file(path: Path) -> PageText | None:
    try:
        page = to_text(path.read_bytes(), FILE_TYPES[path.suffix.lower()], "")
    except OSError as error:
        _log.warning("A file for web searches can't be read.", file=str(path), reason=error.strerror)
        return None
    return page if page.title else PageText(path.stem, page.text)
