"""Routes in a configuration: as one table or several, and with their mistakes named."""

import re
from datetime import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from antiphon.config.load import Config, ConfigError, load
from antiphon.config.routing import compile_pattern, parse_hours, routing_problems

MODELS = """
[[models]]
name = "small"
engine = "scripted"
[[models]]
name = "large"
engine = "scripted"
"""


def loaded(tmp_path: Path, text: str) -> Config:
    (tmp_path / "antiphon.toml").write_text(text + MODELS)
    return load({}, None, {"HOME": str(tmp_path)}, tmp_path, tmp_path / "none.toml").config


def mistake(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text)
    return re.sub(r"(?m)^.*/antiphon\.toml:\d+: ", "", error.value.message)


def problems(tmp_path: Path, text: str) -> list[str]:
    config = loaded(tmp_path, text)
    return [f"{key}: {problem}" for key, problem in routing_problems(config.routing, [model.name for model in config.models])]


def test_one_table_is_one_route_named_auto(tmp_path):
    config = loaded(
        tmp_path,
        '[routing]\ndefault = "small"\n[[routing.rules]]\nmodel = "large"\ncategory = "reasoning"\nwhen = { min_input_tokens = 500 }\n',
    )
    (route,) = config.routing
    assert (route.name, route.default, route.stick) == ("auto", "small", "conversation")
    assert (route.rules[0].model, route.rules[0].category, route.rules[0].when.min_input_tokens) == ("large", "reasoning", 500)
    assert routing_problems(config.routing, ["small", "large"]) is not None
    assert problems(tmp_path, '[routing]\ndefault = "small"\n') == []


def test_an_array_of_tables_is_several_routes_each_with_its_rules(tmp_path):
    config = loaded(
        tmp_path,
        '[[routing]]\ndefault = "small"\n[[routing.rules]]\nmodel = "large"\n'
        '[[routing]]\nname = "cheap"\ndefault = "small"\n[[routing.examples]]\ncategory = "code"\nmodel = "large"\ntexts = ["Fix it"]\n',
    )
    assert [(route.name, len(route.rules), len(route.examples)) for route in config.routing] == [("auto", 1, 0), ("cheap", 0, 1)]


@pytest.mark.parametrize(
    ("when", "key", "what"),
    [
        ('pattern = "(a"', "when.pattern", "unclosed group"),
        ('pattern = "(?=a)b"', "when.pattern", "look-around"),
        (r'pattern = "(a)\\1"', "when.pattern", "backreferences are not supported"),
        ("pattern = '(.{0,200} ){0,20}!'", "when.pattern", "takes too long to search"),
        ('hours = "25-3"', "when.hours", "expected hours such as '9-17' or '22:30-06:00'; got '25-3'"),
        ('hours = "9-9"', "when.hours", "got '9-9'"),
        ('language = "xx"', "when.language", "the language 'xx' is not recognized"),
        ("min_input_tokens = -1", "when.min_input_tokens", "greater than or equal to 0"),
        ("min_input_tokens = 9\nmax_input_tokens = 8", "when.max_input_tokens", "is below `min_input_tokens`, 9"),
        ("has_tool = true", "when.has_tool", "did you mean 'has_tools'?"),
    ],
)
def test_a_wrong_condition_is_named_with_its_key(tmp_path, when, key, what):
    line = mistake(tmp_path, f'[routing]\ndefault = "small"\n[[routing.rules]]\nmodel = "large"\n[routing.rules.when]\n{when}\n')
    assert line.startswith(f"routing[0].rules[0].{key}: ")
    assert what in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[routing]\n", None),
        ('[routing]\ndefault = "small"\nrules = 3\n', "routing[0].rules: expected an array of tables, got 3"),
        ('[routing]\ndefault = "small"\nname = "gpt-*"\n', None),
        ('[[routing]]\ndefault = "small"\n[[routing]]\ndefault = "small"\n', "routing: more than one routing is named 'auto'"),
        (
            '[[routing]]\ndefault = "small"\n[[routing.rules]]\nmodel = "large"\ncategory = "a b"\n',
            "routing[0].rules[0].category: expected up to 64 letters, digits, '.', '_' and '-', without spaces; got 'a b'",
        ),
        (
            '[routing]\ndefault = "small"\n[[routing.examples]]\ncategory = "a"\ntexts = []\n',
            "routing[0].examples[0].texts: must not be empty",
        ),
    ],
)
def test_a_wrong_table_is_a_mistake(tmp_path, text, line):
    assert mistake(tmp_path, text) == (line or mistake(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('default = "tiny"', "routing[0].default: there is no model 'tiny'; there are 'small' and 'large'"),
        ('default = "small"\nname = "large"', "routing[0].name: there is a model named 'large', too"),
        (
            'default = "small"\n[[routing.rules]]\nmodel = "small"\n[[routing.rules]]\nmodel = "huge"',
            "routing[0].rules[1].model: there is no model 'huge'; there are 'small' and 'large'",
        ),
        (
            'default = "small"\n[[routing.examples]]\ncategory = "code"\ntexts = ["x"]',
            "routing[0].examples[0].category: no model is named for 'code': set `model`, here or in a rule of this category",
        ),
        (
            'default = "small"\n[[routing.examples]]\ncategory = "code"\nmodel = "large"\ntexts = ["x"]\n'
            '[[routing.examples]]\ncategory = "code"\nmodel = "small"\ntexts = ["y"]',
            "routing[0].examples[1].model: 'code' has examples with another model, 'large'",
        ),
    ],
)
def test_what_does_not_fit_the_models_is_named_with_its_key(tmp_path, text, line):
    assert problems(tmp_path, f"[routing]\n{text}\n") == [line]


def test_examples_without_a_model_take_that_of_the_rule_with_their_category(tmp_path):
    config = loaded(
        tmp_path,
        '[routing]\ndefault = "small"\n[[routing.rules]]\nmodel = "large"\ncategory = "code"\nwhen = { has_tools = true }\n'
        '[[routing.examples]]\ncategory = "code"\ntexts = ["Fix it"]\n',
    )
    assert config.routing[0].model_by_category == {"code": "large"}


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("9-17", "09:00", "17:00"), ("9 - 17:30", "17:29", "08:59"), ("22:00-06:00", "23:15", "06:00"), ("0-24", "23:59", None)],
)
def test_hours_have_a_beginning_but_not_their_end(text, inside, outside):
    assert parse_hours(text).contains(time.fromisoformat(inside))
    assert outside is None or not parse_hours(text).contains(time.fromisoformat(outside))


@given(st.integers(0, 1439), st.integers(0, 1439), st.times())
def test_a_time_is_in_a_range_or_in_the_one_around_it(first, last, at):
    def text(start: int, end: int) -> str:
        return f"{start // 60}:{start % 60:02}-{end // 60}:{end % 60:02}"

    if first != last:
        assert parse_hours(text(first, last)).contains(at) != parse_hours(text(last, first)).contains(at)


def test_no_pattern_takes_longer_than_its_text():
    search = compile_pattern(r"^(a+)+$")
    assert not search.isinstance_python("a" * 32_000 + "!")  # an engine that goes back over its steps would never end
    assert search.isinstance_python("a" * 32_000)


@given(st.text(max_size=30))
def test_any_pattern_is_compiled_or_refused_with_a_reason(pattern):
    try:
        compile_pattern(pattern)
    except ValueError as error:
        assert "is not a valid regular expression: " in str(error) or "takes too long" in str(error)
