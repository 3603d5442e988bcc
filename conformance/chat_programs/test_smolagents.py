"""smolagents' OpenAIServerModel, which sends text as lists of parts and asks for the usage of streams."""

import os

import pytest
from smolagents import ChatMessage, OpenAIServerModel, tool


@tool
def get_weather(city: str) -> str:
    """
    The weather in a city.

    Args:
        city: its name.
    """
    return f"fog in {city}"


@pytest.fixture
def model():
    return OpenAIServerModel("parrot", api_base=os.environ["ANTIPHON_URL"], api_key="none")


def asked(text):
    return [ChatMessage(role="user", content=[{"type": "text", "text": text}])]


def test_text(model):
    answer = model.generate(asked("Hello"))
    assert answer.content == "You said: Hello"
    assert answer.token_usage.output_tokens > 0


def test_stream(model):
    deltas = list(model.generate_stream(asked("Hello there")))
    assert "".join(delta.content or "" for delta in deltas) == "You said: Hello there"
    assert deltas[-1].token_usage.output_tokens > 0


def test_tools(model):
    (call,) = model.generate(asked("weather?"), tools_to_call_from=[get_weather]).tool_calls
    arguments = call.function.arguments
    assert call.function.name == "get_weather"
    assert "Paris" in str(arguments)
