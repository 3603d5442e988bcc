"""LlamaIndex's OpenAILike, as a chat model and as its default, which is the old completions; and its embeddings."""

import os

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

URL = os.environ["ANTIPHON_URL"]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"fog in {city}"


@pytest.fixture
def model():
    return OpenAILike("parrot", api_base=URL, api_key="none", is_chat_model=True, is_function_calling_model=True, max_retries=0)


def test_text(model):
    assert model.complete("Hello").text == "You said: Hello"
    assert model.chat([ChatMessage("Hello")]).message.content == "You said: Hello"


def test_stream(model):
    parts = list(model.stream_chat([ChatMessage("Hello there")]))
    assert parts[-1].message.content == "You said: Hello there"


def test_tools(model):
    tool = FunctionTool.from_defaults(get_weather)
    answer = model.predict_and_call([tool], "weather?")
    assert str(answer) == "fog in Paris"


def test_its_default_is_told_to_chat():
    model = OpenAILike("parrot", api_base=URL, api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="/v1/chat/completions"):
        model.complete("Hello")


def test_embeddings():
    model = OpenAILikeEmbedding("all-minilm-l6-v2", api_base=URL, api_key="none", max_retries=0)
    cat, kitten, tax = model.get_text_embedding_batch(["A cat sleeps.", "A kitten is asleep.", "Taxes are due in May."])
    assert len(cat) == 384
    assert model.similarity(cat, kitten) > model.similarity(cat, tax) + 0.3
