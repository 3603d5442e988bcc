"""Models by name: exact ones, families, and the first for whoever names none."""

import asyncio
from pathlib import Path

import pytest

from antiphon.config.load import ModelEntry
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.scripted.engine import ScriptedEngine
from antiphon.engines.scripted.script import ALL_CAPABILITIES, Script
from antiphon.errors import ClientError, ServerError
from antiphon.runtime.registry import ModelRegistry
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.scheduling.engine import QueuedEngine
from antiphon.runtime.scheduling.local import LocalCoordinator


def registry(*names):
    return ModelRegistry([ModelEntry(name=name, engine="scripted") for name in names], Path(), 1, print)


def test_an_exact_name_goes_before_a_family_and_a_long_family_before_a_short_one():
    models = registry("mock-*", "mock-large-*", "mock-1")
    engines = {model.name: model.engine for model in models.all()}
    for asked, answers in (("mock-1", "mock-1"), ("mock-2", "mock-*"), ("mock-large-7", "mock-large-*")):
        found = models.find(asked)
        assert (found.name, found.engine) == (asked, engines[answers])


def test_a_name_that_nothing_answers_to_is_refused_with_those_there_are():
    with pytest.raises(
        ClientError, match=r"`gpt-9` does not exist.*This server has 'b' and any name that begins with 'mock-', such as 'mock-1'\."
    ):
        registry("b", "mock-*").find("gpt-9")
    assert registry("mock-*").find("mock-1")


def test_a_refused_name_is_told_where_those_of_an_upstream_are_listed():
    models = [ModelEntry(name="gpt-*", engine="chat", options={"base_url": "http://127.0.0.1:9/v1"})]
    with pytest.raises(ClientError, match=r"has the models in `GET /v1/models` whose names begin with 'gpt-'\."):
        ModelRegistry(models, Path(), 1, print).find("o9")


def test_no_name_is_the_first_model():
    assert registry("a", "b").find(None).name == "a"


def test_no_name_is_the_first_model_that_has_a_name_of_its_own():
    models = registry("mock-*", "b")
    assert models.find(None).name == "b"


def test_no_name_is_a_missing_parameter_where_every_model_needs_one():
    with pytest.raises(ClientError) as refusal:
        registry("mock-*").find(None)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (400, "missing_required_parameter", "model")


def test_no_name_is_the_first_model_that_surely_makes_vectors_where_these_are_wanted():
    chat = {"engine": "chat", "options": {"base_url": "http://127.0.0.1:9/v1"}}
    rows = [ModelEntry(name="b*", **chat), ModelEntry(name="c", **chat), ModelEntry(name="v", engine="embeddings")]
    rows = [ModelEntry(name="a", engine="scripted"), *rows, ModelEntry(name="d", **chat)]
    models = ModelRegistry(rows, Path(), 1, print)
    assert [models.find_relaying(None, path).name for path in ("embeddings", "completions")] == ["v", "c"]
    models = ModelRegistry([row for row in rows if row.name != "v"], Path(), 1, print)
    assert models.find_relaying(None, "embeddings").name == "c"


def test_it_is_known_which_names_are_answered_to():
    models = registry("mock-*", "b")
    assert [name for name in ("b", "mock-1", "mock-*", "c", "") if models.has(name)] == ["b", "mock-1"]


def test_a_familys_own_name_is_nobodys():
    with pytest.raises(ClientError, match=r"`mock-\*` does not exist"):
        registry("mock-*").find("mock-*")


def test_the_models_of_an_engine_that_lists_none_are_those_with_names_of_their_own():
    names = [model.name for model in asyncio.run(registry("mock-*", "b", "a").list_models())]
    assert names == ["b", "a"]


def test_an_engine_that_there_is_not_is_told():
    with pytest.raises(ServerError, match="no engine 'chatty'"):
        ModelRegistry([ModelEntry(name="a", engine="chatty")], Path(), 1, print)


def test_every_model_has_a_place_for_each_conversation_or_as_many_as_are_configured():
    places = LocalCoordinator()
    entries = [ModelEntry(name="any number", engine="scripted"), ModelEntry(name="one", engine="scripted", sessions=1)]
    ModelRegistry(entries, Path(), 1, print, coordinator=places)
    assert [(seen.worker.id, seen.worker.slots) for seen in places.workers()] == [("any-number-1", None), ("one-1", 1)]


def test_models_whose_names_are_alike_have_workers_of_their_own():
    places = LocalCoordinator()
    ModelRegistry([ModelEntry(name=name, engine="scripted") for name in ("a/b", "a b")], Path(), 1, print, coordinator=places)
    assert [(seen.worker.id, seen.worker.model) for seen in places.workers()] == [("a-b-1", "a/b"), ("a-b-2", "a b")]


def test_each_worker_of_an_engine_of_several_has_a_place_and_whoever_wants_one_waits_for_it():
    places = LocalCoordinator()
    options = {"workers": ["ws://10.0.0.5:22400", "http://10.0.0.6:22400"]}
    model = ModelRegistry([ModelEntry(name="m", engine="omni", options=options)], Path(), 1, print, coordinator=places).find("m")
    assert [(seen.worker.address, seen.worker.slots) for seen in places.workers()] == [("10.0.0.5:22400", 1), ("10.0.0.6:22400", 1)]
    assert all(isinstance(engine, QueuedEngine) for engine in (model.engine, model.live_engine, model.duplex_engine))
    assert model.duplex_engine.capabilities.full_duplex
    assert model.duplex_engine.capabilities.sessions is None  # as many as come: they wait


def test_a_model_whose_workers_join_can_do_what_the_first_of_them_can():
    places = LocalCoordinator()
    model = ModelRegistry([ModelEntry(name="m", engine="worker")], Path(), 1, print, coordinator=places).find("m")
    assert model.engine.capabilities == Capabilities()
    places.add_worker(Worker(id="w", model="m", engine=ScriptedEngine(Script())))
    assert model.engine.capabilities == ALL_CAPABILITIES
