"""The gates of names: one class name for one class, and no past participle where a noun, a verb or an adjective belongs."""

import re
from collections import defaultdict

from support.architecture import SOURCE
from support.modules import modules

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


def is_participle(name: str) -> bool:
    """Whether a name is one alone: the event `SpeechStopped` and the flag `is_closed` are none, nor is the state `CLOSED`."""
    word = name.strip("_")
    if not re.fullmatch(r"[A-Z]?[a-z]+", word):
        return False
    word = word.lower()
    return word in IRREGULAR or (word.endswith("ed") and word not in NO_PARTICIPLES)


def test_a_public_class_name_stands_once_in_the_house():
    places: dict[str, list[str]] = defaultdict(list)
    for path, module in modules("src").items():
        for name in module.classes:
            if not name.startswith("_") and not path.is_relative_to(SOURCE / "wire"):
                places[name].append(str(path))
    assert {name for name, paths in places.items() if len(paths) > 1} == set(SHARED_CLASS_NAMES)


def test_no_past_participle_is_a_name():
    # A field's name is chosen by a protocol, a file or a database.
    participles = {(path, name) for path, module in modules("src").items() for name in module.names - module.fields if is_participle(name)}
    assert not {(path, name) for path, name in participles if name not in EXCEPTIONS}
