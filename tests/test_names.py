"""The gates of names: one class name for one class, and no past participle where a noun, a verb or an adjective belongs."""

import ast
import functools
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "antiphon"

SHARED_CLASS_NAMES: dict[str, str] = {}
"""Public class names that stand in several modules outside `wire`, whose dialects each have their own, and why."""

IRREGULAR = frozenset(
    """
    asked begun bought bound broken brought built caught chosen come dealt done drawn driven eaten fallen fed felt forgotten
    found given gone grown had heard held hidden kept known laid led left lent lost made meant met paid said seen sent shaken
    shown sold spent spoken stood struck stuck sung taken taught thought thrown told understood woken won worn written
    """.split()
)
NO_PARTICIPLES = frozenset({"bleed", "breed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})

EXCEPTIONS: dict[str, str] = {
    "Tagged": "msgspec calls a struct so that says in a field which of a union's it is",
    "Typed": "likewise",
    "disconnected": "uvicorn's own",
    "left": "the side",
}
"""Participles that stay, and why."""


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    gc.disable()  # trees have no cycles, and looking for some takes longer than parsing
    try:
        return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]
    finally:
        gc.enable()


def is_participle(name: str) -> bool:
    """Whether a name is one alone: the event `SpeechStopped` and the flag `is_closed` are none, nor is the state `CLOSED`."""
    word = name.strip("_")
    if not re.fullmatch(r"[A-Z]?[a-z]+", word):
        return False
    word = word.lower()
    return word in IRREGULAR or (word.endswith("ed") and word not in NO_PARTICIPLES)


def names(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives: to functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def fields_of_wire_types(tree: ast.Module) -> set[str]:
    """Names that a protocol, a file or a database has chosen: fields of structs, and of settings."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        node.target.id for each in classes for node in each.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_a_public_class_name_stands_once_in_the_house():
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not path.startswith("wire/"):
                places[node.name].append(path)
    assert {name for name, paths in places.items() if len(paths) > 1} == set(SHARED_CLASS_NAMES)


def test_no_past_participle_is_a_name():
    participles = {(path, name) for path, tree in trees() for name in {*names(tree)} - fields_of_wire_types(tree) if is_participle(name)}
    assert not {(path, name) for path, name in participles if name not in EXCEPTIONS}
