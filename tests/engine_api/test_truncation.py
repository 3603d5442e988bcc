"""What truncation drops of a conversation, and what it keeps."""

import asyncio

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import Sampling
from antiphon.engine_api.truncation import drop_groups, drop_oldest, droppable_groups, output_room

CALL = engine_history.ToolCall("c1", "look_up", "{}")
RESULT = engine_history.ToolResult("c1", (engine_history.TextPart("found"),))


def message(role, text):
    return engine_history.Message(role, (engine_history.TextPart(text),))


def test_the_oldest_goes_first_calls_with_their_results_and_never_the_question():
    history = (
        message("user", "a"),
        engine_history.ReasoningItem("t"),
        CALL,
        RESULT,
        message("system", "s"),
        message("assistant", "b"),
        message("user", "c"),
    )
    groups = droppable_groups(history)
    assert groups == [range(0, 1), range(1, 4), range(5, 6)]
    assert drop_groups(history, groups) == (history[4], history[6])


def test_a_call_that_opens_the_history_stays_with_its_result():
    assert droppable_groups((CALL, RESULT, message("user", "a"))) == [range(0, 2)]


def test_of_a_result_that_is_to_be_answered_nothing_is_dropped():
    assert droppable_groups((message("user", "a"), CALL, RESULT)) == [range(0, 1)]


def kept(history, limit, target=None):
    async def measure(shorter):
        return len(shorter)

    fitted = asyncio.run(drop_oldest(history, measure, lambda count: count, limit, target))
    return None if fitted is None else fitted[0]


def test_no_more_is_dropped_than_is_too_much():
    history = tuple(message("user", str(number)) for number in range(100))
    assert kept(history, 42) == history[58:]
    assert kept(history, 1) == history[99:]
    assert kept(history, 0) is None


def test_more_is_dropped_at_once_where_that_is_wished_for_unless_nothing_else_is_left():
    history = tuple(message("user", str(number)) for number in range(100))
    assert kept(history, 42, target=10) == history[90:]
    assert kept(history, 42, target=0) == history[99:]


def test_a_quarter_of_the_window_at_most_is_left_for_the_output():
    asked = commands.Respond(id="r", history=())
    assert [output_room(asked, window) for window in (1_000, 100_000)] == [250, 512]
    assert output_room(commands.Respond(id="r", history=(), sampling=Sampling(max_tokens=20)), 1_000) == 20
