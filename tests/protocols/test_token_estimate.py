"""What an answer counts against limits, where its engine has not said what it came to."""

import itertools

import pytest

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.options import FunctionTool
from antiphon.protocols.output import Response
from antiphon.protocols.token_estimate import tokens_of

ID = "resp_1"
ASKED = commands.Respond(id=ID, history=(turns.Message("user", (turns.TextPart("four" * 10),)),))


def response_of(*words, is_aloud=False):
    numbers = itertools.count(1)
    response = Response(lambda prefix: f"{prefix}_{next(numbers)}", is_aloud=is_aloud)
    for word in words:
        response.take(word)
    return response


def tokens(*words, ask=ASKED, is_cancelled=False, is_aloud=False):
    response = response_of(*words, is_aloud=is_aloud)
    if is_cancelled:
        response.cancel()
    return tokens_of(response, ask, 24_000)


def test_what_the_engine_said_holds_however_the_answer_ended():
    used = talk_events.Used(id=ID, input_tokens=20, output_tokens=3)
    assert tokens(talk_events.Text(ID, "x" * 999), used, talk_events.Ended(ID)) == 23
    assert tokens(used, talk_events.Text(ID, "x" * 999), is_cancelled=True) == 23


def test_an_engine_gives_no_tokens_back():
    assert tokens(talk_events.Used(id=ID, input_tokens=-20, output_tokens=3), talk_events.Ended(ID)) == 3


def test_an_interrupted_answer_is_what_was_asked_and_what_had_been_said():
    assert tokens(is_cancelled=True) == 10
    assert tokens(talk_events.Text(ID, "x" * 81), is_cancelled=True) == 10 + 21
    assert tokens(talk_events.Reasoning(ID, "x" * 40), talk_events.Text(ID, "é" * 40), is_cancelled=True) == 10 + 10 + 20


def test_an_answer_of_an_engine_that_does_not_count_is_estimated_too():
    assert tokens(talk_events.Text(ID, "x" * 40), talk_events.Ended(ID)) == 20


def test_calls_count_those_that_wait_to_be_told_as_well():
    calls = (talk_events.Calling(ID, "call_1", "f"), talk_events.Arguments(ID, "call_1", "x" * 40))
    waiting = (talk_events.Calling(ID, "call_2", "f"), talk_events.Arguments(ID, "call_2", "x" * 40))
    assert tokens(*calls, *waiting, is_cancelled=True) == 30


def test_an_answer_aloud_counts_its_sound_and_its_words():
    spoken = (talk_events.Spoken(ID, "x" * 40), talk_events.Sound(ID, bytes(48_000)))
    assert tokens(*spoken, is_aloud=True, is_cancelled=True) == 10 + 10 + 20


def test_an_answer_that_failed_before_its_first_word_counts_nothing():
    broke = talk_events.Broke(id=ID, message="boom")
    assert tokens(broke) == tokens() == 0
    assert tokens(talk_events.Text(ID, "x" * 40), broke) == 20


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (turns.Thought("x" * 40), 10),
        (turns.Thought(summary=("x" * 20, "x" * 20)), 10),
        (turns.ToolCall("call_1", "f" * 4, "x" * 40), 11),
        (turns.ToolResult("call_1", (turns.TextPart("x" * 40),)), 10),
        (turns.Hosted({"a": "x" * 32}), 10),
        (turns.Message("user", (turns.RefusalPart("x" * 40),)), 10),
        (turns.Message("user", (turns.SpeechPart(bytes(48_000), 24_000),)), 10),
        (turns.Message("user", (turns.AudioPart("A" * 64_000, "wav"),)), 15),
        (turns.Message("user", (turns.ImagePart("data:,"), turns.FilePart(file_id="file_1"))), 512),
    ],
)
def test_every_turn_of_what_was_asked_counts(turn, expected):
    assert tokens(ask=commands.Respond(id=ID, history=(turn,)), is_cancelled=True) == expected


def test_instructions_and_tools_count():
    tool = FunctionTool("f", None, {"type": "object"})
    assert tokens(ask=commands.Respond(id=ID, history=(), instructions="x" * 400, tools=(tool,)), is_cancelled=True) in range(110, 140)
