"""The places of results in a history: behind their calls, and where the model has gone on without them, where they came."""

from hypothesis import given, strategies as st

from antiphon.engine_api.history import Message, ReasoningItem, TextPart, ToolCall, ToolResult
from antiphon.protocols.call_results import NO_RESULT_TEXT, are_in_place, place_results


def said(text, role="user"):
    return Message(role, (TextPart(text),))


def call(id):
    return ToolCall(id, "f", "{}")


def result(id, text="4"):
    return ToolResult(id, (TextPart(text),))


def placed(*items):
    return list(place_results(items))


def test_results_of_parallel_calls_stand_behind_both():
    assert placed(call("a"), call("b"), result("b"), result("a")) == [call("a"), call("b"), result("a"), result("b")]
    in_order = [call("a"), result("a"), call("b"), result("b"), said("so?")]
    assert placed(*in_order) == in_order


def test_what_a_user_says_before_the_result_comes_before_the_call():
    assert placed(call("a"), said("hm"), result("a")) == [said("hm"), call("a"), result("a")]
    look, hm, so = said("look", "assistant"), said("hm"), said("so?")
    assert placed(look, call("a"), call("b"), result("a"), hm, result("b"), so) == [
        hm,
        look,
        call("a"),
        call("b"),
        result("a"),
        result("b"),
        so,
    ]


def test_a_result_that_is_sent_again_is_left_out():
    first = [said("f?"), call("a"), result("a")]
    assert placed(*first, said("f?"), call("b"), result("a"), result("b")) == [*first, said("f?"), call("b"), result("b")]
    assert not are_in_place([*first, result("a")]) and placed(*first, result("a")) == first
    *_, late_call, late_result = placed(*first, result("a", "5"))
    assert (late_call, late_result) == (call("a_later"), result("a_later", "5"))


def test_a_result_that_the_model_did_not_wait_for_stands_where_it_came():
    assert placed(call("a"), call("b"), result("a"), said("ok", "assistant"), result("b", "5")) == [
        call("a"),
        call("b"),
        result("a"),
        result("b", NO_RESULT_TEXT),
        said("ok", "assistant"),
        call("b_later"),
        result("b_later", "5"),
    ]


def test_what_the_model_says_beside_its_calls_makes_no_result_late():
    items = (said("look", "assistant"), call("a"), ReasoningItem("hm"), call("b"), result("a"), result("b"))
    assert placed(*items) == [items[0], call("a"), result("a"), ReasoningItem("hm"), call("b"), result("b")]


def test_a_call_without_a_result_has_a_note():
    assert placed(call("a"), said("hm")) == [call("a"), result("a", NO_RESULT_TEXT), said("hm")]


def test_the_id_of_a_late_call_is_not_too_long():
    *_, late_call, late_result = placed(call("c" * 64), said("?"), said("ok", "assistant"), result("c" * 64))
    assert late_call.call_id == late_result.call_id == "c" * 58 + "_later"


def test_ids_that_a_model_uses_again_are_told_apart():
    items = [call("a"), result("a", "1"), said("and?"), call("a"), result("a", "2")]
    assert placed(*items) == items


def is_input(item):
    """Whether a user says it; None for calls and their results."""
    return None if isinstance(item, ToolCall | ToolResult) else isinstance(item, Message) and item.role == "user"


@given(
    st.lists(st.sampled_from([*map(call, "abc"), *map(result, "abc"), said("u"), said("m", "assistant"), ReasoningItem("r")]), max_size=12)
)
def test_every_call_is_followed_by_its_result_and_nothing_is_lost(drawn):
    items, open_ids = [], set()
    for item in drawn:  # as a protocol lets them pass: no result without a call, and no call again before its result
        if isinstance(item, ToolCall) and item.call_id not in open_ids:
            open_ids.add(item.call_id)
        elif isinstance(item, ToolResult) and item.call_id in open_ids:
            open_ids.remove(item.call_id)
        elif isinstance(item, ToolCall | ToolResult):
            continue
        items.append(item)
    new = placed(*items)
    assert are_in_place(new) and placed(*new) == new
    for is_said_by_user in (True, False):
        assert [item for item in new if is_input(item) == is_said_by_user] == [item for item in items if is_input(item) == is_said_by_user]
    assert sum(item.parts[0].text == "4" for item in new if isinstance(item, ToolResult)) == sum(
        isinstance(item, ToolResult) for item in items
    )
    if are_in_place(items):
        assert sorted(map(repr, new)) == sorted(map(repr, items))
