"""Tools whose loading is deferred, and the search for them, as the official client sees it."""

import openai
import pytest
from openai.types.responses import ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.server.processes.run import background_server
from support.server.scripted_server import configured

THEIR_EVENT: TypeAdapter = TypeAdapter(ResponseStreamEvent)
THEIR_ITEM: TypeAdapter = TypeAdapter(ResponseItem)

FUNCTIONS = '''
"""Functions of the operator."""

def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number

def halve(number: int) -> int:
    """Halves a number."""
    return number // 2
'''


def searched(*paths):
    return {"lines": [{"call": "tool_search", "arguments": {"paths": list(paths)}}]}


SCRIPT = {
    "answers": [
        {
            "to": "result",
            "when": "now: get_weather",
            "lines": [{"call": "get_weather", "call_id": "call_w", "arguments": {"city": "Bern"}}],
        },
        {"to": "result", "when": "now: crm", "lines": [{"call": "find", "namespace": "crm", "call_id": "call_f", "arguments": {}}]},
        {"to": "result", "when": "now: numbers", "lines": [{"call": "double", "namespace": "numbers", "arguments": {"number": 4}}]},
        {"to": "result", "say": "So: {input}"},
        {"when": "weather", **searched("get_weather")},
        {"when": "customer", **searched("crm")},
        {"when": "words", **searched("something about customers")},
        {"when": "number", **searched("numbers.double")},
        {"when": "nonsense", **searched("qqq")},
        {"when": "again", "lines": [{"call": "get_weather", "call_id": "call_a", "arguments": {"city": "Bonn"}}]},
        {"say": "I heard {input}"},
    ]
}


def function(name, description, **fields):
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": True, **fields}


WEATHER = function("get_weather", "The weather.", defer_loading=True)
MAIL = function("send_mail", "Sends mail.", defer_loading=True)
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "All customers.",
    "tools": [function("find", "Finds customers.", defer_loading=True), function("count", "Counts them.", defer_loading=True)],
}
NUMBERS = {"type": "mcp", "server_label": "numbers", "require_approval": "never", "defer_loading": True, "server_description": "Sums."}
SEARCH = {"type": "tool_search"}
TOOLS = [WEATHER, MAIL, CRM, NUMBERS, SEARCH]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    (folder / "numbers.py").write_text(FUNCTIONS)
    settings = {"tools.functions": [{"label": "numbers", "file": str(folder / "numbers.py")}]}
    home = tmp_path_factory.mktemp("home")
    with (
        background_server(configured(home, {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def streamed(sdk, **fields):
    """The last response of a stream whose events are all valid."""
    events = list(sdk.responses.create(model="parrot", stream=True, **fields))
    for number, event in enumerate(events):
        THEIR_EVENT.validate_python(event.model_dump(warnings=False))
        assert event.sequence_number == number
    for item in sdk.responses.retrieve(events[-1].response.id).output:
        THEIR_ITEM.validate_python(item.to_dict())
    return events[-1].response


def kinds(response):
    return [item.type for item in response.output if item.type != "mcp_list_tools"]


def test_a_function_is_found_and_called_in_one_response(sdk):
    response = streamed(sdk, input="The weather?", tools=TOOLS)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    search, output, call = response.output[-3:]
    assert (search.arguments, search.call_id, search.execution) == ({"paths": ["get_weather"]}, None, "server")
    assert search.id.startswith("tsc_") and output.id.startswith("tso_")
    assert [tool.to_dict() for tool in output.tools] == [WEATHER]
    assert (call.name, call.namespace, call.call_id) == ("get_weather", "get_weather", "call_w")


@pytest.mark.parametrize("way", ["previous", "whole"])
def test_what_was_found_stays_loaded(sdk, way):
    first = sdk.responses.create(model="parrot", input="The weather?", tools=TOOLS)
    result = {"type": "function_call_output", "call_id": "call_w", "output": "Rain."}
    if way == "previous":
        fields = {"input": [result], "previous_response_id": first.id}
    else:
        fields = {"input": [{"role": "user", "content": "The weather?"}, *(item.to_dict() for item in first.output), result]}
    second = sdk.responses.create(model="parrot", tools=TOOLS, **fields)
    assert second.output_text == "So: Rain."
    third = streamed(sdk, input="Now again.", tools=TOOLS, previous_response_id=second.id)
    assert third.output[-1].namespace == "get_weather" and kinds(third) == ["function_call"]


@pytest.mark.parametrize("text", ["That customer.", "In words."])
def test_a_namespace_is_found_by_its_name_or_by_words(sdk, text):
    response = streamed(sdk, input=text, tools=TOOLS)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    [group] = response.output[-2].tools
    assert (group.type, group.name, group.tools[0].name) == ("namespace", "crm", "find")
    assert (response.output[-1].name, response.output[-1].namespace) == ("find", "crm")


def test_a_tool_of_an_mcp_server_is_found_and_called(sdk):
    response = streamed(sdk, input="A number.", tools=TOOLS)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "mcp_call", "message"]
    assert response.output_text == "So: 8"
    again = streamed(sdk, input="Thanks.", tools=TOOLS, previous_response_id=response.id)
    assert kinds(again) == ["message"]


def test_nothing_is_found_by_what_names_nothing(sdk):
    response = streamed(sdk, input="nonsense", tools=TOOLS)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "message"]
    assert response.output[-2].tools == [] and "No tool was found" in response.output_text


def test_a_deferred_tool_can_be_chosen(sdk):
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    assert kinds(streamed(sdk, input="The weather?", tools=TOOLS, tool_choice=choice))[-1] == "function_call"
