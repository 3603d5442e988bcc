"""openai-python talks to antiphon as to the original, in the order of a newcomer's first hour."""

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

PROGRAM = os.environ["ANTIPHON"]
MODEL = os.environ["ANTIPHON_MODEL"]
FEW = 16
"""Tokens of an answer where any will do: the fewest that may be asked for."""

LONG = pytest.mark.skipif(bool(os.environ.get("ANTIPHON_SHORT")), reason="a server of its own takes long")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
}


class Server:
    """The program, serving one model from a home of its own; it can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (home / "antiphon.toml").write_text(f'[[models]]\nname = "{MODEL}"\nengine = "local"\nmodel = "{MODEL}"\n')
        self.process = None

    def start(self):
        command = [PROGRAM, "serve", "--port", str(self.port)]
        environ = os.environ | {"ANTIPHON_HOME": str(self.home / "data")}
        self.process = subprocess.Popen(command, cwd=self.home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while f":{self.port}" not in (line := self.process.stdout.readline()):
            assert line, "the server did not start"

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server"))
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def client():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def own_client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client, question, **more):
    return client.responses.create(**{"model": MODEL, "input": question, "max_output_tokens": FEW, **more})


def test_create(client):
    response = ask(client, "What is the capital of France?")
    assert isinstance(response, Response)
    assert response.output_text.strip()
    assert response.usage.input_tokens > 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_stream(client):
    # The helper wants an answer that ends: at another temperature a small model now and then goes on for thousands of tokens.
    with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=2000, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 1
    assert final.output_text == "".join(deltas)


def test_raw_stream_is_numbered_and_framed(client):
    events = list(ask(client, "Say hello.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_parse(client):
    class Person(BaseModel):
        name: str
        age: int

    parsed = client.responses.parse(
        model=MODEL, input="Extract: Ada is 36 years old.", text_format=Person, max_output_tokens=400, temperature=0
    )
    assert isinstance(parsed.output_parsed, Person)


def test_tool_round_trip(client):
    first = ask(client, "How is the weather in Paris?", tools=[WEATHER], tool_choice="required", max_output_tokens=200, temperature=0)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert isinstance(json.loads(call.arguments)["city"], str)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "sunny", "temperature": 21}'}
    second = ask(client, [result], previous_response_id=first.id, tools=[WEATHER], tool_choice="none")
    assert second.output_text.strip()


def test_named_tool(client):
    response = ask(
        client, "Hello", tools=[WEATHER], tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=200, temperature=0
    )
    assert [item.name for item in response.output if item.type == "function_call"] == ["get_weather"]


@LONG
def test_conversation_survives_the_death_of_the_server(own_client, server):
    first = ask(own_client, "My name is Ada.")
    server.kill()
    server.start()
    assert own_client.responses.retrieve(first.id).output_text == first.output_text
    second = ask(own_client, "What is my name?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    listed = own_client.responses.input_items.list(second.id)
    assert [item.content[0].text for item in listed] == ["What is my name?"]


def test_delete(client):
    response = ask(client, "Hello")
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_counting(client):
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello")
    assert counted.input_tokens == ask(client, "Hello").usage.input_tokens


def test_limit(client):
    response = ask(client, "Write a long story.", max_output_tokens=16)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_logprobs(client):
    response = ask(client, "Hi", include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=16)
    logprobs = response.output[0].content[0].logprobs
    assert logprobs
    assert all(len(each.top_logprobs) == 2 for each in logprobs)


@pytest.mark.parametrize(
    ("fields", "error", "code", "param"),
    [
        ({"model": "gpt-none"}, openai.NotFoundError, "model_not_found", "model"),
        ({"previous_response_id": "resp_none"}, openai.BadRequestError, "previous_response_not_found", "previous_response_id"),
        ({"max_output_tokens": 1}, openai.BadRequestError, "integer_below_min_value", "max_output_tokens"),
        ({"question": "x " * 20000}, openai.BadRequestError, "context_length_exceeded", "input"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            openai.BadRequestError,
            "invalid_value",
            "tool_choice.type",
        ),
    ],
)
def test_errors(client, fields, error, code, param):
    with pytest.raises(error) as refusal:
        ask(client, **{"question": "Hi", **fields})
    assert (refusal.value.code, refusal.value.param) == (code, param)


@LONG
def test_a_tool_that_the_server_does_not_have_is_named(own_client):
    fields = {"input": "Hi", "tools": [{"type": "web_search"}], "max_output_tokens": 16}
    answer = own_client.responses.with_raw_response.create(model=MODEL, **fields)
    assert answer.headers["antiphon-tools-not-offered"] == "web_search"
    assert [tool.type for tool in answer.parse().tools] == ["web_search"]


def test_leaving_a_stream_frees_the_model(client):
    with contextlib.closing(ask(client, "Write a very long story.", stream=True, max_output_tokens=2000)) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    assert ask(client, "Hi").output_text is not None
