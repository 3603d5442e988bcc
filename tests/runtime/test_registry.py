"""Models by name: exact ones, families, and the first for whoever names none."""

import asyncio
from pathlib import Path

import pytest

from antiphon.config import ModelEntry
from antiphon.errors import ClientMistake, OurFault
from antiphon.runtime.registry import Registry


def registry(*names):
    return Registry([ModelEntry(name=name, engine="scripted") for name in names], Path(), 1, print)


def test_an_exact_name_goes_before_a_family_and_a_long_family_before_a_short_one():
    models = registry("mock-*", "mock-large-*", "mock-1")
    engines = {model.name: model.engine for model in models.all()}
    for asked, answers in (("mock-1", "mock-1"), ("mock-2", "mock-*"), ("mock-large-7", "mock-large-*")):
        found = models.find(asked)
        assert (found.name, found.engine) == (asked, engines[answers])


def test_a_name_that_nothing_answers_to_is_refused_with_those_there_are():
    with pytest.raises(ClientMistake, match=r"`gpt-9` does not exist.*'mock-\*'"):
        registry("mock-*").find("gpt-9")


def test_no_name_is_the_first_model():
    assert registry("a", "b").find(None).name == "a"


def test_no_name_is_the_first_model_that_has_a_name_of_its_own():
    models = registry("mock-*", "b")
    assert models.find(None).name == "b"
    with pytest.raises(ClientMistake):
        registry("mock-*").find(None)


def test_it_is_known_which_names_are_answered_to():
    models = registry("mock-*", "b")
    assert [name for name in ("b", "mock-1", "mock-*", "c", "") if models.has(name)] == ["b", "mock-1"]


def test_a_familys_own_name_is_nobodys():
    with pytest.raises(ClientMistake, match=r"`mock-\*` does not exist"):
        registry("mock-*").find("mock-*")


def test_the_models_of_an_engine_that_lists_none_are_those_with_names_of_their_own():
    names = [model.name for model in asyncio.run(registry("mock-*", "b", "a").listed())]
    assert names == ["b", "a"]


def test_an_engine_that_there_is_not_is_told():
    with pytest.raises(OurFault, match="no engine 'chatty'"):
        Registry([ModelEntry(name="a", engine="chatty")], Path(), 1, print)
