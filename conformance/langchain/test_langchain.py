"""LangChain's ChatOpenAI: on the Responses API, replaying its history or naming the previous response, and on Chat Completions."""

import os

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"fog in {city}"


class Person(BaseModel):
    """Someone."""

    name: str
    age: int


WAYS = {
    "replaying": {"use_responses_api": True},
    "previous response": {"use_responses_api": True, "use_previous_response_id": True},
    "chat completions": {"use_responses_api": False},
}


@pytest.fixture(params=WAYS)
def model(request):
    return ChatOpenAI(model="parrot", base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0, **WAYS[request.param])


def test_text(model):
    assert model.invoke("Hello").text == "You said: Hello"


def test_stream(model):
    assert "".join(chunk.text for chunk in model.stream("Hello there")) == "You said: Hello there"


def test_tool_round_trip(model):
    bound = model.bind_tools([get_weather])
    question = HumanMessage("weather?")
    called = bound.invoke([question])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    answer = bound.invoke([question, called, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])])
    assert answer.text == "The tool says fog in Paris"


def test_structured_output(model):
    assert model.with_structured_output(Person, method="json_schema").invoke("a person") == Person(name="Ada", age=36)


def test_conversation(model):
    first = model.invoke([HumanMessage("Hello")])
    assert model.invoke([HumanMessage("Hello"), first, HumanMessage("again")]).text == "You said: again"


def test_reasoning(model):
    assert model.invoke("think").text == "Done."


def test_error(model):
    with pytest.raises(openai.InternalServerError):
        model.invoke("break at once")


def test_several_tools_and_a_stream_of_calls(model):
    bound = model.bind_tools([get_weather])
    chunks = list(bound.stream("weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", {"city": "Paris"})]


def test_a_real_model():
    model = ChatOpenAI(
        model=os.environ["ANTIPHON_MODEL"], base_url=os.environ["ANTIPHON_URL"], api_key="none", use_responses_api=False, max_tokens=24
    )
    assert model.invoke("What is the capital of France?").text.strip()
    assert "".join(chunk.text for chunk in model.stream("Say hello.")).strip()


def test_vectors_of_texts():
    embeddings = OpenAIEmbeddings(
        model="all-minilm-l6-v2", base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0, check_embedding_ctx_length=False
    )
    near, far = embeddings.embed_documents(["How is the weather today?", "The train was late."])
    question = embeddings.embed_query("Is it sunny outside?")
    likeness = [sum(a * b for a, b in zip(question, other, strict=True)) for other in (near, far)]
    assert len(question) == 384 and likeness[0] > likeness[1] + 0.2


def test_tokens_in_the_place_of_texts_are_refused_with_what_to_do():
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none").embeddings.create(model="all-minilm-l6-v2", input=[[1, 2]])


def test_a_chat_that_is_passed_on():
    model = ChatOpenAI(model="parrot-behind", base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0)
    assert "".join(chunk.text for chunk in model.stream("Hello there")) == "You said: Hello there"
    (call,) = model.bind_tools([get_weather]).invoke("weather?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
