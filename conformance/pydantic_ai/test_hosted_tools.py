"""pydantic-ai's native tools, which antiphon runs: whole and streamed, and in the history that the next run replays."""

import asyncio
import os

import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import NativeToolReturnPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.native_tools import CodeExecutionTool, FileSearchTool, ImageGenerationTool, MCPServerTool, WebSearchTool
from pydantic_ai.providers.openai import OpenAIProvider


@pytest.fixture(scope="module")
def store():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as client:
        store = client.vector_stores.create(name="Birds")
        client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.md", b"Owls hunt at night."))
        yield store.id


def ask(tool, text, is_streamed, history=(), **settings):
    """A run, in which the model may use the tool, and its output."""
    provider = OpenAIProvider(base_url=os.environ["ANTIPHON_URL"], api_key="none")
    agent = Agent(OpenAIResponsesModel("parrot", provider=provider), capabilities=[NativeTool(tool)], model_settings=settings)

    async def scenario():
        if not is_streamed:
            return await agent.run(text, message_history=list(history))
        async with agent.run_stream(text, message_history=list(history)) as run:
            return run, await run.get_output()

    run = asyncio.run(scenario())
    return run if is_streamed else (run, run.output)


def returned(run):
    """What tools of the server returned, by their names."""
    return {
        part.tool_name: part.content for message in run.new_messages() for part in message.parts if isinstance(part, NativeToolReturnPart)
    }


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("make", "text", "said"),
    [
        (lambda _: MCPServerTool(id="almanac", url=os.environ["MCP_URL"]), "forecast?", "The tool says rain in Oslo tomorrow"),
        (lambda store: FileSearchTool(file_store_ids=[store]), "search the files", "Owls hunt at night , and so on."),
        (lambda _: WebSearchTool(), "search the web", "It hears a mouse ([birds.example](https://birds.example/owls.html)), they say."),
        (lambda _: CodeExecutionTool(), "make a plot", "Here is [the plot](sandbox:/mnt/data/plot.txt)."),
    ],
)
def test_tools(store, make, text, said, is_streamed):
    tool = make(store)
    if isinstance(tool, CodeExecutionTool) and not os.environ["ANTIPHON_CODE"]:
        pytest.skip("the server can't run code here")
    first, output = ask(tool, text, is_streamed)
    assert output == said
    assert returned(first)
    _, output = ask(tool, "Hello", is_streamed, first.all_messages())
    assert output == "You said: Hello"


def test_a_picture_and_its_change_over_the_previous_response():
    first, _ = ask(ImageGenerationTool(), "draw a square", False)
    assert [image.media_type for image in first.response.images] == ["image/png"]
    second, _ = ask(ImageGenerationTool(), "change the picture", False, openai_previous_response_id=first.response.provider_response_id)
    assert first.response.images[0].data != second.response.images[0].data
