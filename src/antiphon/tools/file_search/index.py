"""
The index of a vector store: the chunks of its files, found by the vectors of their text and by its words.

It is made of what the stores keep (`IndexEntry`), so it can be lost: a vector store reads its entries again, and adds
them to a new one. Texts, words and vectors are in an SQLite database of the index's own, the vectors in memory as well:
about 820 bytes for each window.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from antiphon.tools.file_search.base import QueryEmbedder, Ranking
from antiphon.tools.file_search.chunking import Chunk, Chunking, chunk, cut_windows
from antiphon.tools.file_search.ranking import QueryMatches, merge, rank
from antiphon.tools.file_search.vectors import Floats32, Rows, VectorTable
from antiphon.tools.file_search.words import TOKENIZER, indexable, query_terms, weight

FORMAT = 1
"""The version of the database's tables; a file of another version is begun anew."""

DEPTH = 100
"""How many matches of each kind are ranked, at least."""

_FETCH = 4
"""How many times as many chunks are fetched as are returned: some have the same text, as of a file that is in two stores."""

EMBED_TEXTS = 32
"""How many windows are embedded at once: some seconds, after which it can be cancelled, and others have their turn."""

MAX_SEARCH_S = 5.0
"""How long a query's words may be searched; after that, what the vectors found is returned alone."""

_BATCH_CHUNKS = 64
"""How many chunks are written at once: some 20 ms, for which searches have to wait."""

_LEAST_WEIGHT = 1e-5
_MAX_TERMS = 10_000
"""The most terms whose weights are remembered."""

_CHECK_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock: about a millisecond."""

_SCHEMA = f"""
CREATE TABLE file (id TEXT PRIMARY KEY, version TEXT NOT NULL, parents BLOB NOT NULL, vectors BLOB NOT NULL);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, file_id TEXT NOT NULL, position INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX chunk_file ON chunk (file_id, position);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='{TOKENIZER}');
PRAGMA user_version = {FORMAT};
"""


class IndexEntry(Struct, frozen=True, kw_only=True, eq=False):
    """
    A file, ready to be searched.

    Attributes:
        file_id: of the file.
        version: changes whenever the file's chunks do, to find out what has to be indexed again.
        chunks: its text, cut.
        vectors: of unit length, of windows of the text: (windows, dimensions), half floats.
        parents: for each window the position of its chunk.
    """

    file_id: str
    chunks: Sequence[str]
    vectors: NDArray[np.float16]
    parents: NDArray[np.uint32]
    version: str = ""


async def make_entry(file_id: str, text: str, chunking: Chunking, embedder: QueryEmbedder) -> IndexEntry:
    """
    Cut a file's text and embed it; a page takes about a second.

    Raises:
        ApiError: the embedder failed.
        UnreadableFileError: the text has too many tokens.
    """
    chunks, texts, parents = await asyncio.to_thread(_cut, text, chunking)
    batches = [np.empty((0, await embedder.dimensions()), np.float16)]
    for begin in range(0, len(texts), EMBED_TEXTS):
        batches.append((await embedder.embed(texts[begin : begin + EMBED_TEXTS])).astype(np.float16))
    return IndexEntry(file_id=file_id, chunks=[each.text for each in chunks], vectors=np.concatenate(batches), parents=parents)


class Query(Struct, frozen=True, eq=False):
    """What is looked for: the words, and the vector of the text."""

    text: str
    vector: Floats32


class Match(Struct, frozen=True, kw_only=True):
    """
    A chunk that fits.

    Attributes:
        source: the position of its index among those that were searched.
        file_id: of its file.
        position: of the chunk in the file, from 0.
        text: of the chunk.
        score: 0 to 1.
    """

    source: int
    file_id: str
    position: int
    text: str
    score: float


class Index:
    """
    The index of one vector store.

    Its methods block, for milliseconds to a second with 100,000 chunks; any thread may call them.

    Args:
        dimensions: of the vectors.
        path: of a file that keeps the index; None for one that goes away with this object. A file that can't be read is
            begun anew.
    """

    def __init__(self, dimensions: int, path: Path | None = None) -> None:
        self._lock = threading.Lock()  # Held for one step at a time, so that searches come between the steps of a large file.
        self._write_lock = threading.RLock()
        self._dimensions = dimensions
        self._vectors = VectorTable(dimensions)
        self._versions: dict[str, str] = {}
        self._texts: int | None = None
        self._term_weights: dict[str, float] = {}
        self._next_id = 1  # Ids are not used again: a search under way may still hold that of a removed chunk.
        self._database = _open(path)
        try:
            self._load()
        except (sqlite3.DatabaseError, ValueError, IndexError):  # The last: it has fewer chunks than its vectors are of.
            self.close()
            self._database = _open(path, is_new=True)

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of each file by its id."""
        with self._lock:
            return dict(self._versions)

    def add(self, entry: IndexEntry) -> None:
        """Add a file, or replace it; until it is added whole, nothing of it is found."""
        parents, vectors = np.ascontiguousarray(entry.parents, "<u4"), np.ascontiguousarray(entry.vectors, "<f2")
        if vectors.shape != (len(parents), self._dimensions) or (len(parents) and int(parents.max()) >= len(entry.chunks)):
            raise ValueError("the vectors don't fit the chunks or the index")
        with self._write_lock:
            self.remove(entry.file_id)
            ids: list[int] = []
            for begin in range(0, len(entry.chunks), _BATCH_CHUNKS):
                ids += self._insert(entry.file_id, begin, entry.chunks[begin : begin + _BATCH_CHUNKS])
            # Last: what has no row here is not found, and is cleaned up when the index is opened again.
            with self._lock, self._database as database:
                row = (entry.file_id, entry.version, parents.tobytes(), vectors.tobytes())
                database.execute("INSERT INTO file VALUES (?, ?, ?, ?)", row)
                self._vectors.add(np.array(ids, np.int64)[parents], vectors)
                self._versions[entry.file_id] = entry.version

    def remove(self, file_id: str) -> bool:
        """Remove a file; returns whether it was there."""
        with self._write_lock:
            with self._lock, self._database as database:
                # First, with the vectors: the file is gone from searches while its chunks are deleted little by little.
                database.execute("DELETE FROM file WHERE id = ?", (file_id,))
                was_there = self._versions.pop(file_id, None) is not None
                ids = database.execute("SELECT id FROM chunk WHERE file_id = ?", (file_id,)).fetchall()
                self._vectors.remove(np.array(ids, np.int64).reshape(-1))
            while self._delete(file_id):
                pass
            return was_there

    def find(self, query: Query, depth: int, allowed_files: Set[str] | None) -> QueryMatches[int]:
        """
        The chunks that fit a query, by their ids in this index.

        Args:
            depth: how many of each kind.
            allowed_files: those that may be found; None for all.
        """
        with self._lock:
            allowed_rows = None if allowed_files is None or self._versions.keys() <= allowed_files else self._chunk_ids(allowed_files)
            # A chunk has about three windows, and is found once.
            owners, similarities = self._vectors.nearest(query.vector, 4 * depth, allowed_rows)
            by_vector = list(zip(owners[:depth].tolist(), similarities[:depth].tolist(), strict=True))
            return QueryMatches(by_vector, self._find_words(query.text, depth, allowed_rows))

    def chunks(self, ids: Sequence[int]) -> dict[int, tuple[str, int, str]]:
        """The chunks with these ids in this index: each with its file, its position there and its text; some may be gone."""
        query = f"SELECT id, file_id, position, text FROM chunk WHERE id IN ({', '.join('?' * len(ids))})"
        with self._lock:
            rows = self._database.execute(query, ids).fetchall()
            return {id: (file_id, position, text) for id, file_id, position, text in rows if file_id in self._versions}

    def close(self) -> None:
        """Release memory and files; idempotent."""
        with self._lock:
            self._database.close()
            self._vectors = VectorTable(self._dimensions)
            self._versions.clear()

    def _insert(self, file_id: str, begin: int, texts: Sequence[str]) -> list[int]:
        """Add chunks, from the position `begin` on; their ids."""
        with self._lock, self._database as database:
            self._forget_weights()
            ids = list(range(self._next_id, self._next_id + len(texts)))
            self._next_id += len(texts)
            chunks = ((id, file_id, begin + place, text) for place, (id, text) in enumerate(zip(ids, texts, strict=True)))
            database.executemany("INSERT INTO chunk VALUES (?, ?, ?, ?)", chunks)
            words = ((id, indexable(text)) for id, text in zip(ids, texts, strict=True))
            database.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", words)
        return ids

    def _delete(self, file_id: str) -> bool:
        """Delete some chunks of a file; whether there may be more."""
        with self._lock, self._database as database:
            self._forget_weights()
            rows = database.execute("SELECT id, text FROM chunk WHERE file_id = ? LIMIT ?", (file_id, _BATCH_CHUNKS)).fetchall()
            # FTS5, contentless tables: to delete a text, it has to be given again, as the index does not keep it.
            words = ((id, indexable(text)) for id, text in rows)
            database.executemany("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", words)
            database.executemany("DELETE FROM chunk WHERE id = ?", ((id,) for id, _ in rows))
        return len(rows) == _BATCH_CHUNKS

    def _load(self) -> None:
        # Chunks without a file were being added or removed when the server ended.
        for (file_id,) in self._database.execute(
            "SELECT DISTINCT file_id FROM chunk WHERE file_id NOT IN (SELECT id FROM file)"
        ).fetchall():
            while self._delete(file_id):
                pass
        for file_id, version, parents, vectors in self._database.execute("SELECT id, version, parents, vectors FROM file"):
            ids = self._database.execute("SELECT id FROM chunk WHERE file_id = ? ORDER BY position", (file_id,)).fetchall()
            owners = np.array([id for (id,) in ids], np.int64)[np.frombuffer(parents, "<u4")]
            self._vectors.add(owners, np.frombuffer(vectors, "<f2").reshape(len(owners), self._dimensions))
            self._versions[file_id] = version
        self._next_id = int(self._database.execute("SELECT coalesce(max(id), 0) + 1 FROM chunk").fetchone()[0])

    def _chunk_ids(self, file_ids: Set[str]) -> Rows:
        """The chunks of these files, sorted."""
        keys = [(id,) for id in self._versions.keys() & file_ids]
        ids = [id for file_id in keys for (id,) in self._database.execute("SELECT id FROM chunk WHERE file_id = ?", file_id)]
        return np.sort(np.array(ids, np.int64))

    def _find_words(self, text: str, depth: int, allowed_rows: Rows | None) -> list[tuple[int, float]]:
        """Chunks that have words of the query, with how much of it they cover, 0 to 1."""
        is_allowed = frozenset(allowed_rows.tolist()).__contains__ if allowed_rows is not None else None
        matches: list[tuple[int, float]] = []
        with self._deadline(), contextlib.suppress(sqlite3.OperationalError):  # Raised when time is up.
            weights = {term: self._weight(term) for term in query_terms(text)}
            if not weights:
                return []
            # Words that half of the chunks have say nothing, and take the most time.
            terms = [term for term, own in weights.items() if own > _LEAST_WEIGHT] or list(weights)
            # With a filter any number may be left out, so SQLite can't limit them.
            limit = "" if is_allowed else f" LIMIT {depth}"
            query = f"SELECT rowid, rank FROM words WHERE words MATCH ? ORDER BY rank{limit}"
            for id, score in self._database.execute(query, (" OR ".join(terms),)):
                if is_allowed is None or is_allowed(id):
                    # FTS5: bm25 is negative, the lower the better; a word that stands once in a text of average length has its weight.
                    matches.append((id, min(1.0, -score / sum(weights.values()))))
                    if len(matches) == depth:
                        break
        return matches

    def _weight(self, term: str) -> float:
        if term not in self._term_weights:
            if len(self._term_weights) >= _MAX_TERMS:
                self._term_weights.clear()
            if self._texts is None:
                self._texts = int(self._database.execute("SELECT count(*) FROM chunk").fetchone()[0])
            matches = self._database.execute("SELECT count(*) FROM words WHERE words MATCH ?", (term,)).fetchone()[0]
            self._term_weights[term] = weight(self._texts, matches)
        return self._term_weights[term]

    def _forget_weights(self) -> None:
        self._texts = None
        self._term_weights.clear()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        end = time.monotonic() + MAX_SEARCH_S
        self._database.set_progress_handler(lambda: time.monotonic() > end, _CHECK_STEPS)
        try:
            yield
        finally:
            self._database.set_progress_handler(None, 0)


def search(sources: Sequence[tuple[Index, Set[str] | None]], queries: Sequence[Query], ranking: Ranking, limit: int) -> list[Match]:
    """
    What fits any of the queries best, in all of these indexes together; the best is first. A text is found once.

    Args:
        sources: each with the ids of the files that may be found; None for all. See `filters.allowed_files`.
    """
    depth = max(DEPTH, 2 * limit)
    matches_by_query = [
        merge([_label(number, source[0].find(query, depth, source[1])) for number, source in enumerate(sources)]) for query in queries
    ]
    ranks = rank(matches_by_query, ranking, _FETCH * limit)
    chunks = [source.chunks([id for (own, id), _ in ranks if own == number]) for number, (source, _) in enumerate(sources)]
    matches: dict[tuple[str, str], Match] = {}
    for (source, id), score in ranks:
        if (content := chunks[source].get(id)) is not None:  # Otherwise it has just been removed.
            file_id, position, text = content
            match = Match(source=source, file_id=file_id, position=position, text=text, score=score)
            matches.setdefault((file_id, text), match)
    return list(matches.values())[:limit]


def _label(source: int, own: QueryMatches[int]) -> QueryMatches[tuple[int, int]]:
    by_vector, by_words = ([((source, id), score) for id, score in ranks] for ranks in (own.by_vector, own.by_words))
    return QueryMatches(by_vector, by_words)


def _cut(text: str, chunking: Chunking) -> tuple[list[Chunk], list[str], NDArray[np.uint32]]:
    chunks = chunk(text, chunking)
    windows = cut_windows(text, chunks)
    return chunks, [window.text for window in windows], np.array([window.parent for window in windows], np.uint32)


def _open(path: Path | None, is_new: bool = False) -> sqlite3.Connection:
    """The database of an index, empty if it has none of this format; without a path, one that SQLite keeps until it is closed."""
    if path is not None and is_new:
        for suffix in ("", "-journal", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    database = sqlite3.connect(path if path is not None else "", check_same_thread=False)
    try:
        # The index can be rebuilt from the store, so nothing needs to wait for the disk.
        database.execute("PRAGMA synchronous = OFF")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == FORMAT:
            return database
        if version == 0 and not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            database.executescript(_SCHEMA)
            return database
    except sqlite3.DatabaseError:
        pass
    database.close()
    if is_new or path is None:
        raise OSError(f"no database can be made at {path}")
    return _open(path, is_new=True)
