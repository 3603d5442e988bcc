"""
What routing adds to a request, and how often it is right.

    python bench/routing.py [--models FOLDER]

The prompts of `routing_prompts.tsv` are classified by the examples that `docs/guide/routing.md` shows, of which none is among them; and, in
the second column, by these and the four fifths of the English prompts that they are not in, which are enough for the logistic regression.
`right` is the share whose best category is the right one, `decided` the share that reaches threshold and margin in a language that examples
are in, and `right of these` what it says. Then times, one request after another: for a name that is no route, for rules, and for texts that
are new to the classifier and that it knows.
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


def scored_by(classifier, row, vector_by_text):
    """The scores of a prompt, and the category that is chosen, if any."""
    scores = classifier.scores(vector_by_text[classified_text(row["text"])])
    return scores, classifier.choose(scores) if detect_language(row["text"]) in ("en", None) else None


def folded_scores(rows, examples, vector_by_text):
    """The same for each prompt, by a classifier that has learnt from the examples and the other folds."""
    scored = [None] * len(rows)
    for fold in range(FOLDS):
        known = [(row["category"], row["text"]) for index, row in enumerate(rows) if index % FOLDS != fold and row["language"] == "en"]
        classifier = classifier_of([*examples, *known], vector_by_text)
        assert classifier.method == "probability"
        for index in range(fold, len(rows), FOLDS):
            scored[index] = scored_by(classifier, rows[index], vector_by_text)
    return scored


def shares(rows, scored):
    """Right, decided, and right among the decided, in per cent."""
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
    scored = [scored_by(classifier, row, vector_by_text) for row in rows]
    folded = folded_scores(rows, examples, vector_by_text)
    print(f"{len(examples)} examples of the guide, {len(rows)} prompts; threshold {classifier.threshold}, margin {classifier.margin}\n")
    print(f"{'':<22}{'':>5}  {'by the guide: right, decided, right of these':<33}  by these and {FOLDS - 1} fifths of the prompts")
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
        begun = time.perf_counter()
        await router.resolve(name, lambda request=request: request_features(request, NO_HISTORY), RouteCaller())
        times.append(1e6 * (time.perf_counter() - begun))
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
        ("20 rules, of which none fits", "rules", many),
        ("examples, a text that is new", "examples", texts),
        ("examples, a text that is known", "examples", many),
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
