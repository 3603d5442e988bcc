"""MCP servers through the Responses API: as the official client sees it, against real servers on this machine."""

import asyncio
import json
import re
from urllib.request import urlopen

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.server.processes.run import background_server
from support.server.plain_http import events_in, post
from support.server.responses_peer import connected
from support.server.scripted_server import configured
from support.tools.mcp_servers import running_servers

THEIR_EVENT: TypeAdapter = TypeAdapter(ResponseStreamEvent)

EUGPT = "/eugpt/v1/responses"

SCRIPT = {
    "answers": [
        {"to": "result", "when": "not approve", "say": "Then I won't."},
        {"to": "result", "say": "It is {input}."},
        {"when": "boom", "lines": [{"call": "boom", "namespace": "math", "arguments": {}}]},
        {"when": "nothing", "lines": [{"call": "vanish", "namespace": "math", "arguments": {}}]},
        {
            "when": "twice",
            "lines": [
                {"text": "Both, then."},
                {"call": "add", "namespace": "math", "arguments": {"a": 1, "b": 2}},
                {"call": "add", "namespace": "math", "arguments": {"a": 3, "b": 4}},
            ],
        },
        {
            "when": "weather",
            "lines": [
                {"call": "get_weather", "arguments": {"city": "Paris"}},
                {"call": "add", "namespace": "math", "arguments": {"a": 1, "b": 2}},
            ],
        },
        {"when": "", "lines": [{"call": "add", "namespace": "math", "arguments": {"a": 1, "b": 2}}]},
    ]
}


@pytest.fixture(scope="module")
def mcp():
    with running_servers() as servers:
        yield servers


@pytest.fixture(scope="module")
def server_url(mcp, tmp_path_factory):
    settings = {
        "server": {"fetch_networks": ["127.0.0.0/8"]},
        "tools": {"mcp": [{"label": "own", "url": mcp.url_by_kind["streamable-2026"]}]},
    }
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url:
        yield url


@pytest.fixture(scope="module")
def sdk(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def math(mcp):
    return {"type": "mcp", "server_label": "math", "server_url": mcp.url_by_kind["streamable-2026"], "require_approval": "never"}


def streamed(sdk, **fields):
    """The events of a stream, each valid as the SDK has it, and its last response."""
    events = list(sdk.responses.create(model="parrot", stream=True, **fields))
    for number, event in enumerate(events):
        THEIR_EVENT.validate_python(event.model_dump(warnings=False))
        assert event.sequence_number == number
    return events, events[-1].response


def kinds(response):
    return [item.type for item in response.output]


def test_a_call_is_made_and_answered_in_one_response(sdk, math):
    events, response = streamed(sdk, input="Add.", tools=[math])
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * sum(event.type == "response.output_text.delta" for event in events),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    call = response.output[1]
    assert (call.name, call.server_label, json.loads(call.arguments), call.output) == ("add", "math", {"a": 1, "b": 2}, "3")
    assert response.output_text == "It is 3."
    assert [event.item.id for event in events if event.type == "response.output_item.done"] == [item.id for item in response.output]


def test_it_is_the_same_response_when_it_is_not_streamed(sdk, math):
    response = sdk.responses.create(model="parrot", input="Add.", tools=[math])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response.usage.output_tokens > 3
    assert sdk.responses.retrieve(response.id).output == response.output


def test_several_calls_of_a_turn_are_made(sdk, math):
    _, response = streamed(sdk, input="Twice.", tools=[math])
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_call", "mcp_call", "message"]
    assert [item.output for item in response.output if item.type == "mcp_call"] == ["3", "7"]


def test_an_operators_server_is_named_by_its_label_alone(sdk):
    _, response = streamed(sdk, input="Say.", tools=[{"type": "mcp", "server_label": "own", "require_approval": "never"}])
    assert kinds(response)[0] == "mcp_list_tools"


def test_a_call_is_approved_over_the_previous_response(sdk, math):
    tools = [{**math, "require_approval": "always"}]
    _, first = streamed(sdk, input="Add.", tools=tools)
    assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
    answer = {"type": "mcp_approval_response", "approval_request_id": first.output[1].id, "approve": True}
    _, second = streamed(sdk, input=[answer], previous_response_id=first.id, tools=tools)
    assert kinds(second) == ["mcp_call", "message"]  # the list is known from the first response
    assert (second.output[0].approval_request_id, second.output[0].output) == (first.output[1].id, "3")
    _, third = streamed(sdk, input="And?", previous_response_id=second.id, tools=tools)
    assert kinds(third) == ["mcp_approval_request"]


def test_a_profile_without_approvals_tells_of_a_failed_call_and_how_to_approve_it(server_url, math):
    body = {"model": "parrot", "input": "Add.", "tools": [{**math, "require_approval": "always"}]}
    first = json.loads(post(server_url, body, EUGPT)[2])
    [call] = first["tool_calls"]
    assert (call["name"], call["status"], json.loads(call["arguments"])) == ("add", "failed", {"a": 1, "b": 2})
    assert first["status"] == "completed" and "needs the user's approval" in call["output"]
    items = [event["item"] for event in events_in(post(server_url, body | {"stream": True}, EUGPT)[2]) if "item" in event]
    assert [(item["type"], item.get("status")) for item in items] == [("function_call", None), ("function_call", "failed")]
    request_id = re.search(r"mcpr_\w+", call["output"])[0]
    answer = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}
    second = json.loads(post(server_url, body | {"input": [answer], "previous_response_id": first["id"]}, EUGPT)[2])
    assert [(call["output"], call["status"]) for call in second["tool_calls"]] == [("3", "completed")]
    assert second["output_text"] == "It is 3."


def test_servers_with_equal_lists_are_not_mixed_up(sdk, mcp, math):
    both = [math, {**math, "server_url": mcp.url_by_kind["streamable-2025"]}]
    firsts = [sdk.responses.create(model="parrot", input="Add.", tools=[tool]) for tool in both]
    for tool, first in zip(both, firsts, strict=True):
        second = sdk.responses.create(model="parrot", input="Add.", tools=[tool], previous_response_id=first.id)
        assert kinds(second) == ["mcp_call", "message"]


def test_a_call_is_not_made_if_it_is_not_approved(sdk, math):
    tools = [{**math, "require_approval": {"always": {"tool_names": ["add"]}}}]
    first = sdk.responses.create(model="parrot", input="Add.", tools=tools)
    answer = {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": False, "reason": "no"}
    second = sdk.responses.create(model="parrot", input=[answer], previous_response_id=first.id, tools=tools)
    assert kinds(second) == ["message"] and second.output_text == "Then I won't."


def test_a_call_is_approved_in_a_conversation_and_statelessly(sdk, math):
    tools = [{**math, "require_approval": "always"}]
    conversation = sdk.conversations.create()
    first = sdk.responses.create(model="parrot", input="Add.", tools=tools, conversation=conversation.id)
    answer = {"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": True}
    second = sdk.responses.create(model="parrot", input=[answer], tools=tools, conversation=conversation.id)
    assert kinds(second) == ["mcp_call", "message"]
    first = sdk.responses.create(model="parrot", input="Add.", tools=tools, store=False)
    answer["approval_request_id"] = first.output[-1].id
    items = [{"role": "user", "content": "Add."}, *(item.model_dump(mode="json") for item in first.output), answer]
    assert kinds(sdk.responses.create(model="parrot", input=items, tools=tools, store=False)) == ["mcp_call", "message"]


@pytest.mark.parametrize("in_conversation", [False, True])
def test_a_call_that_is_approved_by_reference_is_the_one_that_was_asked_for(sdk, math, in_conversation):
    tools = [{**math, "require_approval": "always"}]
    place = {"conversation": sdk.conversations.create().id} if in_conversation else {}
    asked = sdk.responses.create(model="parrot", input="Add.", tools=tools, **place).output[-1]
    other = asked.model_dump(mode="json") | {"arguments": '{"a":40,"b":2}'}
    denial = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": False}
    sdk.responses.create(model="parrot", input=[other, denial], tools=tools)
    answer = denial | {"approve": True}
    response = sdk.responses.create(model="parrot", input=[{"type": "item_reference", "id": asked.id}, answer], tools=tools)
    [call] = [item for item in response.output if item.type == "mcp_call"]
    assert (json.loads(call.arguments), call.output) == ({"a": 1, "b": 2}, "3")


def test_an_approval_of_nothing_is_refused(sdk, math):
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_none", "approve": True}
    with pytest.raises(openai.BadRequestError, match="No approval request found"):
        sdk.responses.create(model="parrot", input=[answer], tools=[math])


def test_a_tool_that_fails_is_an_item_with_its_error_and_the_response_goes_on(sdk, math):
    events, response = streamed(sdk, input="Boom.", tools=[math])
    call = response.output[1]
    assert (call.status, call.output) == ("failed", None) and "response.mcp_call.failed" in [event.type for event in events]
    assert response.status == "completed" and kinds(response)[-1] == "message"


def test_a_server_that_is_away_fails_the_request_as_the_original_does(sdk, mcp):
    tool = {"type": "mcp", "server_label": "away", "server_url": "http://127.0.0.1:9/mcp", "require_approval": "never"}
    with pytest.raises(openai.APIStatusError) as failure:
        sdk.responses.create(model="parrot", input="Add.", tools=[tool])
    assert failure.value.status_code in (424, 400) and failure.value.param == "tools"


def test_a_function_of_the_clients_is_streamed_before_the_servers_calls_are_made(sdk, math):
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
    _, first = streamed(sdk, input="weather", tools=[math, weather])
    assert kinds(first) == ["mcp_list_tools", "function_call", "mcp_call"]
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    _, second = streamed(sdk, input=[output], previous_response_id=first.id, tools=[math, weather])
    assert second.output_text == "It is sunny."


def test_a_background_response_has_its_tools_and_no_secret_is_stored(sdk, math):
    _, last = streamed(sdk, input="Add.", tools=[{**math, "authorization": "secret"}], background=True)
    assert kinds(last) == ["mcp_list_tools", "mcp_call", "message"]
    assert "secret" not in sdk.responses.retrieve(last.id).to_json()


@pytest.mark.parametrize("kind", [{"type": "additional_tools", "role": "developer"}, {"type": "tool_search_output"}])
@pytest.mark.parametrize("background", [False, True])
def test_a_server_in_an_item_is_called_and_its_credentials_are_not_stored(server_url, sdk, math, kind, background):
    adding = {**kind, "tools": [{**math, "authorization": "hush", "headers": {"x-key": "hush"}}]}
    conversation = sdk.conversations.create(items=[adding])
    asked = [{"role": "user", "content": "Add."}, adding]
    _, last = streamed(sdk, input=asked, conversation=conversation.id, background=background, metadata={"of": "hush-test"})
    assert kinds(last) == ["mcp_list_tools", "mcp_call", "message"]
    stored = [
        sdk.responses.input_items.list(last.id).model_dump_json(),
        sdk.conversations.items.list(conversation.id).model_dump_json(),
        urlopen(f"{server_url}/v1/responses?include=items").read().decode(),
    ]
    assert all(math["server_url"] in text and "hush" not in text.replace("hush-test", "") for text in stored)


def test_a_server_that_was_named_in_an_earlier_turn_may_be_named_again(sdk, math):
    adding = {"type": "additional_tools", "role": "developer", "tools": [math]}
    first = sdk.responses.create(model="parrot", input=[adding, {"role": "user", "content": "Add."}])
    second = sdk.responses.create(model="parrot", input=[adding, {"role": "user", "content": "Add."}], previous_response_id=first.id)
    third = sdk.responses.create(model="parrot", input="Add.", previous_response_id=second.id, tools=[math])
    fourth = sdk.responses.create(model="parrot", input="Add.", previous_response_id=third.id)
    assert [kinds(each) for each in (second, third, fourth)] == [["mcp_call", "message"]] * 3


def test_it_is_the_same_over_the_websocket(server_url, math):
    async def scenario():
        async with connected(server_url) as peer:
            first = await peer.ask("Add.", tools=[math])
            second = await peer.ask("Add.", tools=[math], previous_response_id=first["id"])
            return [[item["type"] for item in response["output"]] for response in (first, second)]

    assert asyncio.run(scenario()) == [["mcp_list_tools", "mcp_call", "message"], ["mcp_call", "message"]]


def test_the_short_profile_tells_a_call_as_a_function_with_its_output(server_url, math):
    with openai.OpenAI(base_url=f"{server_url}/eugpt/v1", api_key="none", max_retries=0) as short:
        reply = short.post("/responses", body={"model": "parrot", "input": "Add.", "tools": [math]}, cast_to=object)
    [call] = reply["tool_calls"]
    assert (call["name"], call["output"], call["status"]) == ("add", "3", "completed") and reply["output_text"] == "It is 3."
