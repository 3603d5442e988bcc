"""
A client of EU GPT's streaming events, which knows no more of them than its page says.

It reads server-sent events itself, buffers text by output index and content index, and ignores types and keys that it does not know.
"""

import json
import os
import urllib.error
import urllib.request
import uuid

import pytest

URL = os.environ["ANTIPHON_URL"].removesuffix("/v1") + "/eugpt/v1"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


class Client:
    """One answer, as it is put together from its events."""

    def __init__(self):
        self.expected_number = 0
        self.response = None
        self.routing = None
        self.error = None
        self.is_rewritten = False
        self.is_over = False
        self.items = {}
        self.is_done = set()
        self.buffers = {}
        self.texts = {}

    def feed(self, event):
        """Take one event; the guarantees of the page are checked as it goes."""
        assert not self.is_over, "response.completed or error is always last"
        if event["type"] != "error" or "sequence_number" in event:  # the page's example of it has no number
            assert event["sequence_number"] == self.expected_number, "no skips, no duplicates"
            self.expected_number += 1
        assert self.response is not None or event["type"] == "response.created", "response.created is always first"
        handle = getattr(self, "on_" + event["type"].removeprefix("response.").replace(".", "_"), None)
        if handle is not None:
            handle(event)

    def on_created(self, event):
        response = event["response"]
        assert str(uuid.UUID(response["id"])) == response["id"]
        assert response["object"] == "response" and response["status"] == "in_progress"
        assert isinstance(response["created_at"], int) and response["created_at"] > 10**12, "milliseconds"
        self.response = response

    def on_completed(self, event):
        assert event["response"]["id"] == self.response["id"] and event["response"]["status"] == "completed"
        self.response = {**self.response, **event["response"]}
        self.is_over = True

    def on_error(self, event):
        self.error = (event["code"], event["message"])
        self.is_over = True

    def on_routing_completed(self, event):
        self.routing = [event[key] for key in ("model_id", "category", "source", "reasoning")]

    def on_rewrite_in_progress(self, _event):
        assert not self.is_rewritten
        self.is_rewritten = True

    def on_output_item_added(self, event):
        assert event["output_index"] not in self.items
        self.items[event["output_index"]] = event["item"]

    def on_output_item_done(self, event):
        assert event["output_index"] in self.items, "added precedes done"
        self.is_done.add(event["output_index"])
        self.items[event["output_index"]] = event["item"]

    def on_content_part_added(self, event):
        assert event["output_index"] in self.items and event["part"]["type"] == "output_text"
        self.buffers[event["output_index"], event["content_index"]] = event["part"]["text"]

    def on_output_text_delta(self, event):
        assert not self.is_rewritten, "the final text is that of output_text.done"
        assert event["output_index"] not in self.is_done, "deltas precede done"
        self.buffers[event["output_index"], event["content_index"]] += event["delta"]

    def on_output_text_done(self, event):
        place = event["output_index"], event["content_index"]
        assert self.is_rewritten or self.buffers[place] == event["text"], "a sanity check"
        self.texts[place] = event["text"]

    @property
    def text(self):
        return "".join(self.texts[place] for place in sorted(self.texts))


def open_stream(path, body=None):
    """A response of the server, whose body is read line by line."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"content-type": "application/json", "authorization": "Bearer none"})
    return urllib.request.urlopen(request, timeout=60)


def events_of(stream):
    """The events of a stream: an `event:` line, a `data:` line, and an empty one; comments are skipped."""
    fields = {}
    for line in stream:
        line = line.decode().rstrip("\n")
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            assert name in ("event", "data") and name not in fields
            fields[name] = value
        elif fields:
            assert fields["event"] == "message"
            yield json.loads(fields["data"])
            fields = {}
    assert not fields


def ask(text, **fields):
    """The answer to a question."""
    with open_stream("/responses", {"model": "parrot", "input": text, "stream": True, **fields}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return played(events_of(stream))


def played(events):
    client = Client()
    for event in events:
        client.feed(event)
    assert client.is_over, "one of them is guaranteed"
    return client


def test_text_comes_in_pieces_and_whole():
    client = ask("Hello")
    assert client.text == client.response["output_text"] == "You said: Hello"
    assert client.response["model"] == "parrot" and "tool_calls" not in client.response
    assert client.is_done == set(client.items) == {0}
    assert client.routing is None, "skipped when the model is pinned"


def test_a_model_is_chosen_where_the_client_leaves_it_to_the_server():
    short, long = ask("Hello", model="auto-parrot"), ask("word " * 600, model="auto-parrot")
    assert short.routing == ["parrot", "general", "router", "No rule fits; default model"]
    assert long.routing == ["corrected", "reasoning", "router", "Input length > 500 tokens"]
    assert (short.response["model"], long.response["model"]) == ("parrot", "corrected")


def test_the_choice_is_in_an_answer_that_is_not_streamed_and_stays_with_it():
    with open_stream("/responses", {"model": "auto-parrot", "input": "Hello", "background": True}) as reply:
        response = json.load(reply)
    assert response["routing"].keys() == {"model_id", "category", "source", "reasoning"}
    while response["status"] in ("queued", "in_progress"):
        with open_stream(f"/responses/{response['id']}") as reply:
            response = json.load(reply)
    assert response["output_text"] == "You said: Hello" and response["routing"]["model_id"] == response["model"] == "parrot"


@pytest.mark.parametrize("fields", [{}, {"background": True}])
def test_the_text_that_is_done_is_the_rewritten_one(fields):
    client = ask("Hello, wrold.", model="corrected", **fields)
    assert list(client.buffers.values()) == ["You said: Hello, wrold."]
    assert client.text == client.response["output_text"] == "You said: Hello, world."
    assert client.is_rewritten and "rewrite" not in client.response


def test_a_text_that_can_not_be_rewritten_stays_as_it_is_and_the_end_says_so():
    client = ask("Hello", model="uncorrected")
    assert client.is_rewritten and client.response["rewrite"] == {"status": "failed"}
    assert client.text == client.response["output_text"] == client.buffers[0, 0] == "You said: Hello"


def test_a_tool_is_called_with_all_its_arguments_at_once():
    client = ask("What is the weather?", tools=[WEATHER])
    call = client.items[0]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "get_weather", {"city": "Paris"})
    assert client.response["tool_calls"][0]["call_id"] == call["call_id"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    assert ask([output], previous_response_id=client.response["id"]).text == "The tool says sunny"


def test_calls_in_parallel_are_told_apart_by_their_index():
    tools = [WEATHER, {"type": "function", "name": "get_time", "parameters": {}}]
    client = ask("two tools", tools=tools)
    assert [client.items[index]["name"] for index in sorted(client.items)] == ["get_weather", "get_time"]
    assert [call["name"] for call in client.response["tool_calls"]] == ["get_weather", "get_time"]


@pytest.mark.parametrize(("question", "text"), [("think", "Done."), ("refuse", "I will not.")])
def test_what_the_page_does_not_list_is_not_sent(question, text):
    client = ask(question)
    assert client.text == client.response["output_text"] == text
    assert set(client.items) == {0}


def test_a_failure_ends_the_stream():
    client = ask("break midway")
    assert client.error == ("internal_error", "The model broke.")
    assert client.is_done == set() and list(client.buffers.values()) == ["So far so good"]


def test_a_failure_before_the_stream_is_an_error_of_http():
    with pytest.raises(urllib.error.HTTPError) as failure:
        ask("break at once")
    error = json.load(failure.value)["error"]
    assert failure.value.code == 503 and error == {"code": "overloaded", "message": "The model is loading."}


def test_an_answer_that_is_not_streamed_has_the_fields_of_both_ends():
    with open_stream("/responses", {"model": "parrot", "input": "Hello"}) as reply:
        response = json.load(reply)
    assert (response["status"], response["output_text"], response["object"]) == ("completed", "You said: Hello", "response")
    with open_stream(f"/responses/{response['id']}") as reply:
        assert json.load(reply) == response


def test_a_stream_is_read_again_from_any_event():
    body = {"model": "parrot", "input": "Hello", "stream": True, "background": True}
    with open_stream("/responses", body) as stream:
        events = list(events_of(stream))
    client = played(events)
    with open_stream(f"/responses/{client.response['id']}?stream=true&starting_after=3") as stream:
        assert list(events_of(stream)) == events[4:]


def test_events_and_keys_that_come_later_are_ignored():
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {**CREATED, "region": "eu"}},
        {"type": "response.citation.added", "sequence_number": 1, "url": "https://example.org"},
        {"type": "error", "code": "internal_error", "message": "Unexpected upstream failure"},
    ]
    assert played(events).error == ("internal_error", "Unexpected upstream failure")


CREATED = {
    "id": "550e8400-e29b-41d4-a716-446655440000",
    "object": "response",
    "created_at": 1716387200000,
    "model": "gpt-oss-120b",
    "status": "in_progress",
}
