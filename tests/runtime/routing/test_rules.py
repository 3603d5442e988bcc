"""The conditions of a rule, alone and together."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from antiphon.config.routing import RouteCondition, RouteRule
from antiphon.runtime.routing.features import RouteCaller, RouteFacts, RouteFeatures
from antiphon.runtime.routing.rules import CompiledRule

ZONE = timezone(timedelta(hours=2), "EET")


def fits(
    when: dict[str, object], features: RouteFeatures | None = None, caller: RouteCaller | None = None, at: str = "12:00"
) -> str | None:
    rule = CompiledRule(1, RouteRule(model="large", when=RouteCondition.model_validate(when)))
    now = datetime.fromisoformat(f"2026-11-22T{at}:00").replace(tzinfo=ZONE)
    return rule.reason_to_fit(RouteFacts(features or RouteFeatures(), caller or RouteCaller(), now))


@pytest.mark.parametrize(
    ("when", "yes", "no", "reason"),
    [
        ({"min_input_tokens": 500}, RouteFeatures(input_tokens=501), RouteFeatures(input_tokens=499), "Input length > 500 tokens"),
        ({"max_input_tokens": 500}, RouteFeatures(input_tokens=499), RouteFeatures(input_tokens=501), "Input length < 500 tokens"),
        (
            {"min_input_tokens": 500, "max_input_tokens": 500},
            RouteFeatures(input_tokens=500),
            RouteFeatures(),
            "Input length = 500 tokens; Input length = 500 tokens",
        ),
        ({"has_tools": True}, RouteFeatures(has_tools=True), RouteFeatures(), "Has tools"),
        ({"has_tools": False}, RouteFeatures(), RouteFeatures(has_tools=True), "Has no tools"),
        ({"has_images": True}, RouteFeatures(has_images=True), RouteFeatures(), "Has images"),
        ({"has_audio": True}, RouteFeatures(has_audio=True), RouteFeatures(), "Has audio"),
        ({"has_audio": True}, RouteFeatures(is_spoken=True), RouteFeatures(text="x"), "Has audio"),
        ({"has_audio": True}, RouteFeatures(is_live=True), RouteFeatures(text="x"), "Has audio"),
        ({"language": "de"}, RouteFeatures(text="Was ist das und warum?"), RouteFeatures(text="What is that?"), "Language is de"),
        ({"language": ["de", "fr"]}, RouteFeatures(text="Quelle est la question ?"), RouteFeatures(), "Language is fr"),
        (
            {"pattern": r"(?i)\bsql\b"},
            RouteFeatures(text="Some\nSQL please"),
            RouteFeatures(text="MySQLite"),
            "The text matches a pattern",
        ),
    ],
)
def test_a_condition_holds_or_not(when, yes, no, reason):
    assert fits(when, yes) == reason
    assert fits(when, no) is None


def test_a_key_is_known_by_its_id_and_by_its_name():
    for key in ("key_68af", "night"):
        assert fits({"key": ["other", key]}, caller=RouteCaller(key_id="key_68af", key_name="night")) == "The API key has a rule"
        assert fits({"key": key}, caller=RouteCaller(key_id="key_1", key_name="day")) is None
        assert fits({"key": key}) is None


def test_hours_are_those_of_the_server_and_the_reason_says_its_zone():
    assert fits({"hours": ["9-17", "22:00-06:00"]}, at="23:00") == "Time of day is within 9-17, 22:00-06:00 EET"
    assert fits({"hours": ["9-17", "22:00-06:00"]}, at="18:00") is None


def test_all_conditions_must_hold_and_a_rule_without_any_always_fits():
    when = {"min_input_tokens": 10, "has_tools": True}
    assert fits(when, RouteFeatures(input_tokens=10, has_tools=True)) == "Input length = 10 tokens; Has tools"
    assert fits(when, RouteFeatures(input_tokens=10)) is None
    assert fits({}) == "The rule has no conditions"


@given(st.text(max_size=50))
def test_a_reason_has_nothing_of_the_text(text):
    assert fits({"pattern": "(?s).+"}, RouteFeatures(text=text)) in (None, "The text matches a pattern")


def test_a_lone_surrogate_is_searched_like_any_other_text():
    assert fits({"pattern": "b$"}, RouteFeatures(text="a\ud800b")) is not None
