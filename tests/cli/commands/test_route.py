"""`antiphon route`: which model a request would get, and everything that decides it."""

import json
import os
from pathlib import Path

import pytest

MODELS = os.environ.get("ANTIPHON_MODELS") or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models")

CONFIG = """
[routing]
default = "small"

[[routing.rules]]
model = "large"
category = "vision"
when = { has_images = true }

[[routing.rules]]
model = "small"
category = "maths"
when = { pattern = "(?i)prove", max_input_tokens = 1000 }

[[models]]
name = "small"
engine = "scripted"
abilities = { images = false }

[[models]]
name = "large"
engine = "scripted"
"""


@pytest.fixture
def configured_route(antiphon, tmp_path):
    (tmp_path / "routes.toml").write_text(CONFIG)
    return lambda *arguments: antiphon("route", *arguments, "--config", str(tmp_path / "routes.toml"))


def test_models_rules_and_the_decision_are_shown(configured_route):
    said = configured_route("Prove that there are infinitely many primes.")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[1].split(maxsplit=1) == ["auto", "about 12 tokens, language en, text only"]
    assert "small (default)  yes" in lines
    assert "1     large  vision    ✗ has_images yes (is no)" in lines
    assert "2     small  maths     ✓ max_input_tokens 1000 (is 12); ✓ pattern (?i)prove (is found)" in lines
    assert lines[-1].startswith("small, category maths, by rule 2: Input length < 1000 tokens; The text matches a pattern (")


def test_a_whole_request_may_be_read_from_a_file(configured_route, tmp_path):
    content = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, {"type": "input_text", "text": "What is it?"}]
    (tmp_path / "request.json").write_text(json.dumps({"model": "auto", "input": [{"role": "user", "content": content}]}))
    said = configured_route("--file", str(tmp_path / "request.json"), "--json")
    assert said.code == 0
    told = json.loads(said.out)
    assert (told["route"], told["model"], told["category"], told["source"], told["rule"]) == ("auto", "large", "vision", "rule", 1)
    assert told["models"] == [{"name": "small", "problem": "takes no images"}, {"name": "large", "problem": None}]
    assert [rule["fits"] for rule in told["rules"]] == [True, False]
    assert told["rules"][0]["conditions"] == [{"key": "has_images", "expected": "yes", "seen": "yes", "holds": True}]
    assert told["request"]["has_images"] is True


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "needs either a text or --file"),
        (("Hi", "--file", "x.json"), "needs either a text or --file"),
        (("Hi", "--name", "fast"), "There is no route 'fast'; there is 'auto'."),
    ],
)
def test_what_is_typed_wrongly_is_said(configured_route, arguments, problem):
    said = configured_route(*arguments)
    assert said.code == 2
    assert problem in said.err


def test_a_file_that_is_no_request_is_said(configured_route, tmp_path):
    (tmp_path / "request.json").write_text('{"input": 3}')
    said = configured_route("--file", str(tmp_path / "request.json"))
    assert (said.code, "request.json: " in said.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "request.json can't be read: No such file or directory."),
        ('{"input":', "request.json is not JSON: Expecting value: line 1 column 10 (char 9)."),
        ('{"model": "small", "input": "Hi"}', "The request names the model 'small', which is no route, so none is chosen."),
    ],
)
def test_a_file_that_no_route_can_decide_on_is_said(configured_route, tmp_path, content, problem):
    if content is not None:
        (tmp_path / "request.json").write_text(content)
    said = configured_route("--file", str(tmp_path / "request.json"))
    assert (said.code, said.out, problem in said.err) == (2, "", True)


def test_without_a_route_there_is_nothing_to_explain(antiphon, tmp_path):
    (tmp_path / "empty.toml").write_text('[[models]]\nname = "parrot"\nengine = "scripted"\n')
    said = antiphon("route", "Hi", "--config", str(tmp_path / "empty.toml"))
    assert (said.code, said.err) == (2, "antiphon: No route is configured; `[routing]` makes one.\n")


@pytest.mark.parametrize("command", [("route", "Hi"), ("config", "check"), ("serve", "--port", "0")])
def test_a_route_to_no_model_is_a_mistake_that_names_its_key(antiphon, tmp_path, command):
    (tmp_path / "wrong.toml").write_text(CONFIG.replace('model = "large"', 'model = "larg"'))
    said = antiphon(*command, "--config", str(tmp_path / "wrong.toml"))
    assert said.code in (1, 2)
    assert "routing[0].rules[0].model: there is no model 'larg'; there are 'small' and 'large'" in said.err


@pytest.mark.weights
def test_the_scores_of_examples_are_shown(antiphon, tmp_path):
    examples = """
[[routing.examples]]
category = "code"
model = "large"
texts = ["Write a function in Python", "Fix this bug in my code", "Why does this class not compile?"]
[[routing.examples]]
category = "chat"
model = "small"
texts = ["Hello, how are you?", "Tell me a joke", "Good morning!"]
"""
    (tmp_path / "routes.toml").write_text(CONFIG.replace("\n[[models]]", examples + "\n[[models]]", 1))
    said = antiphon(
        "route", "Write a function that sorts a list", "--json", "--config", str(tmp_path / "routes.toml"), ANTIPHON_MODELS=MODELS
    )
    told = json.loads(said.out)
    assert (told["model"], told["source"], told["scores"][0]["category"]) == ("large", "classifier", "code")
