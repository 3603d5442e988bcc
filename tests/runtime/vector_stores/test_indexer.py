"""What of a file is stored, part by part, and what happens when something on the way is not there."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.config.tools.vector_stores import VectorStoreSettings
from antiphon.errors import overloaded_error
from antiphon.records import IndexedFileRecord, IndexPart
from antiphon.runtime.vector_stores.indexer import MAX_RETRIES, FileIndexer, cut_parts
from antiphon.runtime.vector_stores.part_text import StoredText, decode_text, encode_text, without_overlaps
from antiphon.runtime.vector_stores.part_vectors import encode_vectors, index_version, join_parts
from antiphon.stores.memory import MemoryStore
from antiphon.subprocesses import Backoff
from antiphon.tools.file_search.chunking import Chunking, chunk
from antiphon.tools.file_search.index import IndexEntry
from antiphon.tools.file_search.parsing import Parsers
from support.runtime.vector_stages import HeldEmbedder, VectorStage

WORDS = st.lists(st.sampled_from(["owl", "night.", "bronze", "ä", "月亮", "👩‍🚀", "\n\n", "a" * 300, "  "]), min_size=1, max_size=3000)


@given(WORDS, st.sampled_from([(100, 0), (100, 50), (800, 400), (200, 17)]))
def test_the_parts_of_a_text_are_all_of_it(words: list[str], sizes: tuple[int, int]) -> None:
    text = " ".join(words)
    chunking = Chunking(max_tokens=sizes[0], overlap_tokens=sizes[1])
    spans = cut_parts(text, chunking)
    parts = []
    for begin, end in spans:
        piece = text[begin:end]
        chunks = chunk(piece, chunking)
        part = StoredText(begin, piece, [(each.begin, each.end) for each in chunks])
        assert part.chunks == [each.text for each in chunks]
        assert decode_text(encode_text(part)) == part
        parts.append(part)
    assert "".join("".join(without_overlaps(parts)).split()) == "".join(text.split())


def test_a_file_comes_out_of_its_parts_as_it_went_in() -> None:
    random = np.random.default_rng(3)
    parts = []
    for position, count in enumerate((2, 1, 3)):
        text = "abc" * count
        vectors, parents = random.normal(size=(2 * count, 8)).astype(np.float16), np.repeat(np.arange(count), 2).astype(np.uint32)
        entry = IndexEntry(file_id="file-1", chunks=["abc"] * count, vectors=vectors, parents=parents)
        spans = [(3 * place, 3 * place + 3) for place in range(count)]
        parts.append((IndexPart(position, count, encode_text(StoredText(0, text, spans)), encode_vectors(entry)), vectors))
    file = IndexedFileRecord(
        number=7, store_id="vs_1", file_id="file-1", filename="a", created_at=1, max_chunk_tokens=800, overlap_tokens=400
    )
    whole = join_parts(file, [part for part, _ in parts])
    assert (whole.file_id, whole.version, list(whole.chunks)) == ("file-1", index_version(file), ["abc"] * 6)
    assert np.array_equal(whole.vectors, np.concatenate([vectors for _, vectors in parts]))
    assert whole.parents.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


class BusyEmbedder(HeldEmbedder):
    """Refuses so many calls."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def embed(self, texts):  # type: ignore[no-untyped-def]
        if self.refusals:
            self.refusals -= 1
            raise overloaded_error("Too many requests.")
        return await super().embed(texts)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(("refusals", "status"), [(3, "completed"), (MAX_RETRIES + 1, "failed")])
async def test_what_may_pass_is_tried_again_but_not_for_ever(tmp_path: Path, refusals: int, status: str) -> None:
    embedder = BusyEmbedder(refusals)
    stage = VectorStage(MemoryStore(), tmp_path, embedder)
    store = await stage.create(await stage.upload("file-1", "Owls hunt at night"))
    indexer = FileIndexer(stage.store, stage.files, Parsers(), embedder, "words", VectorStoreSettings(), Backoff((0.0,)))
    job = await stage.store.indexes.claim()
    assert job is not None
    await indexer.index(job)
    assert (await stage.file(store.id, "file-1")).status == status
    assert embedder.refusals == 0


@pytest.mark.anyio
async def test_a_file_without_bytes_that_can_be_read_fails(tmp_path: Path) -> None:
    stage = VectorStage(MemoryStore(), tmp_path)
    store = await stage.create(await stage.upload("file-1", "Owls"))
    (tmp_path / "file-1" / "content").unlink()
    indexer = FileIndexer(stage.store, stage.files, Parsers(), stage.embedder, "words", VectorStoreSettings(), Backoff((0.0,)))
    job = await stage.store.indexes.claim()
    assert job is not None
    await indexer.index(job)
    file = await stage.file(store.id, "file-1")
    assert file.status == "failed" and file.error is not None and file.error.code == "server_error"
    assert str(tmp_path) not in file.error.message
