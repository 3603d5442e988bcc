"""The vectors of a part of an indexed file, as they are stored; and a whole file for the index, from its parts."""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from antiphon.records import IndexedFileRecord, IndexPart
from antiphon.runtime.vector_stores.part_text import decode_text
from antiphon.tools.file_search.index import IndexEntry


class _StoredVectors(Struct, frozen=True, array_like=True):
    """`vectors` are half floats, `parents` 32-bit integers: for each vector the chunk within its part; little-endian."""

    dimensions: int
    parents: bytes
    vectors: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_StoredVectors)


def encode_vectors(entry: IndexEntry) -> bytes:
    """The vectors of a part as they are stored."""
    vectors = np.ascontiguousarray(entry.vectors, "<f2")
    return _encoder.encode(_StoredVectors(vectors.shape[1], np.ascontiguousarray(entry.parents, "<u4").tobytes(), vectors.tobytes()))


def index_version(file: IndexedFileRecord) -> str:
    """Identifies the indexed text of a file. Its number alone does not: a restored database may give it out a second time."""
    return f"{file.number} {file.created_at} {file.usage_bytes} {file.max_chunk_tokens} {file.overlap_tokens}"


def join_parts(file: IndexedFileRecord, parts: Sequence[IndexPart]) -> IndexEntry:
    """A file for the index, from all its parts in order."""
    chunks: list[str] = []
    vectors, parents = [], []
    for part in parts:
        content = _decoder.decode(part.vectors)
        parents.append(np.frombuffer(content.parents, "<u4") + np.uint32(len(chunks)))
        vectors.append(np.frombuffer(content.vectors, "<f2").reshape(-1, content.dimensions))
        chunks += decode_text(part.chunks).chunks
    return IndexEntry(
        file_id=file.file_id, chunks=chunks, vectors=np.concatenate(vectors), parents=np.concatenate(parents), version=index_version(file)
    )
