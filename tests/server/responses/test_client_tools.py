"""Tools that the client runs, through the Responses API, as the official client sees them: each with its call and its output."""

import json

import openai
import pytest
from openai.types.responses import ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.server.processes.run import background_server
from support.server.model_server import playing
from support.server.scripted_server import configured

THEIR_EVENT: TypeAdapter = TypeAdapter(ResponseStreamEvent)
THEIR_ITEM: TypeAdapter = TypeAdapter(ResponseItem)

PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y\n"}
CLICKS = [{"type": "click", "button": "left", "x": 1, "y": 2}, {"type": "type", "text": "Hi"}]
PNG = "data:image/png;base64,iVBORw0KGgo="
EXITED = {"stdout": "a.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


def called(name, **arguments):
    return [{"call": name, "call_id": "call_1", "arguments": arguments}]


SCRIPT = {
    "answers": [
        {"to": "result", "when": "no JSON", "lines": [{"call": "shell", "call_id": "call_2", "arguments": "no JSON"}]},
        {"to": "result", "when": "not made", "lines": called("shell", commands=["ls"])},
        {"to": "result", "say": "The result: {input}"},
        {"when": "local shell", "lines": called("local_shell", command=["ls"], env={"A": "1"})},
        {"when": "wrong", "lines": called("shell", commands=5)},
        {"when": "shell", "lines": called("shell", commands=["ls", "pwd"], timeout_ms=1000)},
        {"when": "patch", "lines": called("apply_patch", **PATCH)},
        {"when": "delete", "lines": called("apply_patch", type="delete_file", path="a.py")},
        {"when": "clicks", "lines": called("computer", actions=CLICKS)},
        {"when": "click", "lines": called("computer", action=CLICKS[0])},
        {"when": "find", "lines": called("tool_search", goal="mail")},
        {"when": "never", "lines": [{"call": "shell", "call_id": "call_2", "arguments": "no JSON"}]},
    ]
}

SEARCH_PARAMETERS = {"type": "object", "properties": {"goal": {"type": "string"}}}

CASES = {
    "local shell": (
        {"type": "local_shell"},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {"A": "1"}}},
        {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt"},
        ["output_item.added", "output_item.done"],
        "lsh_",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "max_output_length": None, "timeout_ms": 1000},
            "environment": {"type": "local"},
        },
        {"type": "shell_call_output", "call_id": "call_1", "output": [EXITED], "max_output_length": None},
        ["output_item.added", *["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"] * 2, "output_item.done"],
        "sh_",
    ),
    "patch": (
        {"type": "apply_patch"},
        {"type": "apply_patch_call", "operation": PATCH},
        {"type": "apply_patch_call_output", "call_id": "call_1", "status": "failed", "output": "No such file."},
        [
            "output_item.added",
            "apply_patch_call_operation_diff.delta",
            "apply_patch_call_operation_diff.done",
            "output_item.done",
        ],
        "apc_",
    ),
    "delete": (
        {"type": "apply_patch"},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed"},
        ["output_item.added", "output_item.done"],
        "apc_",
    ),
    "clicks": (
        {"type": "computer"},
        {"type": "computer_call", "actions": CLICKS, "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "call_1", "output": {"type": "computer_screenshot", "image_url": PNG}},
        ["output_item.added", "output_item.done"],
        "cu_",
    ),
    "click": (
        {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"},
        {"type": "computer_call", "action": CLICKS[0], "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "call_1", "output": {"type": "computer_screenshot", "image_url": PNG}},
        ["output_item.added", "output_item.done"],
        "cu_",
    ),
    "find": (
        {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": SEARCH_PARAMETERS},
        {"type": "tool_search_call", "arguments": {"goal": "mail"}, "execution": "client"},
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "tools": [{"type": "function", "name": "send", "parameters": {"type": "object"}, "strict": False}],
        },
        ["output_item.added", "output_item.done"],
        "tsc_",
    ),
}


def chunk(delta, finish=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_part(text, **fields):
    return chunk({"tool_calls": [{"index": 0, "function": {"arguments": text, **fields}, "id": "call_1", "type": "function"}]})


def chat_answer(body):
    """What a server of chat completions answers: the call that the script has for the text, in pieces."""
    last = body["messages"][-1]["content"]
    if body["messages"][-1]["role"] == "tool":
        return [chunk({"content": f"The result: {last}"}), chunk({}, "stop")]
    if not isinstance(last, str):
        return [chunk({"content": "The result: a picture"}), chunk({}, "stop")]
    call = next(answer for answer in SCRIPT["answers"][3:] if answer["when"] in last)["lines"][0]
    text = json.dumps(call["arguments"])
    middle = len(text) // 2
    return [chat_part(text[:middle], name=call["call"]), chat_part(text[middle:]), chunk({}, "tool_calls")]


@pytest.fixture(scope="module")
def upstream():
    with playing(chat_answer) as (url, bodies):
        yield url, bodies


@pytest.fixture(scope="module")
def server_url(tmp_path_factory, upstream):
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "chat": {"engine": "chat", "base_url": upstream[0], "quirks": "generic"}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models)) as url:
        yield url


@pytest.fixture(scope="module")
def sdk(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(sdk, model="parrot", **fields):
    """The events of a stream, each valid as the SDK has it, and its last response."""
    events = list(sdk.responses.create(model=model, stream=True, **fields))
    for number, event in enumerate(events):
        if "operation_diff" not in event.type:  # which the original sends, and its client's types lack
            THEIR_EVENT.validate_python(event.model_dump(warnings=False))
        assert event.sequence_number == number
    return [event.type.removeprefix("response.") for event in events], events


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_its_own_item_with_its_events(sdk, name):
    tool, expected, _, events_of_item, prefix = CASES[name]
    types, events = streamed(sdk, input=f"Do it: {name}.", tools=[tool])
    assert types == ["created", "in_progress", *events_of_item, "completed"]
    [item] = events[-1].response.output
    shown = item.to_dict()
    assert shown.pop("id").startswith(prefix) and events[2].item.id == item.id
    assert (shown.pop("call_id"), shown.pop("status")) == ("call_1", "completed")
    assert shown == expected
    assert events[2].item.status == "in_progress"
    THEIR_ITEM.validate_python(sdk.responses.retrieve(events[-1].response.id).output[0].to_dict())


@pytest.mark.parametrize("name", CASES)
def test_a_server_of_chat_completions_gets_a_function_and_reads_its_result(sdk, upstream, name):
    tool, expected, output, *_ = CASES[name]
    _, events = streamed(sdk, "chat", input=f"Do it: {name}.", tools=[tool])
    [item] = events[-1].response.output
    assert {field: item.to_dict()[field] for field in expected} == expected
    [function] = upstream[1][-1]["tools"]
    written = upstream[1][-1]["messages"]
    second = sdk.responses.create(model="chat", input=[output], tools=[tool], previous_response_id=events[-1].response.id)
    assert second.output_text.startswith("The result: ")
    messages = upstream[1][-1]["messages"][len(written) :]
    [call] = messages[0]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", function["function"]["name"])
    arguments = next(answer for answer in SCRIPT["answers"][3:] if answer["when"] in f"{name}.")["lines"][0]["arguments"]
    assert json.loads(call["function"]["arguments"]) == arguments
    assert (messages[1]["role"], messages[1]["tool_call_id"]) == ("tool", "call_1")


@pytest.mark.parametrize("way", ["previous", "whole", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_the_output_goes_back_to_the_model(sdk, name, way):
    tool, _, output, *_ = CASES[name]
    first = sdk.responses.create(model="parrot", input=f"Do it: {name}.", tools=[tool])
    assert "antiphon-tools-not-offered" not in first
    call = first.output[0]
    fields = {"input": [output]}
    if way == "previous":
        fields["previous_response_id"] = first.id
    else:
        again = {"type": "item_reference", "id": call.id} if way == "reference" else call.to_dict()
        fields["input"] = [{"role": "user", "content": "Do it."}, again, output]
    second = sdk.responses.create(model="parrot", tools=[tool], **fields)
    assert second.output_text.startswith("The result: ")
    listed = [item.to_dict() for item in sdk.responses.input_items.list(second.id)]
    for item in listed:
        THEIR_ITEM.validate_python(item)


def test_a_call_that_cannot_be_run_is_told_to_the_model_which_tries_again(sdk):
    types, events = streamed(sdk, input="Something wrong.", tools=[{"type": "shell"}])
    [item] = events[-1].response.output
    assert item.action.commands == ["ls"] and types.count("created") == 1


def test_a_model_that_never_learns_it_gets_the_tool_no_more(sdk):
    types, events = streamed(sdk, input="It never works.", tools=[{"type": "shell"}])
    assert types[-1] == "completed" and events[-1].response.output_text == ""


def test_two_tools_of_one_name_are_refused(sdk):
    function = {"type": "function", "name": "shell", "parameters": None, "strict": None}
    for tools in ([{"type": "shell"}, function], [function, {"type": "shell"}], [{"type": "shell"}] * 2):
        with pytest.raises(openai.BadRequestError) as refusal:
            sdk.responses.create(model="parrot", input="Hi", tools=tools)
        assert refusal.value.code == "invalid_value" and refusal.value.param.startswith("tools[")


def test_a_screenshot_may_be_an_uploaded_file(sdk):
    first = sdk.responses.create(model="parrot", input="Do it: clicks.", tools=[{"type": "computer"}])
    file = sdk.files.create(file=("screen.png", bytes.fromhex("89504e470d0a1a0a") + b"pixels"), purpose="vision")
    screenshot = {"type": "computer_screenshot", "file_id": file.id}
    output = {"type": "computer_call_output", "call_id": "call_1", "output": screenshot}
    second = sdk.responses.create(model="parrot", input=[output], previous_response_id=first.id, tools=[{"type": "computer"}])
    assert second.status == "completed"
    screenshot["file_id"] = "file-none"
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.responses.create(model="parrot", input=[output], previous_response_id=first.id, tools=[{"type": "computer"}])
    assert refusal.value.param == "input[0].output.file_id"


def test_each_safety_check_has_to_be_acknowledged(sdk):
    check = {"id": "sc_1", "code": "malicious_instructions", "message": "Look twice."}
    _, called, output, *_ = CASES["clicks"]
    call = {**called, "id": "cu_1", "call_id": "call_1", "status": "completed", "pending_safety_checks": [check]}
    fields = {"model": "parrot", "tools": [{"type": "computer"}]}
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(**fields, input=[{"role": "user", "content": "Hi"}, call, output])
    assert refusal.value.param == "input[2].acknowledged_safety_checks"
    acknowledged = {**output, "acknowledged_safety_checks": [check]}
    assert sdk.responses.create(**fields, input=[{"role": "user", "content": "Hi"}, call, acknowledged]).status == "completed"
