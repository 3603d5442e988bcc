"""Calls that a model writes as text are never read aloud: they are made, or the model is asked again without tools."""

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, ToolChoice
from antiphon.engines.cascade.call_guard import MAX_HELD_CHARACTERS, begins_like_call
from support.engines.cascades import LISTEN, VOICE, Puppet, talked, text

QUERY = {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}, "required": ["query"]}
SEARCH = FunctionTool(name="search", parameters=QUERY)
NOTE = CustomTool(name="note")
CALL = '{"name": "search", "arguments": {"query": "Paris"}}'


def used(tokens):
    return lambda id: events.Usage(id=id, input_tokens=tokens, output_tokens=tokens)


def asked(tools=(SEARCH,), voice=VOICE, **more):
    question = engine_history.Message("user", (engine_history.TextPart("What is the capital of France?"),))
    return commands.Respond(id="resp_1", history=(question,), tools=tuple(tools), voice=voice, **more)


def answered(*answers, ask=None, pieces=3):
    """A session and its engine, which gives these answers one after the other, a few characters at a time."""
    puppet = Puppet()

    async def scenario(session):
        session.send(ask or asked())
        await session.settle()
        for number, answer in enumerate(answers):
            if len(puppet.asks) <= number:
                break
            id = puppet.asks[-1].id
            for at in range(0, len(answer), pieces):
                puppet.deliver([events.TextDelta(id, answer[at : at + pieces])])
                if puppet.asks[-1].id != id:
                    break
            puppet.deliver([used(10)(id), events.ResponseEnded(id)])
            await session.settle()

    return talked(scenario, puppet, LISTEN), puppet


def calls(session):
    arguments = {word.call_id: word.text for word in session.words(events.ToolArgumentsDelta)}
    assert [word.call_id for word in session.words(events.ToolCallDone)] == [*arguments]
    return [(word.name, arguments[word.call_id]) for word in session.words(events.ToolCallStarted)]


@pytest.mark.parametrize("pieces", [1, 4, 1000])
@pytest.mark.parametrize(
    "written",
    [
        CALL,
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tools>{CALL}</tools> I have searched for it.",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        f"\n [{CALL}]",
        '{"type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"Paris\\"}"}}',
        '{"name": "search", "parameters": {"query": "Paris"}}',
    ],
)
def test_a_call_in_writing_is_made_and_not_read_aloud(written, pieces):
    session, puppet = answered(written, pieces=pieces)
    assert calls(session) == [("search", '{"query": "Paris"}')]
    assert session.spoken_text() == "" and not session.synthesizer.said
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert len(puppet.asks) == 1


def test_a_call_of_a_tool_that_takes_text_has_its_text():
    session, _ = answered('{"name": "note", "arguments": {"input": "Buy milk"}}', ask=asked([NOTE]))
    assert calls(session) == [("note", "Buy milk")]


@pytest.mark.parametrize("pieces", [1, 1000])
@pytest.mark.parametrize(
    "written",
    [
        '{"name": "William Shakespeare", "arguments": null}',
        '{"name": "search", "arguments": {}}',
        '{"name": "search", "arguments": {"query": 7}}',
        '{"name": "search", "arguments": {"query": "Paris", "count": true}}',
        '{"name": "search", "arguments": {"query"',
        '<tools>\n{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}\n</tools>',
        "<tools></tools>",
        '```json\n{"answer": "Paris", "country": "France", "continent": "Europe"}\n```',
        "{'name': 'search', 'arguments': {'query': 'Paris'}}",
        '{"name": "search", "arguments": ' + "[" * MAX_HELD_CHARACTERS,
    ],
)
def test_what_is_like_a_call_and_is_none_is_asked_for_again_without_tools(written, pieces):
    session, puppet = answered(written, "It is Paris.", pieces=pieces)
    first, second = puppet.asks
    assert (first.tools, second.tools, second.tool_choice) == ((SEARCH,), (), ToolChoice("none"))
    assert second.history == first.history
    assert commands.Cancel(first.id) in puppet.told
    assert session.spoken_text() == "It is Paris."
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert not calls(session)


def test_what_both_answers_have_used_up_is_counted():
    session, _ = answered('{"name": "search", "arguments": {}', "It is Paris.")
    (counted,) = session.words(events.Usage)
    assert (counted.input_tokens, counted.output_tokens) == (20, 20 + counted.output_audio_tokens)


def test_a_model_is_asked_again_only_once():
    session, puppet = answered('{"name": "find"}', '{"name": "find", "arguments": {}}', "It is Paris.")
    assert len(puppet.asks) == 2
    assert session.spoken_text() == "" and session.ends() == [events.ResponseEnded("resp_1")]


def test_an_example_that_was_asked_for_is_given_in_the_end():
    example = '```json\n{"capital": "Paris"}\n```'
    session, _ = answered(example, example)
    assert session.spoken_text().split() == example.split()


def test_an_engine_without_room_for_the_second_question_fails_the_answer():
    puppet = Puppet()

    async def scenario(session):
        session.send(asked())
        await session.settle()
        puppet.overrun = EngineOverrun("64 responses wait already")
        puppet.say(text('{"name": "find"}'))
        await session.settle()

    (failure,) = talked(scenario, puppet, LISTEN).ends()
    assert "64 responses wait already" in failure.message


@pytest.mark.parametrize("written", ["It is Paris.", " < 5 of 10 know it: Paris.", "`Paris`", "[sic] Paris", "```", "[", "<to"])
def test_other_answers_are_read_as_they_are(written):
    session, puppet = answered(written)
    assert session.spoken_text().strip() == written.strip()
    assert len(puppet.asks) == 1


@pytest.mark.parametrize(
    "ask",
    [
        asked(voice=None),
        asked(tools=()),
        asked(tool_choice=ToolChoice("none")),
        asked(format=JsonObject()),
    ],
)
def test_only_spoken_answers_that_may_call_are_held_back(ask):
    written = '{"name": "find"}'
    session, puppet = answered(written, ask=ask)
    assert session.spoken_text().strip() == written
    assert len(puppet.asks) == 1


def test_a_call_that_the_engine_finds_itself_is_its_call():
    puppet = Puppet()

    async def scenario(session):
        session.send(asked())
        await session.settle()
        puppet.say(text("<tool"), lambda id: events.ToolCallStarted(id, "call_1", "search"))
        puppet.say(lambda id: events.ToolArgumentsDelta(id, "call_1", "{}"), lambda id: events.ToolCallDone(id, "call_1"))
        puppet.say(events.ResponseEnded)
        await session.settle()

    session = talked(scenario, puppet, LISTEN)
    assert calls(session) == [("search", "{}")] and session.spoken_text() == ""


def test_the_beginning_decides():
    assert [begins_like_call(start) for start in ("", "  ", "<", "`", "``", "```", "```json", "[", "[ ")] == [None] * 9
    assert [begins_like_call(start) for start in ("{", "<tool", "<tools>", "```json\n{", "``` [", "[{", "<|tool")] == [True] * 7
    assert [begins_like_call(start) for start in ("A", "<b", "```python\nx", "[1", "`x`")] == [False] * 5


def test_an_answer_that_is_cancelled_is_not_asked_for_again():
    puppet = Puppet()

    async def scenario(session):
        session.send(asked())
        await session.settle()
        puppet.say(text('{"name": "search", '))
        session.send(commands.Cancel("resp_1"))
        puppet.say(text('"arguments": 7}'), lambda id: events.ResponseEnded(id, "cancelled"))
        await session.settle()

    session = talked(scenario, puppet, LISTEN)
    assert session.ends() == [events.ResponseEnded("resp_1", "cancelled")]
    assert len(puppet.asks) == 1
