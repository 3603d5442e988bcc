"""The settings of rewrites: what is accepted, and the errors for the rest."""

from pathlib import Path

import pytest

from antiphon.config.load import ConfigError, load
from antiphon.errors import ServerError
from antiphon.runtime.rewriting.rewriter import Rewriter

RULES = [{"pattern": "a(b)", "replacement": r"\1"}]


def config(tmp_path: Path, *rewrites: object):  # type: ignore[no-untyped-def]
    return load({"rewrites": list(rewrites)}, None, {"HOME": str(tmp_path)}, tmp_path, system_file=tmp_path / "none").config


def test_a_rewrite_has_what_its_kind_needs(tmp_path: Path) -> None:
    rule, model = config(
        tmp_path, {"name": "r", "kind": "rule", "rules": RULES}, {"name": "m", "kind": "model", "instruction": "Rhyme."}
    ).rewrites
    assert (rule.deadline_s, model.deadline_s, rule.drafts) == (1, 10, "send")
    assert config(tmp_path, {"name": "s", "kind": "spelling", "timeout_s": 3}).rewrites[0].deadline_s == 3


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "rule"}, "a rewrite of kind 'rule' needs `rules`"),
        ({"kind": "model"}, "needs `instruction`"),
        ({"kind": "spelling", "rules": RULES}, "a rewrite of kind 'spelling' has no `rules`"),
        ({"kind": "rule", "rules": RULES, "model": "m"}, "has no `model`"),
        ({"kind": "model", "instruction": "x", "language": "de"}, "has no `language`"),
        ({"kind": "language", "language": "xx"}, "expected codes of ar, bg"),
        ({"kind": "spelling", "when": {"languages": ["german"]}}, "got 'german'"),
        ({"kind": "rule", "rules": [{"pattern": "("}]}, "is no replacement: missing )"),
        ({"kind": "rule", "rules": [{"pattern": "a", "replacement": r"\2"}]}, "invalid group reference 2"),
        ({"kind": "rule", "rules": [{"pattern": "a", "replacment": "b"}]}, "there is no such setting; did you mean 'replacement'?"),
        ({"kind": "spelling", "drafts": "keep"}, "expected 'send' or 'hold', got 'keep'"),
        ({"kind": "spelling", "timeout_s": 0}, "expected"),
        ({"kind": "spell"}, "got 'spell'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, {"name": "x", **fields})
    assert "rewrites[0]" in str(caught.value) and problem in str(caught.value)


def test_names_are_unique(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than one rewrite is named 'x'"):
        config(tmp_path, *[{"name": "x", "kind": "spelling"}] * 2)


def test_the_model_that_rewrites_must_exist(tmp_path: Path) -> None:
    entries = config(tmp_path, {"name": "x", "kind": "spelling", "model": "gone"}).rewrites
    with pytest.raises(ServerError, match="by the model 'gone', which is not configured"):
        Rewriter(entries, lambda _name: pytest.fail("not asked"), lambda _name: False, lambda *_row: None)
