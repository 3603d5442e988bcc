"""MCP servers in Realtime sessions: listed once, called by the model in the middle of a response, approved by the user."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from openai.types.realtime import RealtimeServerEvent

from antiphon.server.processes.run import background_server
from support.server.plain_http import post
from support.server.realtime_peer import connected, kinds
from support.server.scripted_server import configured
from support.tools.mcp_servers import running_servers
from support.wire.adapters import adapter

SCRIPT = {
    "answers": [
        {"to": "result", "when": "not approve", "say": "Then I won't."},
        {"to": "result", "say": "It is {input}."},
        {"when": "boom", "lines": [{"call": "boom", "namespace": "math", "arguments": {}}]},
        {"when": "slow", "lines": [{"call": "slow", "namespace": "math", "arguments": {"seconds": 30}}]},
        {"when": "", "lines": [{"call": "add", "namespace": "math", "arguments": {"a": 1, "b": 2}}]},
    ]
}


@pytest.fixture(scope="module")
def mcp():
    with running_servers() as servers:
        yield servers


@pytest.fixture(scope="module")
def server_url(mcp, tmp_path_factory):
    settings = {"server": {"fetch_networks": ["127.0.0.0/8"]}}
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url:
        yield url


@pytest.fixture
def math(mcp):
    url = mcp.url_by_kind["streamable-2026"]
    return {"type": "mcp", "server_label": "math", "server_url": url, "require_approval": "never", "authorization": "secret"}


@asynccontextmanager
async def session_with(server_url, *tools):
    """A session in writing, and the events up to the end of the first list."""
    async with connected(server_url, model="parrot") as peer:
        await peer.hear()
        await peer.say("session.update", session={"type": "realtime", "output_modalities": ["text"], "tools": list(tools)})
        await peer.until("session.updated")
        yield peer


async def listed(peer):
    return [*await peer.until("mcp_list_tools.completed", "mcp_list_tools.failed"), *await peer.until("conversation.item.done")]


def check_with_sdk(events):
    for event in events:
        adapter(RealtimeServerEvent).validate_python(event)
        assert "secret" not in json.dumps(event)


def outputs(events):
    return [item["type"] for item in events[-1]["response"]["output"]]


def test_a_server_is_listed_and_called(server_url, math):
    async def scenario():
        async with session_with(server_url, math) as peer:
            listing = await listed(peer)
            return listing, await peer.ask("Add.")

    listing, events = asyncio.run(scenario())
    check_with_sdk([*listing, *events])
    assert kinds(listing) == [
        "conversation.item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "conversation.item.done",
    ]
    assert "add" in [tool["name"] for tool in listing[-1]["item"]["tools"]]
    assert outputs(events) == ["mcp_call", "message"]
    call = events[-1]["response"]["output"][0]
    assert (call["name"], call["output"], call["server_label"]) == ("add", "3", "math") and "status" not in call
    after_added = kinds(events)[kinds(events).index("response.output_item.added") :]
    assert after_added[:8] == [
        "response.output_item.added",
        "conversation.item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "conversation.item.done",
        "response.output_item.done",
    ]
    assert kinds(events).count("response.created") == kinds(events).count("response.done") == 1
    delta = next(event for event in events if event["type"] == "response.mcp_call_arguments.delta")
    assert delta["obfuscation"] == ""  # which the JavaScript SDK requires


def test_a_response_waits_for_the_list(server_url, math):
    async def scenario():
        async with session_with(server_url, math) as peer:
            return await peer.ask("Add.")  # the list may not have come yet

    assert outputs(asyncio.run(scenario())) == ["mcp_call", "message"]


def test_a_server_can_be_of_one_response(server_url, math):
    async def scenario():
        async with session_with(server_url) as peer:
            await peer.say("response.create", response={"tools": [math], "instructions": "Add."})
            return await peer.until("response.done")

    assert outputs(asyncio.run(scenario())) == ["mcp_call", "message"]


@pytest.mark.parametrize(("approve", "items"), [(True, ["mcp_call", "message"]), (False, ["message"])])
def test_the_user_is_asked(server_url, math, approve, items):
    async def scenario():
        async with session_with(server_url, {**math, "require_approval": "always"}) as peer:
            await listed(peer)
            asking = await peer.ask("Add.")
            [request] = asking[-1]["response"]["output"]
            answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
            await peer.say("conversation.item.create", item=answer)
            events = await peer.until("response.done")
            await peer.say("conversation.item.create", item=answer | {"approve": True})
            return asking, events, await peer.until("error")

    asking, events, again = asyncio.run(scenario())
    assert again[-1]["error"]["param"] == "item.approval_request_id" and "answered already" in again[-1]["error"]["message"]
    check_with_sdk([*asking, *events])
    assert outputs(asking) == ["mcp_approval_request"] and outputs(events) == items


def test_a_tool_that_fails_is_told(server_url, math):
    async def scenario():
        async with session_with(server_url, math) as peer:
            return await peer.ask("Boom.")

    events = asyncio.run(scenario())
    check_with_sdk(events)
    assert "response.mcp_call.failed" in kinds(events) and outputs(events) == ["mcp_call", "message"]
    assert events[-1]["response"]["output"][0]["error"]["type"] == "tool_execution_error"


def test_a_server_that_is_away_is_a_list_that_failed(server_url, math):
    async def scenario():
        async with session_with(server_url, {**math, "server_url": "http://127.0.0.1:9999/mcp"}) as peer:
            return kinds(await listed(peer))

    assert asyncio.run(scenario())[2] == "mcp_list_tools.failed"


MATH = {"type": "mcp", "server_label": "math", "server_url": "http://127.0.0.1:9999/mcp"}


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([MATH, MATH], "invalid_value", "tools[1].server_label"),
        ([{"type": "mcp", "server_label": "mine"}], "missing_required_parameter", "tools[0].server_url"),
        ([{"type": "mcp", "server_label": "mail", "connector_id": "connector_gmail"}], "unsupported_parameter", "tools[0].connector_id"),
        ([MATH | {"server_label": "a b"}], "invalid_value", "tools[0].server_label"),
        ([MATH | {"server_label": f"s{number}"} for number in range(33)], "invalid_value", "tools"),
    ],
    ids=["twice", "unknown", "connector", "label", "many"],
)
def test_a_server_that_responses_refuse_is_refused(server_url, tools, code, param):
    async def scenario():
        async with session_with(server_url) as peer:
            await peer.say("session.update", session={"type": "realtime", "instructions": "New.", "tools": tools})
            await peer.say("response.create", response={"tools": tools})
            await peer.say("session.update", session={"type": "realtime"})
            return await peer.until("session.updated")

    *errors, updated = asyncio.run(scenario())
    assert [error["type"] for error in errors] == ["error", "error"]
    assert [error["error"]["param"] for error in errors] == [f"session.{param}", f"response.{param}"]
    status, _, content = post(server_url, {"model": "parrot", "input": "Add.", "tools": tools})
    body = json.loads(content)["error"]
    assert (status, body["param"], body["code"]) == (400, param, code)
    for error, place in zip(errors, ("session", "response"), strict=True):
        assert error["error"]["message"] == body["message"].replace(f"'{param}", f"'{place}.{param}") and error["error"]["code"] == code
    assert updated["session"]["tools"] == [] and updated["session"]["instructions"] != "New."


def test_a_response_that_is_cancelled_stops_its_calls(server_url, math, mcp):
    async def scenario():
        async with session_with(server_url, math) as peer:
            await peer.say(
                "conversation.item.create", item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Slow."}]}
            )
            await peer.say("response.create")
            await peer.until("response.mcp_call_arguments.done")
            await peer.say("response.cancel")
            events = await peer.until("response.done")
            await peer.say("conversation.item.retrieve", item_id=events[-1]["response"]["output"][0]["id"])
            return events, await peer.until("conversation.item.retrieved"), await peer.ask("Add.")

    events, retrieved, after = asyncio.run(scenario())
    check_with_sdk(events)
    assert events[-1]["response"]["status"] == "cancelled" and "mcp_call" in outputs(after)
    assert kinds(events)[:4] == [
        "response.mcp_call.failed",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    for call in (events[1]["item"], events[2]["item"], events[3]["response"]["output"][0], retrieved[-1]["item"]):
        assert json.loads(call["arguments"]) == {"seconds": 30}
        assert call["error"] == {"type": "tool_execution_error", "message": "The response ended before the tool answered."}
