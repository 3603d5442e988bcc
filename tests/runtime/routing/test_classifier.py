"""Texts go to the category whose examples they resemble; vectors are made once."""

import asyncio
import gc

import numpy as np
import pytest

from antiphon.errors import ServerError
from antiphon.runtime.routing.classifier import MIN_LEARNT_EXAMPLES, ExampleClassifier, TextVectors
from support.runtime.word_embedder import WordEmbedder, embed_words


def vectors(*texts: str) -> np.ndarray:
    return np.stack([embed_words(text) for text in texts])


def test_the_score_is_the_mean_of_the_three_closest_examples():
    classifier = ExampleClassifier({"code": vectors("a", "b", "c", "d"), "chat": vectors("x")})
    scores = classifier.scores(embed_words("a b"))
    assert classifier.method == "similarity"
    assert [name for name, _ in scores] == ["code", "chat"]
    assert scores[0].score == pytest.approx(2 / 3 / np.sqrt(2))
    assert scores[1].score == pytest.approx(0)


def test_a_best_category_must_be_good_enough_and_ahead():
    examples = {"code": vectors("a"), "chat": vectors("b")}
    text = embed_words("a a b")  # 2/√5 and 1/√5
    for threshold, margin, chosen in ((0.8, 0.4, "code"), (0.9, 0.4, None), (0.8, 0.5, None)):
        classifier = ExampleClassifier(examples, threshold, margin)
        best = classifier.choose(classifier.scores(text))
        assert (best and best.category) == chosen


def test_from_twenty_examples_of_each_on_it_learns_to_tell_them_apart():
    random = np.random.default_rng(1)

    def cloud(count: int, axis: int) -> np.ndarray:
        rows = random.normal(0, 0.6, (count, 8)).astype(np.float32)
        rows[:, axis] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    few = ExampleClassifier({"a": cloud(MIN_LEARNT_EXAMPLES, 0), "b": cloud(MIN_LEARNT_EXAMPLES - 1, 1)})
    assert few.method == "similarity"
    classifier = ExampleClassifier({"a": cloud(60, 0), "b": cloud(20, 1), "c": cloud(30, 2)})
    assert classifier.method == "probability"
    hits = [classifier.scores(row)[0].category == name for axis, name in enumerate("abc") for row in cloud(50, axis)]
    assert np.mean(hits) > 0.7
    scores = classifier.scores(cloud(1, 0)[0])
    assert sum(each.score for each in scores) == pytest.approx(1)


def test_a_text_is_embedded_once(tmp_path):
    async def run() -> None:
        embedder = WordEmbedder()
        source = TextVectors(embedder, tmp_path / "examples.npz")
        first, second = await source.of_request("hello you", 5), await source.of_request("hello you", 5)
        assert np.array_equal(first, second)
        assert embedder.texts == ["hello you"]
        await source.stop()

    asyncio.run(run())


def test_examples_are_read_from_the_file_after_a_restart_and_only_new_ones_are_made(tmp_path):
    async def made(texts: list[str]) -> list[str]:
        embedder = WordEmbedder()
        source = TextVectors(embedder, tmp_path / "deep" / "examples.npz")
        by_text = await source.of_examples(texts)
        assert all(np.array_equal(by_text[text], embed_words(text)) for text in texts)
        await source.stop()
        return embedder.texts

    assert asyncio.run(made(["a", "b", "a"])) == ["a", "b"]
    assert asyncio.run(made(["b", "c"])) == ["c"]
    assert asyncio.run(made(["c", "b"])) == []
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["examples.npz"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04broken"])
def test_a_damaged_file_is_made_anew(tmp_path, content):
    async def run() -> list[str]:
        (tmp_path / "examples.npz").write_bytes(content)
        embedder = WordEmbedder()
        await TextVectors(embedder, tmp_path / "examples.npz").of_examples(["a"])
        return embedder.texts

    assert asyncio.run(run()) == asyncio.run(run()) == ["a"]


def test_vectors_that_cannot_be_stored_are_a_note(tmp_path):
    (tmp_path / "file").touch()
    notes: list[str] = []
    source = TextVectors(WordEmbedder(), tmp_path / "file" / "examples.npz", notes.append)
    assert "a" in asyncio.run(source.of_examples(["a"]))
    assert "could not be stored" in notes[0]


def test_a_request_does_not_wait_for_long_but_what_comes_late_is_remembered(tmp_path):
    async def run() -> None:
        embedder = WordEmbedder(is_held=True)
        source = TextVectors(embedder, tmp_path / "examples.npz")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await source.of_request("slow", 0.001)
        embedder.release.set()
        assert np.array_equal(await source.of_request("slow", 5), embed_words("slow"))
        assert embedder.texts == ["slow"]
        embedder.release.clear()
        with pytest.raises(TimeoutError):
            await source.of_request("never", 0.001)
        await source.stop()

    asyncio.run(run())


def test_a_text_that_fails_when_nobody_waits_any_more_is_no_defect(tmp_path):
    class Failing(WordEmbedder):
        async def embed(self, texts):
            await super().embed(texts)
            raise ServerError("It is damaged.")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
        embedder = Failing(is_held=True)
        source = TextVectors(embedder, tmp_path / "examples.npz")
        with pytest.raises(TimeoutError):
            await source.of_request("slow", 0.001)
        embedder.release.set()
        with pytest.raises(ServerError):
            await source.of_request("another", 5)
        await source.stop()
        gc.collect()

    reports: list[dict[str, object]] = []
    asyncio.run(run())
    assert reports == []
