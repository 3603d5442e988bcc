"""How answers count against limits if their engine reported no usage."""

import itertools

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import FunctionTool
from antiphon.protocols.output import OutputMachine
from antiphon.protocols.token_estimate import response_tokens

ID = "resp_1"
ASKED = commands.Respond(id=ID, history=(history.Message("user", (history.TextPart("four" * 10),)),))


def response_of(*words, is_spoken=False):
    numbers = itertools.count(1)
    response = OutputMachine(lambda prefix: f"{prefix}_{next(numbers)}", is_spoken=is_spoken)
    for word in words:
        response.apply(word)
    return response


def tokens(*words, ask=ASKED, is_cancelled=False, is_spoken=False):
    response = response_of(*words, is_spoken=is_spoken)
    if is_cancelled:
        response.cancel()
    return response_tokens(response, ask, 24_000)


def test_what_the_engine_said_holds_however_the_answer_ended():
    used = events.Usage(id=ID, input_tokens=20, output_tokens=3)
    assert tokens(events.TextDelta(ID, "x" * 999), used, events.ResponseEnded(ID)) == 23
    assert tokens(used, events.TextDelta(ID, "x" * 999), is_cancelled=True) == 23


def test_an_engine_gives_no_tokens_back():
    assert tokens(events.Usage(id=ID, input_tokens=-20, output_tokens=3), events.ResponseEnded(ID)) == 3


def test_an_interrupted_answer_is_what_was_asked_and_what_had_been_said():
    assert tokens(is_cancelled=True) == 10
    assert tokens(events.TextDelta(ID, "x" * 81), is_cancelled=True) == 10 + 21
    assert tokens(events.ReasoningDelta(ID, "x" * 40), events.TextDelta(ID, "é" * 40), is_cancelled=True) == 10 + 10 + 20


def test_an_answer_of_an_engine_that_does_not_count_is_estimated_too():
    assert tokens(events.TextDelta(ID, "x" * 40), events.ResponseEnded(ID)) == 20


def test_calls_count_those_that_wait_to_be_told_as_well():
    calls = (events.ToolCallStarted(ID, "call_1", "f"), events.ToolArgumentsDelta(ID, "call_1", "x" * 40))
    waiting = (events.ToolCallStarted(ID, "call_2", "f"), events.ToolArgumentsDelta(ID, "call_2", "x" * 40))
    assert tokens(*calls, *waiting, is_cancelled=True) == 30


def test_an_answer_aloud_counts_its_sound_and_its_words():
    spoken = (events.AudioTranscriptDelta(ID, "x" * 40), events.AudioDelta(ID, bytes(48_000)))
    assert tokens(*spoken, is_spoken=True, is_cancelled=True) == 10 + 10 + 20


def test_an_answer_that_failed_before_its_first_word_counts_nothing():
    broke = events.ResponseFailed(id=ID, message="boom")
    assert tokens(broke) == tokens() == 0
    assert tokens(events.TextDelta(ID, "x" * 40), broke) == 20


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (history.ReasoningItem("x" * 40), 10),
        (history.ReasoningItem(summary=("x" * 20, "x" * 20)), 10),
        (history.ToolCall("call_1", "f" * 4, "x" * 40), 11),
        (history.ToolResult("call_1", (history.TextPart("x" * 40),)), 10),
        (history.HostedToolItem({"a": "x" * 32}), 10),
        (history.Message("user", (history.RefusalPart("x" * 40),)), 10),
        (history.Message("user", (history.SpeechPart(bytes(48_000), 24_000),)), 10),
        (history.Message("user", (history.AudioPart("A" * 64_000, "wav"),)), 15),
        (history.Message("user", (history.ImagePart("data:,"), history.FilePart(file_id="file_1"))), 512),
    ],
)
def test_every_turn_of_what_was_asked_counts(turn, expected):
    assert tokens(ask=commands.Respond(id=ID, history=(turn,)), is_cancelled=True) == expected


def test_instructions_and_tools_count():
    tool = FunctionTool("f", None, {"type": "object"})
    assert tokens(ask=commands.Respond(id=ID, history=(), instructions="x" * 400, tools=(tool,)), is_cancelled=True) in range(110, 140)
