"""
Does a search of files find the passage that answers a question, and how long does it take?

    python bench/file_search.py [--chunks 100000] [--models FOLDER]

The 200 passages of `file_search_passages.tsv` were written for this: facts on twenty subjects, ten of each, many of which resemble one
another. Each has a question that it answers, mostly in other words. `two words` are any two of the passage itself, as people search for a
name or a number. Recall is the share of questions whose passage is among the first so many results. For `documents` the passages of a
subject are one text, cut into chunks of 100 tokens; the chunk that has the passage must be found.

The second table has the time to index a page (3,000 characters) and to ask one question among many chunks, whose vectors and words are
random, but as many and as long as real ones.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import csv
import itertools
import os
import random
import re
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from antiphon.embeddings.embedder import Embedder
from antiphon.tools.file_search.base import Ranking
from antiphon.tools.file_search.chunking import Chunking
from antiphon.tools.file_search.index import Index, IndexEntry, Query, make_entry, search
from antiphon.tools.file_search.words import COMMON_WORDS

PASSAGES = Path(__file__).parent / "file_search_passages.tsv"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
RANKINGS = {"vectors alone": Ranking(text_weight=0), "words alone": Ranking(embedding_weight=0), "hybrid": Ranking()}
DEPTHS = (1, 5, 20)
SMALL_CHUNKS = Chunking(max_tokens=100, overlap_tokens=50)
PAGE_CHARS = 3000
CHUNK_WORDS = 120
VOCABULARY = 30_000
WINDOWS_PER_CHUNK = 2


def passages():
    """Rows with a subject, a passage and a question."""
    with PASSAGES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def placements(rows):
    """The texts to index by their file's id, each way of arranging the passages; and how they are cut."""
    alone = {str(place): row["passage"] for place, row in enumerate(rows)}
    subjects = {}
    for row in rows:
        subjects.setdefault(row["subject"], []).append(row["passage"])
    together = {subject: "\n\n".join(texts) for subject, texts in subjects.items()}
    return {"files": (alone, Chunking()), "documents": (together, SMALL_CHUNKS)}


def two_words(row, dice):
    """Any two words of a passage that are no common ones."""
    words = [word for word in re.findall(r"\w+", row["passage"].lower()) if word not in COMMON_WORDS and (len(word) > 2 or word.isdigit())]
    return " ".join(dice.sample(list(dict.fromkeys(words)), 2))


async def embed_queries(texts, embedder):
    """Queries with their vectors."""
    return [Query(text, vector) for text, vector in zip(texts, await embedder.embed(texts), strict=True)]


async def recall(rows, embedder):
    """Prints the first table."""
    dice = random.Random(3)
    questions = {
        "questions": await embed_queries([row["question"] for row in rows], embedder),
        "two words": await embed_queries([two_words(row, dice) for row in rows], embedder),
    }
    print("| passages in | asked with | ranking | " + " | ".join(f"recall at {depth}" for depth in DEPTHS) + " |")
    print("|---|---|---|" + "---|" * len(DEPTHS))
    for placement, (texts, chunking) in placements(rows).items():
        index = Index(await embedder.dimensions())
        for file_id, text in texts.items():
            index.add(await make_entry(file_id, text, chunking, embedder))
        for (kind, queries), (name, ranking) in itertools.product(questions.items(), RANKINGS.items()):
            places = []
            for row, query in zip(rows, queries, strict=True):
                matches = search([(index, None)], [query], ranking, max(DEPTHS))
                places.append(next((place for place, match in enumerate(matches) if row["passage"] in match.text), len(matches)))
            shares = (f"{sum(place < depth for place in places) / len(places):.1%}" for depth in DEPTHS)
            print(f"| {placement} | {kind} | {name} | " + " | ".join(shares) + " |", flush=True)
        index.close()


async def page_s(rows, embedder):
    """Seconds to cut, embed and index a page."""
    text = " ".join(row["passage"] for row in rows)
    index = Index(await embedder.dimensions())
    times = []
    for place in range(8):
        begin = time.perf_counter()
        index.add(await make_entry(str(place), text[place * PAGE_CHARS :][:PAGE_CHARS], Chunking(), embedder))
        times.append(time.perf_counter() - begin)
    index.close()
    return statistics.median(times)


def random_entries(count, dimensions):
    """Files of 500 chunks, whose words and vectors are random."""
    dice, words = np.random.default_rng(1), random.Random(1)
    vocabulary = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=words.randint(3, 9))) for _ in range(VOCABULARY)]
    centers = dice.normal(size=(2000, dimensions)).astype(np.float32)
    for begin in range(0, count, 500):
        size = min(500, count - begin)
        vectors = centers[dice.integers(0, 2000, size * WINDOWS_PER_CHUNK)] + 0.6 * dice.normal(size=(size * WINDOWS_PER_CHUNK, dimensions))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        half = CHUNK_WORDS // 2
        chunks = [" ".join(words.choices(vocabulary, k=half) + words.choices(vocabulary[:300], k=half)) for _ in range(size)]
        parents = np.arange(size, dtype=np.uint32).repeat(WINDOWS_PER_CHUNK)
        yield IndexEntry(file_id=str(begin), chunks=chunks, vectors=vectors.astype(np.float16), parents=parents), vocabulary


def ask_ms(index, queries, ranking, allowed):
    """Milliseconds of a search: the median and the longest."""
    times = []
    for query in queries:
        begin = time.perf_counter()
        search([(index, allowed)], [query], ranking, 20)
        times.append(1000 * (time.perf_counter() - begin))
    return f"{statistics.median(times):.1f} ms | {max(times):.1f} ms"


async def speed(rows, embedder, count, path):
    """Prints the second table; `path` is that of a file for the index."""
    dimensions = await embedder.dimensions()
    print("\n| | median | longest |\n|---|---|---|")
    print(f"| a page is cut, embedded and indexed | {1000 * await page_s(rows, embedder):.0f} ms | |", flush=True)
    index, adding_s, vocabulary = Index(dimensions, path), 0.0, []
    for entry, vocabulary in random_entries(count, dimensions):  # noqa: B007 - the last vocabulary, as all are the same, is used below
        begin = time.perf_counter()
        index.add(entry)
        adding_s += time.perf_counter() - begin
    print(f"| {count:,} chunks are added, without embedding, each | {1000 * adding_s / count:.2f} ms | |", flush=True)
    dice = np.random.default_rng(2)
    vectors = dice.normal(size=(30, dimensions)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    words = random.Random(2)
    rare = [Query(" ".join(words.choices(vocabulary[1000:], k=6)), vector) for vector in vectors]
    common = [Query(" ".join(words.choices(vocabulary[:300], k=6)), vector) for vector in vectors]
    half = frozenset(str(begin) for begin in range(0, count, 1000))
    embedding = []
    for row in rows[:20]:
        begin = time.perf_counter()
        await embedder.embed([row["question"]])
        embedding.append(1000 * (time.perf_counter() - begin))
    print(f"| a question is embedded | {statistics.median(embedding):.1f} ms | {max(embedding):.1f} ms |", flush=True)
    vectors_alone, hybrid = RANKINGS["vectors alone"], RANKINGS["hybrid"]
    print(f"| asked among {count:,} chunks, rare words | {ask_ms(index, rare, hybrid, None)} |")
    print(f"| the same, half of the files allowed | {ask_ms(index, rare, hybrid, half)} |")
    print(f"| words that a fifth of the chunks have | {ask_ms(index, common, hybrid, None)} |")
    print(f"| no words | {ask_ms(index, [Query('', query.vector) for query in rare], vectors_alone, None)} |")
    index.close()
    begin = time.perf_counter()
    index = Index(dimensions, path)
    search([(index, None)], rare[:1], hybrid, 20)
    print(f"| the index is opened again from its file, and asked for the first time | {1000 * (time.perf_counter() - begin):.0f} ms | |")
    index.close()


async def run(options):
    """Prints both tables."""
    rows = passages()
    embedder = Embedder(options.models / "all-minilm-l6-v2")
    try:
        await recall(rows, embedder)
        if options.chunks:
            with tempfile.TemporaryDirectory() as folder:
                await speed(rows, embedder, options.chunks, Path(folder) / "index")
    finally:
        await embedder.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000, help="how many are asked among; 0 for recall alone")
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("ANTIPHON_MODELS") or CACHE), help="the folder of the models")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
