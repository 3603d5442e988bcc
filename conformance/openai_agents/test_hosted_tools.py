"""Tools that antiphon runs, in agents: MCP servers with approvals, files, the web, code and pictures. Each event is validated strictly."""

import asyncio
import base64
import os

import openai
import pytest
from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    RunState,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)

MCP_TYPES = ["mcp_list_tools", "mcp_call", "message"]
CHOICES = {
    "approved": ({"approve": True}, "The tool says a table in Oslo is booked"),
    "refused": ({"approve": False, "reason": "It is too late."}, "It is too late."),
}
WAYS = ["previous response", "conversation", "replayed", "stateless"]
# Each way whole and streamed; in a short run, in turn.
PAIRS = [(way, mode) for way in WAYS for mode in (False, True) if not os.environ["ANTIPHON_SHORT"] or mode == WAYS.index(way) % 2]


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def client():
    # A search has no `action` before it is done, as in the original's streams, though the SDK's types require one.
    return openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0, _strict_response_validation=True)


def agent(client, *tools, **settings):
    return Agent(name="a", model=OpenAIResponsesModel("parrot", client), tools=list(tools), model_settings=ModelSettings(**settings))


def mcp(on_approval_request=None, variable="MCP_URL", **fields):
    config = {"type": "mcp", "server_label": "almanac", "server_url": os.environ[variable], "require_approval": "never", **fields}
    return HostedMCPTool(tool_config=config, on_approval_request=on_approval_request)


async def run(starting, text, is_streamed, **options):
    """A run's result; if it is streamed, also the items of its events."""
    if not is_streamed:
        return await Runner.run(starting, text, **options), None
    streamed = Runner.run_streamed(starting, text, **options)
    names = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    return streamed, names


def kind(item):
    return item.raw_item["type"] if isinstance(item.raw_item, dict) else item.raw_item.type


def raw_types(result):
    return [kind(item) for item in result.new_items]


@pytest.mark.parametrize(("variable", "is_streamed"), [("MCP_URL", True), ("MCP_URL", False), ("MCP_SSE_URL", True)])
def test_an_mcp_server_over_each_transport(client, variable, is_streamed):
    result, names = asyncio.run(run(agent(client, mcp(variable=variable)), "forecast?", is_streamed))
    assert raw_types(result) == MCP_TYPES
    assert result.final_output == "The tool says rain in Oslo tomorrow"
    listed, call, _ = (item.raw_item for item in result.new_items)
    assert next((tool.name, tool.annotations) for tool in listed.tools) == ("get_forecast", {"read_only": True})
    assert (call.status, call.output, call.error) == ("completed", "rain in Oslo tomorrow", None)
    if is_streamed:
        assert names == ["mcp_list_tools", "tool_called", "message_output_created"]


@pytest.mark.parametrize(("fields", "is_streamed"), [({}, False), ({"server_url": "MCP_NPM_URL"}, True)])
def test_an_mcp_server_from_npm_as_a_program_of_the_operators_and_by_its_address(client, fields, is_streamed):
    address = {name: os.environ[variable] for name, variable in fields.items()}
    tool = HostedMCPTool(tool_config={"type": "mcp", "server_label": "workshop", "require_approval": "never", **address})
    result, _ = asyncio.run(run(agent(client, tool), "a sum of the workshop", is_streamed))
    assert result.final_output == "The tool says The sum of 2 and 3 is 5."
    assert "echo" in [tool.name for tool in result.new_items[0].raw_item.tools]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_that_fails_is_told(client, is_streamed):
    result, _ = asyncio.run(run(agent(client, mcp()), "cancel the table", is_streamed))
    call = result.new_items[1].raw_item
    assert (call.status, call.output, call.error.type) == ("failed", None, "mcp_tool_execution_error")
    assert "cancel_table" in result.final_output


def test_a_server_that_is_not_there_fails_the_request(client):
    with pytest.raises(openai.APIStatusError) as failure:
        asyncio.run(Runner.run(agent(client, mcp(server_url="http://127.0.0.1:9/mcp")), "forecast?"))
    assert (failure.value.status_code, failure.value.param) == (424, "tools")


async def options_and_settings(client, way):
    """What a run takes so that the next one goes on from there in this way."""
    if way == "conversation":
        return {"conversation_id": (await client.conversations.create()).id}, {}
    if way == "previous response":
        return {"auto_previous_response_id": True}, {}
    return {}, {"store": False} if way == "stateless" else {}


@pytest.mark.parametrize(("way", "is_streamed"), PAIRS)
@pytest.mark.parametrize("choice", CHOICES)
def test_approvals_by_a_callback(client, choice, way, is_streamed):
    answer, said = CHOICES[choice]
    asked = []

    async def decide(request):
        asked.append((request.data.name, request.data.arguments))
        return answer

    async def scenario():
        options, settings = await options_and_settings(client, way)
        made = agent(client, mcp(decide, require_approval="always"), **settings)
        return await run(made, "book a table", is_streamed, **options)

    result, _ = asyncio.run(scenario())
    assert asked == [("book_table", '{"city":"Oslo"}')]
    assert said in result.final_output
    kinds = raw_types(result)
    assert kinds[:4] == ["mcp_list_tools", "reasoning", "mcp_approval_request", "mcp_approval_response"]
    assert ("mcp_call" in kinds) == answer["approve"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("choice", CHOICES)
def test_interruptions_that_are_resumed_from_a_stored_state(client, choice, way):
    answer, said = CHOICES[choice]

    async def scenario():
        options, settings = await options_and_settings(client, way)
        made = agent(client, mcp(require_approval={"never": {"tool_names": ["get_forecast"]}}), **settings)
        first = await Runner.run(made, "both tables", **options)
        state = await RunState.from_string(made, first.to_state().to_string())
        for interruption in state.get_interruptions():
            if answer["approve"]:
                state.approve(interruption)
            else:
                state.reject(interruption, rejection_message=answer["reason"])
        return first, await Runner.run(made, state)

    first, second = asyncio.run(scenario())
    assert [item.raw_item.type for item in first.interruptions] == ["mcp_approval_request"] * 2
    calls = [item.raw_item for item in second.new_items if kind(item) == "mcp_call"]
    assert [call.output for call in calls] == (["a table in Oslo is booked", "a table in Bergen is booked"] if answer["approve"] else [])
    assert ("Bergen is booked" if answer["approve"] else said) in second.final_output


@pytest.mark.parametrize("way", WAYS)
def test_the_next_run_lists_no_tools_again(client, way):
    async def scenario():
        options, settings = await options_and_settings(client, way)
        made = agent(client, mcp(), **settings)
        first = await Runner.run(made, "forecast?", **options)
        if way == "previous response":
            options["previous_response_id"] = first.last_response_id
        text = "forecast?" if options else [*first.to_input_list(), {"role": "user", "content": "forecast?"}]
        return first, await Runner.run(made, text, **options)

    first, second = asyncio.run(scenario())
    assert raw_types(first) == MCP_TYPES and raw_types(second) == MCP_TYPES[1:]
    assert second.final_output == first.final_output


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_turn_with_a_function_of_the_client_and_one_of_the_server(client, is_streamed):
    result, _ = asyncio.run(run(agent(client, mcp(), get_weather), "forecast and a person's word", is_streamed))
    assert sorted(raw_types(result)[:4]) == ["function_call", "function_call_output", "mcp_call", "mcp_list_tools"]
    assert "sunny in Paris" in result.final_output


def test_over_a_websocket(client):
    async def scenario():
        model = OpenAIResponsesWSModel("parrot", client)
        made = Agent(name="a", model=model, tools=[mcp(lambda _: {"approve": True}, require_approval="always")])
        streamed, names = await run(made, "book a table", True)
        await model.close()
        return streamed.final_output, names

    output, names = asyncio.run(scenario())
    assert output == "The tool says a table in Oslo is booked"
    assert "mcp_approval_requested" in names and "tool_called" in names


@pytest.fixture(scope="module")
def store():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as client:
        store = client.vector_stores.create(name="Birds")
        client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.md", b"Owls hunt at night."))
        yield store.id


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_files(client, store, include, is_streamed):
    tool = FileSearchTool(vector_store_ids=[store], max_num_results=3, include_search_results=include)
    result, _ = asyncio.run(run(agent(client, tool), "search the files", is_streamed))
    call, message = (item.raw_item for item in result.new_items)
    assert (call.type, call.status, call.queries) == ("file_search_call", "completed", ["when do owls hunt"])
    assert [found.filename for found in call.results or ()] == (["owls.md"] if include else [])
    (citation,) = message.content[0].annotations
    assert (result.final_output, citation.type, citation.index) == ("Owls hunt at night , and so on.", "file_citation", 19)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_web(client, is_streamed):
    client._strict_response_validation = not is_streamed

    async def scenario():
        made = agent(client, WebSearchTool(search_context_size="low"), response_include=["web_search_call.action.sources"])
        first, _ = await run(made, "search the web", is_streamed)
        second, _ = await run(made, "open the page", is_streamed, previous_response_id=first.last_response_id)
        return first, second

    first, second = asyncio.run(scenario())
    call, message = (item.raw_item for item in first.new_items)
    assert (call.action.type, call.action.query, call.action.sources[0].url) == (
        "search",
        "barn owl snow",
        "https://birds.example/owls.html",
    )
    (citation,) = message.content[0].annotations
    assert first.final_output[citation.start_index : citation.end_index] == "([birds.example](https://birds.example/owls.html))"
    opened = second.new_items[0].raw_item
    assert (opened.status, opened.action.type) == ("completed", "open_page")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_code(client, is_streamed):
    if not os.environ["ANTIPHON_CODE"]:
        pytest.skip("the server can't run code here")

    async def scenario():
        tool = CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}})
        made = agent(client, tool, response_include=["code_interpreter_call.outputs"])
        first, _ = await run(made, "make a plot", is_streamed)
        second, _ = await run(made, [*first.to_input_list(), {"role": "user", "content": "wrong code"}], is_streamed)
        call, message = (item.raw_item for item in first.new_items)
        (citation,) = message.content[0].annotations
        content = await client.containers.files.content.retrieve(citation.file_id, container_id=call.container_id)
        return call, citation, await content.aread(), second

    call, citation, content, second = asyncio.run(scenario())
    assert (call.status, call.outputs[0].logs.strip()) == ("completed", "'plot_is_made'")
    assert (citation.type, citation.filename, content) == ("container_file_citation", "plot.txt", b"a plot")
    wrong = second.new_items[0].raw_item
    assert wrong.container_id == call.container_id
    assert "ZeroDivisionError" in wrong.outputs[0].logs


@pytest.mark.parametrize("is_streamed", [False, True])
def test_pictures(client, is_streamed):
    async def scenario():
        tool = ImageGenerationTool({"type": "image_generation", "size": "auto", "partial_images": 1 if is_streamed else 0})
        made = agent(client, tool)
        first, _ = await run(made, "draw a square", is_streamed)
        replayed = [*first.to_input_list(), {"role": "user", "content": "change the picture"}]
        second, _ = await run(made, replayed, is_streamed)
        return first, second

    first, second = (result.new_items[0].raw_item for result in asyncio.run(scenario()))
    assert (first.status, first.action, first.size, second.action) == ("completed", "generate", "4x4", "edit")
    assert base64.b64decode(first.result) != base64.b64decode(second.result)
