"""
How often does routing choose the right category, and how much time does it add to a request?

    python bench/routing.py [--models FOLDER]

The prompts of `routing_prompts.tsv` are classified with the examples in `docs/guide/routing.md`, which contain none of them. In the second
column the classifier also gets four fifths of the English prompts, always without the one it classifies; they are enough for the logistic
regression. `right` is the share of prompts whose best category is the right one, `decided` the share that reaches the threshold and the
margin in a language that has examples, and `right of these` the share of right ones among the decided.

The second table has the time of one decision, one request after another: for a name that is no route, for rules, and for texts that the
classifier has or has not seen before.
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import argparse
import asyncio
import csv
import logging
import os
import re
import statistics
import tempfile
import time
import tomllib
from pathlib import Path

import structlog

from antiphon.config.load import load
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.language import detect_language
from antiphon.runtime.registry import ModelRegistry
from antiphon.runtime.resolve_request import KnownHistory
from antiphon.runtime.routing.classifier import ExampleClassifier, TextVectors, new_embedder, stack
from antiphon.runtime.routing.features import RouteCaller, classified_text
from antiphon.runtime.routing.router import EMBEDDING_MODEL
from antiphon.runtime.service import build_router, route_capabilities
from antiphon.server.responses.routing import request_features
from antiphon.wire.responses.request import CreateRequest

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "guide" / "routing.md"
PROMPTS = ROOT / "bench" / "routing_prompts.tsv"
FOLDS = 5
ROUNDS = 2_000
MODELS = [{"name": name, "engine": "scripted"} for name in ("small", "large", "coder")]
NO_HISTORY = KnownHistory((), 0)


def prompts():
    """The labelled prompts."""
    with PROMPTS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def guide_route():
    """The route with examples that the guide shows."""
    blocks = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return next(table["routing"] for table in map(tomllib.loads, blocks) if "examples" in table.get("routing", {}))


def classifier_of(examples, vector_by_text):
    """A classifier of pairs of category and text."""
    by_category = {}
    for category, text in examples:
        by_category.setdefault(category, []).append(vector_by_text[classified_text(text)])
    return ExampleClassifier({category: stack(vectors) for category, vectors in by_category.items()})


def score(classifier, row, vector_by_text):
    """The scores of a prompt, and the category that is chosen, if any."""
    scores = classifier.scores(vector_by_text[classified_text(row["text"])])
    return scores, classifier.choose(scores) if detect_language(row["text"]) in ("en", None) else None


def folded_scores(rows, examples, vector_by_text):
    """The same for each prompt, by a classifier that was trained on the examples and the other folds."""
    scored = [None] * len(rows)
    for fold in range(FOLDS):
        training = [(row["category"], row["text"]) for index, row in enumerate(rows) if index % FOLDS != fold and row["language"] == "en"]
        classifier = classifier_of([*examples, *training], vector_by_text)
        assert classifier.method == "probability"
        for index in range(fold, len(rows), FOLDS):
            scored[index] = score(classifier, rows[index], vector_by_text)
    return scored


def shares(rows, scored):
    """The shares that are right, decided, and right among the decided, as columns."""
    pairs = list(zip(rows, scored, strict=True))
    right = [scores[0].category == row["category"] for row, (scores, _) in pairs]
    decided = [best.category == row["category"] for row, (_, best) in pairs if best is not None]
    return f"{statistics.mean(right):6.1%} {len(decided) / len(pairs):8.1%} {statistics.mean(decided) if decided else 0:15.1%}"


async def show_accuracy(folder, scratch):
    rows = prompts()
    examples = [(entry["category"], text) for entry in guide_route()["examples"] for text in entry["texts"]]
    assert not {row["text"] for row in rows} & {text for _, text in examples}
    vectors = TextVectors(new_embedder(folder / EMBEDDING_MODEL), scratch / "vectors.npz")
    await vectors.start()
    texts = [text for _, text in examples] + [row["text"] for row in rows]
    vector_by_text = await vectors.of_examples(classified_text(text) for text in texts)
    await vectors.stop()
    classifier = classifier_of(examples, vector_by_text)
    scored = [score(classifier, row, vector_by_text) for row in rows]
    folded = folded_scores(rows, examples, vector_by_text)
    print(f"{len(examples)} examples of the guide, {len(rows)} prompts; threshold {classifier.threshold}, margin {classifier.margin}\n")
    print(f"{'':<22}{'':>5}  {'guide: right, decided, right of these':<33}  with {FOLDS - 1} fifths of the prompts too")
    groups = {
        "all": lambda _row: True,
        "English": lambda row: row["language"] == "en",
        "English, plain": lambda row: row["language"] == "en" and row["difficulty"] == "plain",
        "English, hard": lambda row: row["language"] == "en" and row["difficulty"] == "hard",
        "other languages": lambda row: row["language"] != "en",
        **{f"English {name}": lambda row, name=name: row["category"] == name and row["language"] == "en" for name in dict(examples)},
    }
    for name, is_in in groups.items():
        chosen = [index for index, row in enumerate(rows) if is_in(row)]
        of = lambda scores, chosen=chosen: shares([rows[index] for index in chosen], [scores[index] for index in chosen])  # noqa: E731
        print(f"{name:<22}{len(chosen):5}  {of(scored):<33}  {of(folded)}")
    return rows


async def measure(router, name, texts):
    """Microseconds of each decision."""
    times = []
    for text in texts:
        request = CreateRequest(model=name, input=text)
        started_at = time.perf_counter()
        await router.resolve(name, lambda request=request: request_features(request, NO_HISTORY), RouteCaller())
        times.append(1e6 * (time.perf_counter() - started_at))
    return sorted(times)


async def show_times(folder, scratch, rows):
    keys = ({"language": "xx"}, {"pattern": r"(?i)\bnever there\b"}, {"min_input_tokens": 10**6}, {"has_images": True})
    rules = [{"model": "large", "when": {**keys[number % 4]}} for number in range(20)]
    rules = [{"model": "large", "when": {"language": "fi"}} if "language" in rule["when"] else rule for rule in rules]
    routing = [{"name": "rules", "default": "small", "rules": rules}, {"name": "examples", **guide_route(), "timeout_ms": 10_000}]
    config = load({"models": MODELS, "routing": routing}, None, {"HOME": str(scratch), "ANTIPHON_MODELS": str(folder)}, scratch).config
    registry = ModelRegistry(config.models, folder, 0, print)
    router = build_router(
        config, registry, Metrics(), print, lambda model, features: route_capabilities(model, features, transcribes=False)
    )
    await router.start()
    texts = [row["text"] for row in rows]
    many = (texts * (ROUNDS // len(texts) + 1))[:ROUNDS]
    print(f"\n{'one decision':<38}{'p50':>10}{'p99':>10}")
    for label, name, each in (
        ("a model's own name", "small", many),
        ("20 rules, of which none matches", "rules", many),
        ("examples, a new text", "examples", texts),
        ("examples, a known text", "examples", many),
    ):
        times = await measure(router, name, each)
        print(f"{label:<38}{times[len(times) // 2]:>7.0f} µs{times[len(times) * 99 // 100]:>7.0f} µs")
    await router.stop()
    await registry.stop()


async def main():
    arguments = argparse.ArgumentParser(description="What routing costs, and how often it is right.")
    default = os.environ.get("ANTIPHON_MODELS") or Path.home() / ".cache" / "antiphon" / "models"
    arguments.add_argument("--models", type=Path, default=Path(default), help="the folder of model files")
    folder = arguments.parse_args().models
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as scratch:
        rows = await show_accuracy(folder, Path(scratch))
        await show_times(folder, Path(scratch), rows)


if __name__ == "__main__":
    asyncio.run(main())
