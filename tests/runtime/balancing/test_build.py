"""The configuration of models with several upstreams and fallbacks: errors name the key."""

from pathlib import Path

import pytest

from antiphon.config.load import ModelEntry, load
from antiphon.errors import ServerError
from antiphon.runtime.balancing.build import build_engine, fallback_problems
from antiphon.runtime.core.engine_types import load_builder
from antiphon.runtime.registry import ModelRegistry
from support.runtime.upstream_pools import CONTEXT

URL = "http://127.0.0.1:9/v1"


def entry(name="m", engine="chat", **options):
    return ModelEntry(name=name, engine=engine, options=options)


def build(**options):
    return build_engine(entry(**options), CONTEXT, {}.__getitem__)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"upstreams": []}, "`upstreams` must be an array of 1 to 256 tables, each with a `base_url`"),
        ({"upstreams": "x"}, "`upstreams` must be an array"),
        ({"upstreams": [{}]}, "in `upstreams[0]`: Object missing required field `base_url`"),
        ({"upstreams": [{"base_url": URL}, {"base_url": URL, "wieght": 2}]}, "in `upstreams[1]`: Object contains unknown field `wieght`"),
        ({"upstreams": [{"base_url": URL, "weight": 0}]}, "in `upstreams[0]`, `weight` must be more than 0"),
        ({"upstreams": [{"base_url": URL, "weight": "x"}]}, "in `upstreams[0]`, `weight`: expected a number"),
        ({"upstreams": [{"base_url": URL, "requests_per_minute": 0}]}, "must be at least 1"),
        ({"upstreams": [{"base_url": URL, "name": "ü"}]}, "`name` must be 1 to 64 ASCII characters"),
        ({"upstreams": [{"base_url": URL, "name": "a"}] * 2}, "more than one of `upstreams` is named 'a'"),
        ({"upstreams": [{"base_url": URL, "fallback": ["x"]}]}, "in `upstreams[0]`, 'fallback' can't stand"),
        ({"upstreams": [{"base_url": URL}], "base_url": URL}, "`base_url` stands in each of `upstreams`"),
        ({"upstreams": [{"base_url": URL}], "balance": "round"}, "`balance`: expected 'affinity' or 'least_outstanding', got 'round'"),
        ({"upstreams": [{"base_url": URL}], "affinity_factor": 1}, "`affinity_factor` must be more than 1"),
        ({"base_url": URL, "fallback": ["a", "a"]}, "`fallback` names 'a' more than once"),
        ({"base_url": URL, "fallback_on": ["weather"]}, "fallback_on"),
        ({"upstreams": [{"base_url": URL, "api_key": "sk-123"}]}, "Put the key in an environment variable"),
        ({"engine": "scripted", "upstreams": [{}]}, "`upstreams` is for the engines 'chat' and 'responses'"),
        ({"engine": "realtime", "fallback": ["a"]}, "`fallback` is for the engines"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(options, says):
    with pytest.raises(ServerError) as error:
        build(**options)
    assert says in error.value.message
    assert "'m'" in error.value.message


def test_a_misspelt_upstreams_is_asked_after():
    with pytest.raises(ServerError, match="Did you mean 'upstreams'"):
        build(upstream=[{"base_url": URL}])


def test_names_are_numbered_and_options_shared():
    engine = build(upstreams=[{"base_url": URL}, {"base_url": URL, "concurrency": 2, "name": "gpu"}], concurrency=8, failures=3)
    limits = [upstream.limits for upstream in engine.pool.upstreams]
    assert [each.name for each in limits] == ["upstream-1", "gpu"]
    assert [each.concurrency for each in limits] == [8, 2]
    assert [each.affinity_floor for each in limits] == [8, 2]
    assert [each.failures for each in limits] == [3, 3]


def test_an_engine_knows_the_name_of_its_upstream_for_the_log():
    names = []

    def build_one(model, options, context):
        names.append(context.upstream_name)
        return load_builder("chat")(model, options, context)

    table = {"base_url": URL}
    build_engine(entry(upstreams=[table, {**table, "name": "gpu"}]), CONTEXT, {}.__getitem__, find_builder=lambda _engine: build_one)
    assert names == ["upstream-1", "gpu"]


def test_the_engine_responses_may_have_several_too():
    assert len(build(engine="responses", upstreams=[{"base_url": URL}] * 3).pool.upstreams) == 3


def test_a_fallback_that_is_no_model_is_said_with_a_similar_name():
    ((name, problem),) = fallback_problems([entry("large", base_url=URL, fallback=["smal"]), entry("small", base_url=URL)])
    assert name == "large"
    assert problem == "The options of model 'large' are wrong: `fallback` names 'smal', which is no model here. Did you mean 'small'?"
    with pytest.raises(ServerError, match="'smal'"):
        ModelRegistry([entry("large", base_url=URL, fallback=["smal"])], Path(), 1, print)


def test_a_circle_of_fallbacks_is_said():
    models = [entry("a", base_url=URL, fallback=["b"]), entry("b", base_url=URL, fallback=["c"]), entry("c", base_url=URL, fallback=["a"])]
    ((name, problem),) = fallback_problems(models)
    assert name == "a" and problem == "The options of model 'a' are wrong: its `fallback` leads back to it: a > b > c > a."
    ((_, problem),) = fallback_problems([entry("a-*", base_url=URL, fallback=["a-1"])])
    assert "a-* > a-*" in problem


def test_fallbacks_without_a_circle_are_fine():
    models = [entry("a", base_url=URL, fallback=["b", "c-7"]), entry("b", base_url=URL, fallback=["c-1"]), entry("c-*", base_url=URL)]
    assert not fallback_problems(models)
    registry = ModelRegistry(models, Path(), 1, print)
    assert registry.find("a").engine.capabilities.tools
    assert not registry.upstreams()


def test_keys_of_upstreams_are_read_from_their_variables(tmp_path):
    (tmp_path / "antiphon.toml").write_text(
        f"""
        [[models]]
        name = "m"
        engine = "chat"
        upstreams = [{{ base_url = "{URL}", api_key_env = "FIRST_KEY" }}, {{ base_url = "{URL}", api_key_env = "SECOND_KEY" }}]
        """
    )
    environ = {"HOME": str(tmp_path), "FIRST_KEY": "sk-first", "SECOND_KEY": "sk-second"}
    config = load({}, None, environ, tmp_path, system_file=tmp_path / "none.toml").config
    assert dict(config.secrets) == {"FIRST_KEY": "sk-first", "SECOND_KEY": "sk-second"}
