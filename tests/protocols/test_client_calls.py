"""Calls of tools that the client runs, as they are read, shown while they are written, and told to the model if they can't be run."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events, history
from antiphon.errors import ClientError
from antiphon.protocols.call_results import NO_RESULT_TEXT
from antiphon.protocols.client_tools.definitions import client_tool
from antiphon.protocols.client_tools.streaming import MemberTextReader
from antiphon.wire.responses import items, tools
from support.protocols.responses_dialogues import Dialogue, session_for
from support.protocols.words import ID

SHELL = tools.ShellTool(environment=tools.LocalEnvironment())
PATCH = tools.ApplyPatchTool()

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


def cut(text, places):
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


def texts_of(value):
    for key, member in value.items():
        if isinstance(member, str):
            yield key, None, member
        elif isinstance(member, list):
            yield from ((key, index, each) for index, each in enumerate(member) if isinstance(each, str))


@given(st.dictionaries(st.text(), JSON), st.lists(st.integers(min_value=0)), st.booleans())
def test_texts_are_read_alike_however_the_json_is_cut(value, places, is_ascii):
    reader = MemberTextReader()
    pieces = [piece for part in cut(json.dumps(value, ensure_ascii=is_ascii), places) for piece in reader.feed(part)]
    assert [(piece.key, piece.index, piece.text) for piece in pieces if piece.kind == "end"] == list(texts_of(value))
    more = "".join(piece.text for piece in pieces if piece.kind == "more")
    assert more == "".join(text for _, _, text in texts_of(value))


@given(st.text(alphabet='{}[],:"\\ux0 \nab'), st.lists(st.integers(min_value=0)))
def test_what_is_no_json_is_read_without_harm(text, places):
    reader = MemberTextReader()
    for part in cut(text, places):
        list(reader.feed(part))


def called(arguments, *, name="shell", places=(), is_done=True):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    parts = [events.ToolArgumentsDelta(ID, "c1", part) for part in cut(text, places)]
    return (events.ToolCallStarted(ID, "c1", name), *parts, *([events.ToolCallDone(ID, "c1")] if is_done else []))


def ended(reason="stop"):
    return events.ResponseEnded(ID, reason)


@given(st.lists(st.text(), min_size=1), st.lists(st.integers(min_value=0)))
def test_commands_are_shown_while_they_are_written(commands, places):
    dialogue = Dialogue(session_for(tools=[SHELL])).said(*called({"timeout_ms": 5, "commands": commands}, places=places), ended())
    of_commands = [event for event in dialogue.events if "shell_call_command" in event["type"]]
    for index, command in enumerate(commands):
        own = [event for event in of_commands if event["command_index"] == index]
        assert [event["type"].rpartition(".")[2] for event in (own[0], own[-1])] == ["added", "done"]
        assert "".join(event["delta"] for event in own[1:-1]) == own[-1]["command"] == command
    [item] = dialogue.events[-1]["response"]["output"]
    assert item["action"] == {"commands": commands, "timeout_ms": 5, "max_output_length": None}
    assert [event["sequence_number"] for event in dialogue.events] == list(range(len(dialogue.events)))


def test_a_diff_is_shown_as_soon_as_it_is_known_what_it_changes():
    dialogue = Dialogue(session_for(tools=[PATCH]))
    start, part, more, *_ = called('{"type":"create_file","path":"a","diff":"+one\\n+two"}', name="apply_patch", places=[45, 50])
    dialogue.said(start, part)
    added, delta = dialogue.events[2:]
    assert added["item"]["operation"] == {"type": "create_file", "path": "a", "diff": ""}
    dialogue.said(more)
    deltas = [delta, *dialogue.events[4:]]
    assert {event["type"] for event in deltas} == {"response.apply_patch_call_operation_diff.delta"}
    assert "+one\n+two".startswith("".join(event["delta"] for event in deltas))


def test_two_calls_are_shown_one_after_another():
    dialogue = Dialogue(session_for(tools=[SHELL, tools.FunctionTool(name="f", parameters={})]))
    other = [events.ToolCallStarted(ID, "f1", "f"), events.ToolArgumentsDelta(ID, "f1", "{"), events.ToolArgumentsDelta(ID, "f1", "}")]
    shell = called({"commands": ["ls -l", "pwd"]}, places=[16, 20])
    dialogue.said(other[0], shell[0], other[1], *shell[1:], other[2], events.ToolCallDone(ID, "f1"), ended())
    assert [item["type"] for item in dialogue.events[-1]["response"]["output"]] == ["function_call", "shell_call"]
    assert dialogue.types.count("shell_call_command.done") == 2


@pytest.mark.parametrize(
    ("tool", "written", "shown"),
    [
        (SHELL, '{"commands":["ls", "p', {"status": "incomplete", "commands": ["ls", "p"]}),
        (SHELL, '{"comma', None),
        (PATCH, '{"type":"update_file","path":"a","diff":"@@ -', {"status": "in_progress", "diff": "@@ -"}),
    ],
)
def test_a_call_that_is_cut_off_shows_what_is_sure(tool, written, shown):
    dialogue = Dialogue(session_for(tools=[tool])).said(*called(written, name=tool.type, is_done=False), ended("length"))
    response = dialogue.events[-1]["response"]
    assert response["status"] == "incomplete"
    if shown is None:
        assert [item["type"] for item in response["output"]] == []
    else:
        [item] = response["output"]
        assert (item["status"], item.get("action", item.get("operation"))) == (
            shown["status"],
            {**item.get("action", item.get("operation")), **{name: value for name, value in shown.items() if name != "status"}},
        )


def test_a_call_that_turns_out_wrong_when_it_is_shown_ends_the_response():
    dialogue = Dialogue(session_for(tools=[SHELL])).said(*called('{"commands":["ls",'), ended())
    assert dialogue.types[-1] == "failed" and dialogue.is_closed


@pytest.mark.parametrize("arguments", ["", "[]", "5", "{", '{"commands":[]}', '{"commands":{}}', '{"x":"' + "y" * 9000])
def test_a_call_that_cannot_be_run_is_told_to_the_model(arguments):
    dialogue = Dialogue(session_for(tools=[SHELL])).said(*called(arguments), ended())
    assert not dialogue.is_closed and "output_item.added" not in dialogue.types
    call, result = dialogue.requests[1].history[-2:]
    assert isinstance(call, history.ToolCall) and result.parts[0].text.startswith("The call was not made: ")
    dialogue.said(*called({"commands": ["ls"]}), ended())
    assert dialogue.types[-1] == "completed"


LATER = tools.FunctionTool(name="f", parameters={}, async_=True)
CALL = items.FunctionCall(call_id="c1", name="f", arguments="{}", async_=True)
OUTPUT = items.FunctionCallOutput(call_id="c1", output="7")
MESSAGE = items.Message(role="user", content="So?")
ANSWER = items.Message(role="assistant", content="Wait.")


def test_a_model_goes_on_without_the_result_of_a_call_that_comes_later():
    dialogue = Dialogue(session_for(tools=[LATER])).said(*called({}, name="f"), ended())
    call, result = dialogue.requests[1].history[-2:]
    assert (call.name, result.call_id) == ("f", call.call_id) and result.parts[0].text == NO_RESULT_TEXT
    dialogue.said(events.TextDelta(ID, "Wait."), ended())
    first, second = dialogue.events[-1]["response"]["output"]
    assert (first["type"], first["async"], first["call_id"], second["type"]) == ("function_call", True, "c1", "message")
    assert dialogue.types.count("completed") == 1


@pytest.mark.parametrize(
    ("given_items", "ids"),
    [
        ([CALL, OUTPUT, MESSAGE], ["c1", "c1"]),
        ([CALL, MESSAGE], ["c1", "c1"]),
        ([CALL, MESSAGE, OUTPUT], ["c1", "c1"]),
        ([CALL, MESSAGE, ANSWER, OUTPUT], ["c1", "c1", "c1_later", "c1_later"]),
    ],
)
def test_a_result_that_comes_later_has_a_call_of_its_own(given_items, ids):
    request = Dialogue(session_for(tools=[LATER], given=given_items)).requests[0]
    calls = [item for item in request.history if isinstance(item, history.ToolCall | history.ToolResult)]
    assert [item.call_id for item in calls] == ids
    assert [type(item).__name__ for item in calls] == ["ToolCall", "ToolResult"] * (len(ids) // 2)


def test_a_call_that_the_model_waits_for_needs_its_result():
    with pytest.raises(ClientError, match="No tool output found"):
        session_for(tools=[LATER], given=[items.FunctionCall(call_id="c1", name="f", arguments="{}"), MESSAGE])


TOOLS = [tools.LocalShellTool(), SHELL, PATCH, tools.ComputerTool(), tools.ToolSearchTool(execution="client")]
PREVIEW = tools.ComputerUsePreviewTool(display_width=800, display_height=600, environment="browser")


@given(
    st.sampled_from([*TOOLS, PREVIEW]), st.dictionaries(st.sampled_from("command commands actions action type path diff env".split()), JSON)
)
def test_whatever_a_model_writes_is_an_item_or_a_mistake(tool, arguments):
    own = client_tool(tool)
    try:
        fields = own.read(arguments)
    except ValueError as error:
        assert str(error)
    else:
        assert own.item(id="i", call_id="c", status="completed", **fields).type.endswith("_call")
