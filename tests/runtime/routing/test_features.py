"""The features of a request: its size, its user's text, and the capabilities that it needs."""

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.capabilities import Capabilities
from antiphon.runtime.routing.features import (
    MAX_TEXT_CHARACTERS,
    RouteFeatures,
    classified_text,
    estimate_tokens,
    fingerprint,
    last_user_text,
    missing_ability,
    remove_reminders,
    stable_instructions,
)

ABLE = Capabilities(images=True, files=True, audio_in=True, tools=True, json_object=True, json_schema=True, context_window=1000)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a" * 36, 10), ("海" * 10, 20), ("한국" * 5 + "a" * 36, 30), ("é" * 18, 10)])
def test_tokens_are_estimated_by_script(text, tokens):
    assert estimate_tokens(text) == tokens


def test_the_last_user_message_with_a_text_counts_without_what_programs_add():
    reminder = "<system-reminder>Be brief.</system-reminder>"
    assert last_user_text([f"{reminder}\n", f" {reminder}Fix it{reminder} now ", "Hello"]) == "Fix it now"
    assert last_user_text([]) == ""
    assert remove_reminders("Hi <system-reminder>for ever") == "Hi "


@given(st.lists(st.sampled_from(["<system-reminder>", "</system-reminder>", "a", "<"]), max_size=12))
def test_no_reminder_is_left(pieces):
    assert "<system-reminder>" not in remove_reminders("".join(pieces))


def test_of_a_long_text_the_beginning_and_the_end_count():
    text = last_user_text(["a" * 100_000 + "b" * 100_000])
    assert len(text) == MAX_TEXT_CHARACTERS + 1
    assert (text[0], text[-1]) == ("a", "b")
    assert classified_text("x y " * 1000 + "z") == ("x y " * 50)[:200] + " " + ("x y " * 1000 + "z")[-100:]
    assert classified_text("  short\n text ") == "short text"


def test_fingerprints_keep_the_borders_of_their_parts():
    assert fingerprint("ab", "c") != fingerprint("a", "bc")
    assert stable_instructions("x-anthropic-billing-header: cc=1;\nBe kind") == "\nBe kind"
    assert fingerprint("\ud800") == fingerprint("\ud800")


@pytest.mark.parametrize(
    ("features", "capabilities", "problem"),
    [
        (RouteFeatures(), None, "has no worker now"),
        (RouteFeatures(), Capabilities(), None),
        (RouteFeatures(has_images=True), Capabilities(), "takes no images"),
        (RouteFeatures(has_audio=True), Capabilities(), "takes no audio"),
        (RouteFeatures(has_files=True), Capabilities(), "takes no files"),
        (RouteFeatures(is_live=True), ABLE, "takes no live audio"),
        (RouteFeatures(is_spoken=True), ABLE, "does not speak"),
        (RouteFeatures(has_function_tools=True), Capabilities(), "takes no tools"),
        (RouteFeatures(json_schema=True), Capabilities(json_object=True), "takes no JSON schema"),
        (RouteFeatures(top_logprobs=3), ABLE, "reports no such log probabilities"),
        (RouteFeatures(has_custom_tools=True, hosted_tools=("web_search",)), ABLE, None),
        (RouteFeatures(has_custom_tools=True, may_omit_tools=False), ABLE, "takes no custom tools"),
        (RouteFeatures(hosted_tools=("web_search",), may_omit_tools=False), ABLE, "takes no tool of the type web_search"),
        (RouteFeatures(input_tokens=900, output_tokens=101), ABLE, "has room for 1000 tokens, not 1001"),
        (RouteFeatures(input_tokens=900, output_tokens=100, has_images=True, has_files=True, has_function_tools=True), ABLE, None),
    ],
)
def test_what_a_model_cannot_do_is_said(features, capabilities, problem):
    assert missing_ability(features, capabilities) == problem
