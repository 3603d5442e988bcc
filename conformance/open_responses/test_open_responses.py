"""
What the Open Responses specification (openresponses.org) asks of a server, and its published types over every body and event.

It is asked in two profiles. Under `/v1`, which is `openai`, what the specification names otherwise comes by OpenAI's names, and what it
does not know comes too. Under `/openresponses/v1` everything is as it wants.
"""

import contextlib
import json
import os
import uuid

import httpx
import openresponses_types as types
import pytest
from pydantic import TypeAdapter
from websockets.sync.client import connect

URL = os.environ["ANTIPHON_URL"]
LAST = ("response.completed", "response.incomplete", "response.failed")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HEART = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
EVENTS = {
    f"response.{name}": getattr(types, f"Response{cls}StreamingEvent")
    for name, cls in {
        "created": "Created",
        "queued": "Queued",
        "in_progress": "InProgress",
        "completed": "Completed",
        "failed": "Failed",
        "incomplete": "Incomplete",
        "output_item.added": "OutputItemAdded",
        "output_item.done": "OutputItemDone",
        "content_part.added": "ContentPartAdded",
        "content_part.done": "ContentPartDone",
        "output_text.delta": "OutputTextDelta",
        "output_text.done": "OutputTextDone",
        "refusal.delta": "RefusalDelta",
        "refusal.done": "RefusalDone",
        "function_call_arguments.delta": "FunctionCallArgumentsDelta",
        "function_call_arguments.done": "FunctionCallArgumentsDone",
        "reasoning_summary_part.added": "ReasoningSummaryPartAdded",
        "reasoning_summary_part.done": "ReasoningSummaryPartDone",
        "reasoning_summary_text.delta": "ReasoningSummaryDelta",
        "reasoning_summary_text.done": "ReasoningSummaryDone",
    }.items()
}
# OpenAI's names of what the specification calls `response.reasoning.*`.
RENAMED = {
    "response.reasoning_text.delta": ("response.reasoning.delta", types.ResponseReasoningDeltaStreamingEvent),
    "response.reasoning_text.done": ("response.reasoning.done", types.ResponseReasoningDoneStreamingEvent),
}


def check(event, *, is_strict=False):
    """Hold an event against the published type of its name; strictly, it has no other name and no other keys for an error."""
    if is_strict:
        assert event["type"] not in RENAMED
        assert event["type"] != "error" or event.keys() == {"type", "sequence_number", "error"}
    if event["type"] in RENAMED:
        name, kind = RENAMED[event["type"]]
        event = {**event, "type": name}
    elif event["type"] == "error":
        kind = types.WebSocketErrorEvent if "status" in event else types.ErrorStreamingEvent
    else:
        kind = (EVENTS | dict(RENAMED.values()))[event["type"]]
    TypeAdapter(kind).validate_python(event)


@pytest.fixture(scope="module", params=["/v1", "/openresponses/v1"])
def url(request):
    return URL.removesuffix("/v1") + request.param


@pytest.fixture
def is_strict(url):
    """Whether the server is to name everything as the specification does."""
    return "openresponses" in url


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url, headers={"authorization": "Bearer none"}, timeout=60) as client:
        yield client


@pytest.fixture
def create(http, url):
    def ask(input, **fields):
        answer = http.post(f"{url}/responses", json={"model": "parrot", "input": input, **fields})
        assert answer.status_code == 200, answer.text
        types.ResponseResource.model_validate(answer.json())
        return answer.json()

    return ask


@pytest.fixture
def stream(http, url, is_strict):
    def ask(input, **fields):
        events = []
        with http.stream("POST", f"{url}/responses", json={"model": "parrot", "input": input, "stream": True, **fields}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
        if is_strict:
            assert lines.pop() == "data: [DONE]"
        for name, line in zip(lines[::2], lines[1::2], strict=True):
            events.append(json.loads(line.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
            check(events[-1], is_strict=is_strict)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    return ask


class Connection:
    """A WebSocket, whose every event is checked."""

    def __init__(self, socket):
        self.socket = socket

    def turn(self, input, **fields):
        """The last event of a `response.create` that stores nothing."""
        body = {"type": "response.create", "model": "parrot", "store": False, "input": input, **fields}
        self.socket.send(json.dumps(body))
        while True:
            event = json.loads(self.socket.recv(timeout=30))
            # The specification wants a code of every error; OpenAI has none for a request that is wrong in itself.
            if event["type"] != "error" or event["error"]["code"] is not None:
                check(event)
            if event["type"] in (*LAST, "error"):
                return event


@pytest.fixture
def open_connection(url):
    address = f"{url.replace('http', 'ws', 1)}/responses"
    with contextlib.ExitStack() as stack:
        yield lambda: Connection(stack.enter_context(connect(address, additional_headers={"authorization": "Bearer none"})))


def said(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def user(text):
    return {"type": "message", "role": "user", "content": text}


@pytest.mark.parametrize(
    "input",
    [
        "Hello",
        [user("Hello")],
        [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Hello")],
        [user("My name is Ada."), {"type": "message", "role": "assistant", "content": "Hello Ada."}, user("Hello")],
        [
            {"type": "message", "role": "assistant", "phase": "commentary", "content": "I think."},
            {"type": "message", "role": "assistant", "phase": "final_answer", "content": "Four."},
            user("Hello"),
        ],
    ],
)
def test_text(create, input):
    response = create(input)
    assert (response["status"], said(response)) == ("completed", "You said: Hello")


def test_an_image_is_taken(create):
    content = [{"type": "input_text", "text": "Hello"}, {"type": "input_image", "image_url": HEART}]
    assert create([{"type": "message", "role": "user", "content": content}])["status"] == "completed"


def test_a_tool_is_called(create):
    response = create([user("How is the weather?")], tools=[WEATHER])
    assert [item["type"] for item in response["output"]] == ["function_call"]
    result = {"type": "function_call_output", "call_id": response["output"][0]["call_id"], "output": "sun"}
    assert said(create([user("How is the weather?"), *response["output"], result])) == "The tool says sun"


@pytest.mark.parametrize("question", ["Hello", "think", "weather", "two tools", "a person", "refuse", "break midway"])
@pytest.mark.parametrize("more", [{}, {"reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}}, {"background": True}])
def test_events(stream, question, more):
    events = stream([user(question)], tools=[WEATHER], **more)
    assert (events[0]["type"], events[-1]["type"] in LAST) == ("response.created", True)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


def test_a_websocket_continues_what_is_not_stored(open_connection):
    connection = open_connection()
    first = connection.turn("Remember ember.")["response"]
    second = connection.turn("Again", previous_response_id=first["id"])["response"]
    assert second["previous_response_id"] == first["id"] and said(second) == "You said: Again"
    lost = open_connection()
    assert lost.turn("Again", previous_response_id=second["id"])["error"]["code"] == "previous_response_not_found"
    assert lost.turn("Anew")["type"] == "response.completed"


def test_a_failed_continuation_is_forgotten(open_connection):
    connection = open_connection()
    first = connection.turn("Remember ember.")["response"]["id"]
    result = {"type": "function_call_output", "call_id": "call_missing", "output": "?"}
    assert connection.turn([result], previous_response_id=first)["type"] == "error"
    assert connection.turn("Again", previous_response_id=first)["error"]["code"] == "previous_response_not_found"


def test_an_unknown_response_is_not_continued(open_connection):
    failed = open_connection().turn("Again", previous_response_id=f"resp_{uuid.uuid4().hex}")
    assert (failed["status"], failed["error"]["code"]) == (400, "previous_response_not_found")


def test_a_failure_on_a_websocket(open_connection):
    connection = open_connection()
    assert connection.turn("break midway")["type"] == "error"
    assert json.loads(connection.socket.recv(timeout=30))["type"] == "response.failed"


def test_a_compaction_begins_the_next_conversation(http, url, create, open_connection):
    history = [user("We launch on Tuesday."), {"type": "message", "role": "assistant", "content": "Understood."}]
    answer = http.post(f"{url}/responses/compact", json={"model": "parrot", "prompt_cache_key": "k", "input": history})
    compacted = answer.json()
    assert answer.status_code == 200 and compacted["output"][-1]["type"] == "compaction"
    types.CompactResource.model_validate(compacted)
    assert said(create([*compacted["output"], user("Hello")])) == "You said: Hello"
    assert open_connection().turn([*compacted["output"], user("Hello")], tools=[])["type"] == "response.completed"
    assert http.post(f"{url}/responses/compact", json={"input": history}).status_code == 400
