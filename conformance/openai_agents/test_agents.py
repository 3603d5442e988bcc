"""The OpenAI Agents SDK runs agents, tools and multi-turn conversations on antiphon."""

import asyncio
import os

import openai
import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class Person(BaseModel):
    name: str
    age: int


def agent(**more):
    client = openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
    return Agent(name="a", instructions="Be brief.", model=OpenAIResponsesModel("parrot", client), **more)


def test_text():
    assert asyncio.run(Runner.run(agent(), "Hello")).final_output == "You said: Hello"


def test_tool_round_trip():
    assert asyncio.run(Runner.run(agent(tools=[get_weather]), "weather?")).final_output == "The tool says sunny in Paris"


def test_stream_with_a_tool():
    async def scenario():
        run = Runner.run_streamed(agent(tools=[get_weather]), "weather?")
        kinds = [event.type async for event in run.stream_events()]
        return kinds, run.final_output

    kinds, output = asyncio.run(scenario())
    assert "raw_response_event" in kinds
    assert output == "The tool says sunny in Paris"


def test_structured_output():
    assert asyncio.run(Runner.run(agent(output_type=Person), "a person")).final_output == Person(name="Ada", age=36)


def test_conversation():
    async def scenario():
        first = await Runner.run(agent(), "Hello")
        by_id = await Runner.run(agent(), "again", previous_response_id=first.last_response_id)
        replayed = await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": "once more"}])
        return by_id.final_output, replayed.final_output

    assert asyncio.run(scenario()) == ("You said: again", "You said: once more")


def test_error():
    with pytest.raises(openai.InternalServerError):
        asyncio.run(Runner.run(agent(), "break at once"))


def test_a_session_that_the_server_keeps():
    async def scenario():
        client = openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
        session = OpenAIConversationsSession(openai_client=client)
        outputs = [
            (await Runner.run(agent(tools=[get_weather]), text, session=session)).final_output for text in ("Hello", "weather?", "bye")
        ]
        items = await session.get_items()
        await session.add_items([{"role": "user", "content": str(number)} for number in range(45)])
        last = await session.pop_item()
        count = len(await session.get_items())
        resumed = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
        latest = await resumed.get_items(limit=2)
        await session.clear_session()
        return outputs, [item.get("role", item["type"]) for item in items], last["content"][0]["text"], count, len(latest)

    outputs, kinds, last, count, latest = asyncio.run(scenario())
    assert outputs == ["You said: Hello", "The tool says sunny in Paris", "You said: bye"]
    assert kinds == ["user", "assistant", "user", "function_call", "function_call_output", "assistant", "user", "assistant"]
    assert (last, count, latest) == ("44", len(kinds) + 44, 2)


def test_a_conversation_by_its_id():
    async def scenario():
        client = openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
        conversation = await client.conversations.create()
        first = await Runner.run(agent(tools=[get_weather]), "weather?", conversation_id=conversation.id)
        streamed = Runner.run_streamed(agent(), "Hello", conversation_id=conversation.id)
        async for _ in streamed.stream_events():
            pass
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        return first.final_output, streamed.final_output, [item.type for item in items]

    first, second, kinds = asyncio.run(scenario())
    assert (first, second) == ("The tool says sunny in Paris", "You said: Hello")
    assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]


def test_a_websocket_carries_runs_with_tools_and_conversations_by_id():
    async def scenario():
        client = openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
        model = OpenAIResponsesWSModel("parrot", client)
        talker = Agent(name="a", instructions="Be brief.", model=model, tools=[get_weather])
        first = await Runner.run(talker, "weather?")
        again = await Runner.run(talker, "again", previous_response_id=first.last_response_id)
        streamed = Runner.run_streamed(talker, "weather?", auto_previous_response_id=True)
        kinds = {event.type async for event in streamed.stream_events()}
        await model.close()
        return first.final_output, again.final_output, streamed.final_output, kinds

    *outputs, kinds = asyncio.run(scenario())
    assert outputs == ["The tool says sunny in Paris", "You said: again", "The tool says sunny in Paris"]
    assert "raw_response_event" in kinds


@pytest.mark.parametrize("mode", ["previous_response_id", "input"])
def test_a_session_that_is_compacted(mode):
    async def scenario():
        client = openai.AsyncOpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
        session = OpenAIResponsesCompactionSession(
            session_id="long",
            underlying_session=SQLiteSession("long"),
            client=client,
            # The SDK takes only names here that could be OpenAI's.
            model="gpt-parrot",
            compaction_mode=mode,
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 3,
        )
        outputs = [
            (await Runner.run(agent(tools=[get_weather]), text, session=session)).final_output for text in ("weather?", "Hello", "bye")
        ]
        return outputs, [item.get("type", "message") for item in await session.get_items()]

    outputs, kinds = asyncio.run(scenario())
    assert outputs == ["The tool says sunny in Paris", "You said: Hello", "You said: bye"]
    assert "compaction" in kinds and "function_call" not in kinds
