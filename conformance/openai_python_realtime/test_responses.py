"""openai-python's `client.responses.connect()` talks to antiphon: the WebSocket mode of the Responses API."""

import json
import os

import openai
import pytest
from dialogue import fields_beyond
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter

TYPES = TypeAdapter(ResponsesServerEvent)
# The original sends these too; the SDK has no types for them.
UNTYPED = {".name", ".obfuscation", *(f".response.{name}" for name in ("frequency_penalty", "presence_penalty", "store"))}
LAST = ("response.completed", "response.incomplete", "response.failed")


@pytest.fixture
def connection():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as client:
        with client.responses.connect() as made:
            yield made


def events_until(connection, *kinds):
    """All events up to the first of these types, each held against the SDK's types."""
    events = []
    while not events or events[-1].type not in kinds:
        events.append(event := TYPES.validate_python(json.loads(connection.recv_bytes())))
        assert not (beyond := set(fields_beyond(event)) - UNTYPED), f"{event.type} has fields that its type has not: {beyond}"
    return events


def test_a_tool_loop_that_stores_nothing(connection):
    connection.response.create(model="parrot", input="weather", store=False, stream_id="main", generate=False)
    *_, warm = events_until(connection, *LAST)
    assert warm.type == "response.completed" and warm.response.output == []
    connection.response.create(model="parrot", previous_response_id=warm.response.id, input=[], store=False, stream_id="main")
    *events, called = events_until(connection, *LAST)
    assert {event.stream_id for event in events} == {"main"} and [event.sequence_number for event in events] == list(range(len(events)))
    (call,) = called.response.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    connection.response.create(model="parrot", previous_response_id=called.response.id, input=[result], store=False, stream_id="main")
    *_, answered = events_until(connection, *LAST)
    assert answered.response.output_text == "The tool says rain"


def test_errors_are_of_their_type_and_the_connection_goes_on(connection):
    connection.response.create(model="none", input="Hi")
    (error,) = events_until(connection, "error")
    assert (error.status, error.error.code, error.error.param) == (404, "model_not_found", "model")
    connection.response.steer(previous_response_id="resp_none", input="Hi")
    (failed,) = events_until(connection, "response.steer.failed")
    assert failed.error.code == "response_not_found" and failed.steer.input == "Hi"
    connection.response.create(model="parrot", input="Hello")
    assert events_until(connection, *LAST)[-1].response.output_text == "You said: Hello"
