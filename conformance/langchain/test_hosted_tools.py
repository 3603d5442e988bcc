"""Tools that antiphon runs, bound to LangChain's ChatOpenAI: whole and streamed, replayed and over the previous response."""

import base64
import os

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

WAYS = {
    "replaying": {},
    "stateless": {"store": False},
    "previous response": {"use_previous_response_id": True},
    "replaying content blocks": {"output_version": "v1"},
    "stateless content blocks": {"output_version": "v1", "store": False},
}


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"fog in {city}"


# Each way whole and streamed; in a short run, in turn.
PAIRS = [
    (way, mode)
    for number, way in enumerate(WAYS)
    for mode in ("whole", "streamed")
    if not os.environ["ANTIPHON_SHORT"] or (mode == "whole") == number % 2
]


@pytest.fixture(params=PAIRS, ids=", ".join)
def pair(request):
    return request.param


@pytest.fixture
def is_streamed(pair):
    return pair[1] == "streamed"


@pytest.fixture
def model(pair):
    fields = {"use_responses_api": True, "output_version": "responses/v1", **WAYS[pair[0]]}
    return ChatOpenAI(model="parrot", base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0, **fields)


def mcp(**fields):
    return {"type": "mcp", "server_label": "almanac", "server_url": os.environ["MCP_URL"], "require_approval": "never", **fields}


def ask(bound, messages, is_streamed):
    """The answer of a model, gathered from its chunks if it is streamed."""
    if not is_streamed:
        return bound.invoke(messages)
    chunks = list(bound.stream(messages))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return AIMessage(**{name: getattr(whole, name) for name in ("content", "tool_calls", "response_metadata", "id")})


def types(answer):
    return [block["type"] for block in answer.content]


def found(answer, *kinds):
    """The first block of such a kind, which version 1 of the content blocks may have as `non_standard`."""
    blocks = (block.get("value", block) for block in answer.content)
    return next(block for block in blocks if block["type"] in kinds)


def test_an_mcp_server_and_its_history(model, is_streamed):
    bound = model.bind_tools([mcp()])
    question = HumanMessage("forecast?")
    first = ask(bound, [question], is_streamed)
    assert first.text == "The tool says rain in Oslo tomorrow"
    second = ask(bound, [question, first, HumanMessage("forecast?")], is_streamed)
    assert second.text == first.text
    assert "mcp_list_tools" in str(first.content) and "mcp_list_tools" not in str(second.content)


@pytest.mark.parametrize(("approve", "said"), [(True, "The tool says a table in Oslo is booked"), (False, "too late")])
def test_approvals(model, is_streamed, approve, said):
    bound = model.bind_tools([mcp(require_approval="always")])
    question = HumanMessage("book a table")
    first = ask(bound, [question], is_streamed)
    request = first.content[-1].get("value", first.content[-1])
    assert (request["type"], request["name"]) == ("mcp_approval_request", "book_table")
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, "reason": "It is too late."}
    second = ask(bound, [question, first, HumanMessage([answer])], is_streamed)
    assert said in second.text


def test_a_turn_with_a_function_of_the_client_too(model, is_streamed):
    bound = model.bind_tools([mcp(), get_weather])
    question = HumanMessage("forecast and a person's word")
    called = ask(bound, [question], is_streamed)
    (call,) = called.tool_calls
    output = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert "fog in Paris" in ask(bound, [question, called, output], is_streamed).text


@pytest.fixture(scope="module")
def store():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as client:
        store = client.vector_stores.create(name="Birds")
        client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("owls.md", b"Owls hunt at night."))
        yield store.id


def test_files(model, is_streamed, store):
    bound = model.bind_tools([{"type": "file_search", "vector_store_ids": [store]}])
    question = HumanMessage("search the files")
    first = ask(bound, [question], is_streamed)
    assert first.text == "Owls hunt at night , and so on."
    assert first.content[-1]["annotations"]
    assert ask(bound, [question, first, HumanMessage("Hello")], is_streamed).text == "You said: Hello"


def test_the_web(model, is_streamed):
    bound = model.bind_tools([{"type": "web_search"}])
    question = HumanMessage("search the web")
    first = ask(bound, [question], is_streamed)
    (citation,) = first.content[-1]["annotations"]
    assert citation["url"] == "https://birds.example/owls.html"
    assert first.text[citation["start_index"] : citation["end_index"]] == "([birds.example](https://birds.example/owls.html))"
    second = ask(bound, [question, first, HumanMessage("open the page")], is_streamed)
    assert second.text.startswith("It hears a mouse")


def test_code(model, is_streamed):
    if not os.environ["ANTIPHON_CODE"]:
        pytest.skip("the server can't run code here")
    bound = model.bind_tools([{"type": "code_interpreter", "container": {"type": "auto"}}])
    question = HumanMessage("make a plot")
    first = ask(bound, [question], is_streamed)
    assert first.text == "Here is [the plot](sandbox:/mnt/data/plot.txt)."
    second = ask(bound, [question, first, HumanMessage("wrong code")], is_streamed)
    assert "ZeroDivisionError" in second.text
    container_ids = [str(answer.content).split("cntr_")[1][:20] for answer in (first, second)]
    assert container_ids[0] == container_ids[1]


def test_pictures(model, is_streamed):
    bound = model.bind_tools([{"type": "image_generation"}])
    question = HumanMessage("draw a square")
    first = ask(bound, [question], is_streamed)
    second = ask(bound, [question, first, HumanMessage("change the picture")], is_streamed)
    pictures = [found(answer, "image", "image_generation_call") for answer in (first, second)]
    one, other = (base64.b64decode(picture.get("result") or picture["base64"]) for picture in pictures)
    assert one.startswith(b"\x89PNG") and other.startswith(b"\x89PNG") and one != other
