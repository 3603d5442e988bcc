"""Which tools may be called, and what a forced call is held to."""

import json

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import CustomTool, FunctionTool, ToolChoice
from antiphon.engines.local.json_schema import OutputSchema
from antiphon.engines.local.tool_grammar import callable_tools, grammar
from antiphon.errors import ClientError

ADD = FunctionTool("add", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
STOP = FunctionTool("stop")
SHELL = CustomTool("shell", "Runs a command", namespace="os")


def offered(*tools, **choice):
    return callable_tools(commands.Respond(id="r", history=(), tools=tools, tool_choice=ToolChoice(**choice)))


def test_all_tools_are_offered_where_nothing_else_is_said():
    assert [one.name for one in offered(ADD, STOP, SHELL)] == ["add", "stop", "os.shell"]


def test_only_the_allowed_tools_are_offered():
    assert [one.name for one in offered(ADD, STOP, SHELL, names=("stop", "os.shell"))] == ["stop", "os.shell"]


def test_tools_of_one_name_in_two_namespaces_are_two():
    mail, disk = (FunctionTool("find", namespace=namespace) for namespace in ("mail", "disk"))
    assert [one.name for one in offered(mail, disk)] == ["mail.find", "disk.find"]
    assert [one.name for one in offered(mail, disk, names=("disk.find",))] == ["disk.find"]


def test_none_means_none():
    assert offered(ADD, mode="none") == []


def test_a_call_can_not_be_required_of_a_tool_that_is_not_there():
    with pytest.raises(ClientError) as raised:
        offered(ADD, mode="required", names=("subtract",))
    assert raised.value.param == "tool_choice" and "'subtract'" in raised.value.message


def test_parameters_that_are_no_schema_are_named():
    with pytest.raises(ClientError) as raised:
        offered(STOP, FunctionTool("bad", parameters={"type": "wat"}))
    assert raised.value.param == "tools[1].parameters"
    assert raised.value.code == "invalid_function_parameters"
    assert "function 'bad'" in raised.value.message


def test_a_tool_without_parameters_takes_an_empty_object():
    assert offered(STOP)[0].schema.accepts({})


def test_a_custom_tool_is_a_function_of_one_text():
    (shell,) = offered(SHELL)
    assert shell.signature["function"]["parameters"]["required"] == ["input"]
    assert shell.call_input('{"input": "ls"}') == "ls"
    assert shell.call_input("ls") == "ls"
    assert shell.start_event("r", "c") == events.ToolCallStarted("r", "c", "shell", custom=True, namespace="os")


def test_the_grammar_lets_the_model_answer_in_the_format_or_call():
    lines = grammar(OutputSchema({"type": "object"}), offered(ADD, STOP)).splitlines()
    assert lines[:2] == ["%llguidance {}", "start: format | call0 | call1"]
    assert lines[3] == 'call0: "{\\"name\\": \\"add\\", \\"arguments\\": " arguments0 "}"'
    assert json.loads(lines[4].removeprefix("arguments0: %json "))["properties"] == {"n": {"type": "integer"}}
