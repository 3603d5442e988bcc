"""The tool `mcp` through its contract: what it offers, reports and tells the model."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.config.tools.mcp import McpServerSettings
from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.engine_api.history import TextPart
from antiphon.errors import ApiError, ClientError
from antiphon.tool_api import ApprovalRequired, ServerToolCall, ToolEvent, ToolOutput, ToolsListed, mcp_function_name
from antiphon.tools.base import ToolContext
from antiphon.tools.mcp.dialing import DialLimits
from antiphon.tools.mcp.remote import RemoteServers
from antiphon.tools.mcp.requests import OwnServers
from antiphon.tools.mcp.server import CallError, ListingError, ToolDescription, ToolServer
from antiphon.tools.mcp.tool import McpTools
from antiphon.tools.toolbox import OpenTools, Toolbox, ToolLimits
from antiphon.wire.codec.reading import Reader
from antiphon.wire.responses import items, tools as wire_tools
from antiphon.wire.responses.hosted_calls import McpToolExecutionError
from support.tools.mcp_servers import QUICK_COMMAND, Servers

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_item_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(items.Item)
_tool_reader: Reader[wire_tools.Tool] = Reader(wire_tools.Tool)


class Weather:
    """A server in this process."""

    def __init__(self) -> None:
        self.lists = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.outcome: str | CallError = "Sunny"
        self.tools = [
            ToolDescription(name="forecast", description="Tells the weather", input_schema=SCHEMA, read_only=True),
            ToolDescription(name="set/alarm", input_schema=SCHEMA),
        ]

    async def list_tools(self) -> Sequence[ToolDescription]:
        self.lists += 1
        return self.tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str | CallError:
        self.calls.append((name, arguments))
        return self.outcome


async def allow(host: str, _port: int) -> Sequence[str]:
    return [host]


class Stage:
    """A toolbox with the tool `mcp`, and what an open one reports."""

    def __init__(
        self,
        functions: Mapping[str, ToolServer] | None = None,
        *,
        own: Sequence[McpServerSettings] = (),
        limits: DialLimits | None = None,
        chars: int = 1000,
    ) -> None:
        self.events: list[ToolEvent] = []
        self.tools = McpTools(
            OwnServers(own, {"KEY": "sk-own-secret"}, functions or {}),
            lambda limits: RemoteServers(allow, limits),
            limits or DialLimits(),
            chars,
        )
        self.toolbox = Toolbox([self.tools], ToolLimits(output_chars=chars))

    def open(self, *requests: dict[str, Any], items: Sequence[Any] = (), tenant: str = "") -> OpenTools:
        tools = [
            (f"tools[{n}]", _tool_reader.read(json.dumps({"type": "mcp", "server_label": "weather"} | request).encode()))
            for n, request in enumerate(requests)
        ]
        return self.toolbox.open(tools, ToolContext(response_id="resp_1", tenant=tenant, model="m", items=items))

    async def prepare(self, open_tools: OpenTools) -> list[str]:
        self.events.clear()
        await open_tools.prepare(self.events.append)
        return [
            f"{function.function.namespace}.{function.function.name}"
            for event in self.events
            if isinstance(event, ToolsListed)
            for function in event.functions
        ]

    async def run(
        self, open_tools: OpenTools, name: str, arguments: str = "{}", approved: str | None = None, label: str = "weather"
    ) -> ToolOutput | ApprovalRequired:
        self.events.clear()
        call = ServerToolCall(
            response_id="resp_1", call_id="c", name=name, arguments=arguments, namespace=label, approval_request_id=approved
        )
        return await open_tools.run(call, self.events.append)

    def shown(self) -> list[Any]:
        """What was reported: items, and the types of events between them."""
        kinds = {HostedToolStarted: "item", HostedToolDone: "item", HostedToolProgress: "event"}
        shown = [getattr(event, kinds[type(event)]) for event in self.events if type(event) in kinds]
        return [each["type"].removeprefix("response.") if "response." in each["type"] else each for each in shown]


def text_of(outcome: ToolOutput | ApprovalRequired) -> str:
    assert isinstance(outcome, ToolOutput)
    (part,) = outcome.parts
    assert isinstance(part, TextPart)
    return part.text


def test_tools_are_listed_and_offered_in_the_labels_namespace():
    async def main() -> None:
        stage = Stage({"weather": Weather()})
        open_tools = stage.open({})
        assert open_tools.server_tools.must_prepare and not open_tools.server_tools.functions
        alarm = mcp_function_name("weather", "set/alarm")
        assert await stage.prepare(open_tools) == ["weather.forecast", f"weather.{alarm}"]
        listed = [
            {"annotations": {"read_only": True}, "description": "Tells the weather", "input_schema": SCHEMA, "name": "forecast"},
            {"annotations": {"read_only": False}, "description": None, "input_schema": SCHEMA, "name": "set/alarm"},
        ]
        item = {"id": "mcpl_0", "type": "mcp_list_tools", "server_label": "weather", "tools": []}
        assert stage.shown() == [item, "mcp_list_tools.in_progress", "mcp_list_tools.completed", {**item, "tools": listed}]
        functions = open_tools.server_tools.functions
        assert [entry.function.parameters for entry in functions] == [SCHEMA, SCHEMA]
        assert {entry.type for entry in functions} == {"mcp"}

    asyncio.run(main())


def test_a_call_has_the_originals_events_and_item():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        assert text_of(await stage.run(open_tools, "forecast", '{"city": "Bonn"}')) == "Sunny"
        item = {
            "id": "mcp_0",
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": None,
            "arguments": "",
            "error": None,
            "name": "forecast",
            "output": None,
            "server_label": "weather",
        }
        final = {**item, "status": "completed", "arguments": '{"city": "Bonn"}', "output": "Sunny"}
        stages = ["mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed"]
        assert stage.shown() == [item, *stages, final]
        progress = [event.event for event in stage.events if isinstance(event, HostedToolProgress)]
        assert progress[1]["delta"] == progress[2]["arguments"] == '{"city": "Bonn"}'
        assert weather.calls == [("forecast", {"city": "Bonn"})]
        assert _item_decoder.decode(json.dumps(final)).output == "Sunny"

    asyncio.run(main())


def test_a_tool_whose_name_models_can_not_have_is_called_and_shown_by_its_own():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        await stage.run(open_tools, mcp_function_name("weather", "set/alarm"))
        assert weather.calls == [("set/alarm", {})] and stage.shown()[-1]["name"] == "set/alarm"

    asyncio.run(main())


def test_a_call_waits_for_approval_unless_the_request_says_otherwise():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({})
        await stage.prepare(open_tools)
        assert isinstance(await stage.run(open_tools, "forecast", '{"city":"Bonn"}'), ApprovalRequired)
        item = {
            "id": "mcpr_0",
            "type": "mcp_approval_request",
            "arguments": '{"city":"Bonn"}',
            "name": "forecast",
            "server_label": "weather",
        }
        assert stage.shown() == [item, item] and weather.calls == []
        assert text_of(await stage.run(open_tools, "forecast", '{"city":"Bonn"}', approved="mcpr_7")) == "Sunny"
        stages = ["in_progress", "_arguments.delta", "in_progress", "_arguments.done", "completed"]
        assert [each for each in stage.shown() if isinstance(each, str)] == [
            f"mcp_call{'' if each[0] == '_' else '.'}{each}" for each in stages
        ]
        assert stage.shown()[0]["approval_request_id"] == stage.shown()[-1]["approval_request_id"] == "mcpr_7"

    asyncio.run(main())


@pytest.mark.parametrize("arguments", ["[1]", "{", "nothing", '"x"', '{"a":' * 200 + "1" + "}" * 200, '{"a": "\ud800"}', "{}{}"])
def test_arguments_that_are_no_object_are_told_to_the_model_and_not_asked_about(arguments: str):
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({})
        await stage.prepare(open_tools)
        assert text_of(await stage.run(open_tools, "forecast", arguments)) == "The call failed. The arguments are no JSON object."
        assert stage.shown()[-1]["error"] == {"type": "mcp_protocol_error", "code": -32602, "message": "The arguments are no JSON object."}
        assert stage.shown()[-1]["status"] == "failed" and weather.calls == []

    asyncio.run(main())


@given(st.text() | st.text('{}[]":,1a\\\ud800', max_size=30))
def test_any_text_for_arguments_is_run_or_refused(arguments: str):
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        assert text_of(await stage.run(open_tools, "forecast", arguments)) == (
            "Sunny" if weather.calls else "The call failed. The arguments are no JSON object."
        )

    asyncio.run(main())


def test_an_empty_text_is_a_call_without_arguments():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        await stage.run(open_tools, "forecast", "")
        assert weather.calls == [("forecast", {})]

    asyncio.run(main())


def test_a_tool_that_fails_is_an_item_with_its_content_and_the_model_reads_why():
    async def main() -> None:
        weather = Weather()
        weather.outcome = McpToolExecutionError(content=[{"type": "text", "text": "no such city"}])
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        assert text_of(await stage.run(open_tools, "forecast")) == "no such city"
        assert "mcp_call.failed" in stage.shown()
        final = stage.shown()[-1]
        assert (final["status"], final["output"]) == ("failed", None)
        assert final["error"] == {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no such city"}]}

    asyncio.run(main())


def test_a_long_answer_is_cut_for_the_model_and_in_the_item():
    async def main() -> None:
        weather = Weather()
        weather.outcome = "x" * 5000
        stage = Stage({"weather": weather}, chars=1000)
        open_tools = stage.open({"require_approval": "never"})
        await stage.prepare(open_tools)
        text = text_of(await stage.run(open_tools, "forecast"))
        assert text == "x" * 1000 + "\n[4000 more characters were left out (tools.output_chars).]" == stage.shown()[-1]["output"]

    asyncio.run(main())


def test_what_a_request_may_not_use_is_neither_listed_nor_run():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"allowed_tools": {"read_only": True}, "require_approval": "never"})
        assert await stage.prepare(open_tools) == ["weather.forecast"]
        assert [tool["name"] for tool in stage.shown()[-1]["tools"]] == ["forecast"]
        assert "no tool" in text_of(await stage.run(open_tools, mcp_function_name("weather", "set/alarm")))
        assert stage.shown() == [] and weather.calls == []

    asyncio.run(main())


# Lists that are there already


def list_item(**fields: Any) -> Any:
    tools = [{"name": "forecast", "input_schema": SCHEMA, "annotations": {"read_only": True}}]
    return _item_decoder.decode(json.dumps({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "weather", "tools": tools} | fields))


def test_a_list_in_the_conversation_is_used_without_asking():
    async def main() -> None:
        weather = Weather()
        stage = Stage({"weather": weather})
        open_tools = stage.open({"require_approval": {"never": {"read_only": True}}}, items=[list_item()])
        assert not open_tools.server_tools.must_prepare
        assert [entry.function.key for entry in open_tools.server_tools.functions] == ["weather.forecast"]
        assert text_of(await stage.run(open_tools, "forecast")) == "Sunny"
        assert weather.lists == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("item", "request_fields"),
    [
        ({"error": "unreachable"}, {}),
        ({"server_label": "other"}, {}),
        ({}, {"allowed_tools": ["forecast", "set/alarm"]}),
    ],
)
def test_a_list_that_says_too_little_is_not_used(item: dict[str, Any], request_fields: dict[str, Any]):
    async def main() -> None:
        stage = Stage({"weather": Weather()})
        assert stage.open(request_fields, items=[list_item(**item)]).server_tools.must_prepare

    asyncio.run(main())


@pytest.mark.parametrize("filter_of_add", [["add"], {"tool_names": ["add"], "of_a_later_version": 1}])
def test_a_list_of_another_server_or_with_another_filter_is_not_used_as_far_as_that_is_known(servers: Servers, filter_of_add: Any):
    async def main() -> None:
        stage = Stage()
        here = {"server_url": servers.url_by_kind["streamable-2026"], "allowed_tools": filter_of_add}
        there = {"server_url": servers.url_by_kind["streamable-2025"], "allowed_tools": filter_of_add}
        open_tools = stage.open(here)
        await stage.prepare(open_tools)
        item = _item_decoder.decode(json.dumps(stage.shown()[-1]))
        assert not stage.open(here, items=[item]).server_tools.must_prepare
        assert stage.open(there, items=[item]).server_tools.must_prepare
        assert stage.open({**here, "allowed_tools": None}, items=[item]).server_tools.must_prepare
        assert not stage.open(there, items=[item], tenant="another, of whom nothing is known").server_tools.must_prepare
        open_tools.close()
        await stage.toolbox.close()

    asyncio.run(main())


def test_a_list_that_a_client_made_up_is_no_more_than_it_says():
    async def main() -> None:
        tools = [
            {"name": "", "input_schema": {}},
            {"name": "x", "input_schema": 5},
            {"name": "forecast", "input_schema": {}, "annotations": 7},
        ]
        stage = Stage({"weather": Weather()})
        open_tools = stage.open({"require_approval": {"never": {"read_only": True}}}, items=[list_item(tools=tools)])
        assert [entry.function.name for entry in open_tools.server_tools.functions] == ["forecast"]
        assert isinstance(await stage.run(open_tools, "forecast"), ApprovalRequired)

    asyncio.run(main())


# Servers that can't be listed


def test_a_server_that_can_not_be_listed_fails_the_response_as_the_originals_does(servers: Servers):
    async def main() -> None:
        stage = Stage()
        with pytest.raises(ApiError) as caught:
            await stage.prepare(stage.open({"server_url": f"{servers.broken.url}/401"}))
        assert (caught.value.status, caught.value.type, caught.value.code, caught.value.param) == (
            424,
            "external_connector_error",
            "http_error",
            "tools",
        )
        assert caught.value.message == "Error retrieving tool list from MCP server: 'weather'. Http status code: 401 (Unauthorized)"
        assert [each for each in stage.shown() if isinstance(each, str)] == ["mcp_list_tools.in_progress", "mcp_list_tools.failed"]
        assert stage.shown()[-1]["error"] and stage.shown()[-1]["tools"] == []
        await stage.toolbox.close()

    asyncio.run(main())


def test_without_a_status_the_original_says_424_and_the_reason_follows():
    class Silent(Weather):
        async def list_tools(self) -> Sequence[ToolDescription]:
            raise ListingError("the server could not be reached")

    class Defective(Weather):
        async def list_tools(self) -> Sequence[ToolDescription]:
            raise RuntimeError("secret")

    async def main() -> None:
        for server, reason in ((Silent(), "the server could not be reached"), (Defective(), "it failed")):
            stage = Stage({"weather": server, "other": Weather()})
            with pytest.raises(ApiError) as caught:
                await stage.prepare(stage.open({}, {"server_label": "other"}))
            assert caught.value.message.endswith(f"Http status code: 424 (Failed Dependency). The reason: {reason}.")

    asyncio.run(main())


def test_servers_are_listed_at_once_and_told_one_after_another():
    both = asyncio.Barrier(2)

    class Slow(Weather):
        async def list_tools(self) -> Sequence[ToolDescription]:
            await both.wait()
            return await super().list_tools()

    async def main() -> None:
        stage = Stage({"a": Slow(), "b": Slow()})
        await stage.prepare(stage.open({"server_label": "b"}, {"server_label": "a"}))
        assert [each["server_label"] for each in stage.shown() if isinstance(each, dict)] == ["b", "b", "a", "a"]

    asyncio.run(main())


def test_a_schema_that_is_nested_too_deep_is_left_out():
    async def main() -> None:
        schema: dict[str, Any] = {}
        for _ in range(100):
            schema = {"not": schema}
        weather = Weather()
        weather.tools = [ToolDescription(name="deep", input_schema=schema), *weather.tools[:1]]
        stage = Stage({"weather": weather})
        assert await stage.prepare(stage.open({})) == ["weather.forecast"]

    asyncio.run(main())


# The operator's servers


def test_a_label_alone_reaches_the_operators_server_with_the_operators_key(servers: Servers):
    own = McpServerSettings(
        label="weather", url=f"{servers.broken.url}/late/echo", key_env="KEY", headers={"x-team": "blue"}, description="All about rain."
    )

    async def main() -> None:
        stage = Stage(own=[own])
        open_tools = stage.open({"require_approval": "never"})
        assert await stage.prepare(open_tools) == ["weather.add"]
        assert open_tools.server_tools.functions[0].function.description == "(All tools of 'weather': All about rain.)"
        text = text_of(await stage.run(open_tools, "add"))
        assert '"x-team": "blue"' in text and '"authorization": "***"' in text
        assert servers.broken.last_headers["authorization"] == "Bearer sk-own-secret"
        open_tools.close()
        await stage.toolbox.close()

    asyncio.run(main())


def test_a_program_serves_a_response_until_its_tools_are_closed():
    own = McpServerSettings(label="weather", command=QUICK_COMMAND, allowed_tools=("pid",))

    async def main() -> None:
        stage = Stage(own=[own])
        open_tools = stage.open({"require_approval": "never"})
        assert await stage.prepare(open_tools) == ["weather.pid"]
        assert text_of(await stage.run(open_tools, "pid")) == text_of(await stage.run(open_tools, "pid"))
        sessions = asyncio.all_tasks() - {asyncio.current_task()}
        open_tools.close()
        await asyncio.wait(sessions)
        await stage.toolbox.close()

    asyncio.run(main())


def test_the_library_is_loaded_once_and_off_the_loop():
    threads: list[bool] = []

    def make(limits: DialLimits) -> RemoteServers:
        threads.append(threading.current_thread() is threading.main_thread())
        return RemoteServers(allow, limits)

    async def main() -> None:
        tools = McpTools(OwnServers([], {}, {}), make, DialLimits(), 1000)
        tool = msgspec.convert({"type": "mcp", "server_label": "a", "server_url": "http://127.0.0.1:9/"}, wire_tools.Tool)
        other = msgspec.convert({"type": "mcp", "server_label": "b", "server_url": "http://127.0.0.1:9/"}, wire_tools.Tool)
        open_tools = tools.open([("tools[0]", tool), ("tools[1]", other)], ToolContext(response_id="r", tenant="", model="m"))
        with pytest.raises(ApiError):
            await open_tools.prepare(lambda _event: None)
        await tools.close()

    asyncio.run(main())
    assert threads == [False]


def test_without_the_library_only_servers_in_this_process_are_reached():
    tools = McpTools(OwnServers([], {}, {"weather": Weather()}), None, DialLimits(), 1000)
    context = ToolContext(response_id="r", tenant="", model="m")
    tools.open([("tools[0]", msgspec.convert({"type": "mcp", "server_label": "weather"}, wire_tools.Tool))], context)
    with pytest.raises(ClientError, match="library for them is not installed"):
        tool = msgspec.convert({"type": "mcp", "server_label": "a", "server_url": "http://127.0.0.1:9/"}, wire_tools.Tool)
        tools.open([("tools[0]", tool)], context)


def test_a_call_that_the_toolbox_cuts_short_fails_with_an_error_of_the_right_form():
    tools = McpTools(OwnServers([], {}, {"weather": Weather()}), None, DialLimits(), 1000)
    context = ToolContext(response_id="r", tenant="", model="m")
    open_tool = tools.open([("tools[0]", msgspec.convert({"type": "mcp", "server_label": "weather"}, wire_tools.Tool))], context)
    call = {"type": "mcp_call", "id": "mcp_1", "name": "x", "server_label": "weather", "arguments": "{}", "status": "in_progress"}
    item = _item_decoder.decode(json.dumps(open_tool.fail(call, "It took too long.")))
    assert (item.status, item.error.message) == ("failed", "It took too long.")
    listing = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "weather", "tools": []}
    assert _item_decoder.decode(json.dumps(open_tool.fail(listing, "It took too long."))).error == "It took too long."
