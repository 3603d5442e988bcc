"""pydantic-ai's Responses model on antiphon."""

import asyncio
import os

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


def agent(**more):
    return Agent(OpenAIResponsesModel("parrot", provider=OpenAIProvider(base_url=os.environ["ANTIPHON_URL"], api_key="none")), **more)


def test_text():
    assert agent().run_sync("Hello").output == "You said: Hello"


def test_stream():
    async def scenario():
        async with agent().run_stream("Hello there") as run:
            return await run.get_output()

    assert asyncio.run(scenario()) == "You said: Hello there"


def test_tool_round_trip():
    made = agent()

    @made.tool_plain
    def get_weather(city: str) -> str:
        return f"hail in {city}"

    assert made.run_sync("weather?").output == "The tool says hail in Paris"


def test_structured_output():
    assert agent(output_type=NativeOutput(Person)).run_sync("a person").output == Person(name="Ada", age=36)


def test_conversation():
    first = agent().run_sync("Hello")
    assert agent().run_sync("again", message_history=first.all_messages()).output == "You said: again"


def test_error():
    with pytest.raises(ModelHTTPError) as failure:
        agent().run_sync("break at once")
    assert failure.value.status_code == 503
