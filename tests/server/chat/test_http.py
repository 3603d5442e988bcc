"""Chat Completions over a real socket, with the official client, and plain HTTP where that can't send the request."""

import json

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion as TheirCompletion, ChatCompletionChunk as TheirChunk
from pydantic import BaseModel

from antiphon.server.processes.run import background_server
from support.engines.upstreams import STREAM_HEAD, chunk as http_chunk, streamed, whole
from support.protocols.chat_dialogues import put_together
from support.server.plain_http import post
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
APPLY = {"type": "custom", "custom": {"name": "apply"}}
TOOLS = [WEATHER, TIME]
PATH = "/v1/chat/completions"


class Person(BaseModel):
    name: str
    age: int


def asked(question):
    return [{"role": "user", "content": question}]


def create(client, question, **fields):
    return client.chat.completions.create(**{"model": "parrot", "messages": asked(question), **fields})


def chunks_of(base_url, question="Hi", path=PATH, **fields):
    """The chunks of a stream, each checked to be framed as the protocol has it."""
    status, headers, body = post(base_url, {"model": "parrot", "messages": asked(question), "stream": True, **fields}, path)
    assert status == 200, body
    assert headers["content-type"].startswith("text/event-stream")
    *records, last, rest = body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    assert all(record.startswith("data: ") for record in records)
    return [json.loads(record.removeprefix("data: ")) for record in records]


# What is answered


def test_tokens_that_were_counted_are_in_the_usage_though_the_answer_failed(tmp_path):
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    end = {"type": "response.completed", "response": {"status": "cancelled", "output": [], "usage": usage}}
    play = STREAM_HEAD + http_chunk(f"event: {end['type']}\ndata: {json.dumps(end)}\n\n".encode()) + b"0\r\n\r\n"
    with playing(play) as (upstream_url, _):
        entry = {"engine": "responses", "base_url": upstream_url, "retries": 0}
        with background_server(configured(tmp_path, {"mock": entry})) as url:
            assert post(url, {"model": "mock", "messages": asked("Hi")}, PATH)[0] >= 500
            counted = httpx2.get(f"{url}/usage").json()["data"]
    (used,) = [result for bucket in counted for result in bucket["results"]]
    assert (used["errors"], used["input_tokens"], used["output_tokens"]) == (1, 7, 3)


def test_a_question_is_answered_whole(client):
    completion = create(client, "Hello there")
    TheirCompletion.model_validate(completion.model_dump(), strict=True)
    assert completion.choices[0].message.content == "You said: Hello there"
    assert (completion.choices[0].finish_reason, completion.usage.total_tokens) == ("stop", 6)
    assert completion.id.startswith("chatcmpl-")


def test_a_question_is_answered_as_a_stream(client):
    chunks = list(create(client, "Hello there", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello there"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    for chunk in chunks:
        TheirChunk.model_validate(chunk.model_dump(exclude_unset=True), strict=True)
        assert (chunk.id, chunk.created, chunk.model) == (chunks[0].id, chunks[0].created, "parrot")
        assert chunk.usage is None


def test_the_usage_is_sent_to_those_who_ask(client):
    *_, last = create(client, "Hello there", stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 2, 4)


def test_the_clients_raw_answer_has_the_headers_of_the_api(client):
    raw = client.chat.completions.with_raw_response.create(model="parrot", messages=asked("Hi"))
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.parse().choices[0].message.content == "You said: Hi"


@pytest.mark.parametrize(
    ("question", "reason"),
    [("Hi", "stop"), ("weather", "tool_calls"), ("two tools", "tool_calls"), ("refuse", "stop"), ("think", "stop")],
)
def test_the_clients_stream_helper_follows_every_kind_of_answer(client, question, reason):
    with client.chat.completions.stream(model="parrot", messages=asked(question), tools=TOOLS[:1]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == reason
    assert ("tool_calls.function.arguments.done" in kinds) == (reason == "tool_calls")
    assert ("refusal.done" in kinds) == (question == "refuse")


def test_a_streamed_and_a_whole_answer_are_the_same(base_url):
    for question in ("think", "weather", "two tools", "patch", "refuse", "Hi", "too long"):
        fields = {"tools": [*TOOLS, APPLY]}
        (choice,) = put_together(chunks_of(base_url, question, **fields)).values()
        _, _, body = post(base_url, {"model": "parrot", "messages": asked(question), **fields}, PATH)
        whole_choice = json.loads(body)["choices"][0]
        message = whole_choice["message"]
        assert choice["finish_reason"] == whole_choice["finish_reason"]
        assert choice.get("content") == (message["content"] or (None if choice["calls"] else ""))
        assert choice.get("reasoning_content") == message.get("reasoning_content")
        assert [call["id"] for call in choice["calls"]] == [call["id"] for call in message.get("tool_calls", ())]


def test_a_structured_answer_is_parsed_by_the_client(client):
    completion = client.chat.completions.parse(model="parrot", messages=asked("json please"), response_format=Person)
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)
    with client.chat.completions.stream(model="parrot", messages=asked("json please"), response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)


def test_tools_are_called_and_their_results_answered(client):
    first = create(client, "two tools", tools=TOOLS)
    message = first.choices[0].message
    assert [(call.id, call.function.name) for call in message.tool_calls] == [("call_a", "get_weather"), ("call_b", "get_time")]
    results = [{"role": "tool", "tool_call_id": call.id, "content": f"result {call.id}"} for call in message.tool_calls]
    second = create(client, "", messages=[*asked("two tools"), message, *results], tools=TOOLS)
    assert second.choices[0].message.content == "The tool says result call_b"


def test_a_custom_tool_is_called_with_text(client):
    call = create(client, "patch", tools=[APPLY]).choices[0].message.tool_calls[0]
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply", "*** free text ***")


def test_functions_are_called_in_their_own_form(client):
    choice = create(client, "weather", functions=[WEATHER["function"]], function_call="auto").choices[0]
    assert (choice.finish_reason, choice.message.function_call.name) == ("function_call", "get_weather")
    answer = {"role": "function", "name": "get_weather", "content": "rain"}
    second = create(client, "", messages=[*asked("weather"), choice.message, answer], functions=[WEATHER["function"]])
    assert second.choices[0].message.content == "The tool says rain"


def test_several_choices_are_made_side_by_side(client):
    completion = create(client, "Hello", n=3)
    assert [(each.index, each.message.content) for each in completion.choices] == [(index, "You said: Hello") for index in range(3)]
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (1, 9)
    texts = {}
    for chunk in create(client, "Hello", n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: "You said: Hello", 1: "You said: Hello"}


def test_reasoning_is_beside_the_answer(client):
    message = create(client, "think").choices[0].message
    assert (message.content, message.reasoning_content) == ("Done.", "Let me see.\n\nIt was seen.")


def test_a_limit_cuts_the_answer(client):
    assert create(client, "one two three", max_completion_tokens=2).choices[0].finish_reason == "length"
    assert create(client, "one two three", max_tokens=2).choices[0].finish_reason == "length"


def test_without_a_model_the_first_answers_and_without_v1_too(base_url):
    status, _, body = post(base_url, {"messages": asked("Hi")}, "/chat/completions")
    assert (status, json.loads(body)["model"]) == (200, "parrot")
    assert put_together(chunks_of(base_url, path="/chat/completions"))[0]["content"] == "You said: Hi"


def test_sizes_are_hidden_from_those_who_ask(base_url):
    assert not any("obfuscation" in chunk for chunk in chunks_of(base_url))
    padded = chunks_of(base_url, stream_options={"include_obfuscation": True})
    assert all(
        "obfuscation" in chunk
        for chunk in padded
        if "content" in chunk["choices"][0]["delta"] and "role" not in chunk["choices"][0]["delta"]
    )


def test_what_is_not_stored_is_said(base_url):
    assert post(base_url, {"model": "parrot", "messages": asked("Hi"), "store": True}, PATH)[1]["antiphon-not-stored"] == "1"
    assert (
        post(base_url, {"model": "parrot", "messages": asked("Hi"), "store": True, "stream": True}, PATH)[1]["antiphon-not-stored"] == "1"
    )
    assert post(base_url, {"model": "parrot", "messages": asked("Hi")}, PATH)[1]["antiphon-not-stored"] is None


def test_stored_completions_say_what_to_use_instead(client):
    for ask in (
        lambda: client.chat.completions.retrieve("chatcmpl-1"),
        lambda: client.chat.completions.list(),
        lambda: client.chat.completions.delete("chatcmpl-1"),
        lambda: client.chat.completions.update("chatcmpl-1", metadata={}),
        lambda: client.chat.completions.messages.list("chatcmpl-1"),
    ):
        with pytest.raises(openai.NotFoundError, match="/v1/responses"):
            ask()


def test_a_file_is_read_by_its_id_or_from_the_message(client):
    file = client.files.create(file=("a.txt", b"Alpha"), purpose="user_data")
    named = {"type": "file", "file": {"file_id": file.id}}
    given = {"type": "file", "file": {"filename": "b.txt", "file_data": "data:text/plain;base64,QmV0YQ=="}}
    text = create(client, "", model="plain", messages=[{"role": "user", "content": [named, given]}]).choices[0].message.content
    assert "Alpha" in text and "Beta" in text


# What is refused


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "gpt-none"}, 404, "model_not_found", "model"),
        ({"messages": []}, 400, "empty_array", "messages"),
        ({"n": 9}, 400, "integer_above_max_value", "n"),
        ({"top_logprobs": 2}, 400, None, "top_logprobs"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, 400, None, "messages[0].role"),
        ({"model": "plain", "tools": TOOLS}, 400, "unsupported_parameter", "tools[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-none"}}]}]}, 404, None, None),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]}, 400, "invalid_value", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_has_the_shape_of_the_api(base_url, fields, status, code, param, stream):
    got, _, body = post(base_url, {"model": "parrot", "messages": asked("Hi"), "stream": stream, **fields}, PATH)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (got, error["code"], error["param"]) == (status, code, param or "messages[0].content[0].file.file_id")


def test_a_failure_before_the_first_word_is_a_status_also_of_a_stream(base_url):
    for stream in (False, True):
        status, headers, body = post(base_url, {"messages": asked("break at once"), "stream": stream}, PATH)
        assert (status, headers["retry-after"], json.loads(body)["error"]["message"]) == (503, "3", "The model is loading.")


def test_a_failure_in_the_middle_is_told_and_the_client_raises_it(client, base_url):
    *chunks, last = chunks_of(base_url, "break midway")
    assert last["error"]["message"] == "The model broke."
    assert put_together(chunks)[0] == {"role": "assistant", "content": "So far", "calls": [], "finish_reason": None}
    with pytest.raises(openai.APIError, match="The model broke"):
        list(create(client, "break midway", stream=True))
    with pytest.raises(openai.InternalServerError):
        create(client, "break midway")


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_whose_window_is_too_small_is_told_in_both_words(tmp_path, stream):
    refusal = whole(
        "400 Bad Request", {"error": {"message": "Requested tokens exceed context window of 9", "code": "context_length_exceeded"}}
    )
    with playing(refusal) as (upstream, _):
        options = {"engine": "chat", "base_url": upstream, "retries": 0, "quirks": "generic"}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            status, _, body = post(base_url, {"messages": asked("Hi"), "stream": stream}, PATH)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "This model's maximum context length is" in error["message"] and "context_length_exceeded" in error["message"]


def test_what_the_api_does_not_have_reaches_the_upstream(tmp_path):
    with playing(streamed("Hi")) as (upstream, server):
        options = {"engine": "chat", "base_url": upstream, "quirks": "generic"}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            fields = {"stop": ["x"], "seed": 3, "logit_bias": {"1": 2}, "top_k": 4, "chat_template_kwargs": {"enable_thinking": False}}
            status, _, _ = post(base_url, {"messages": asked("Hi"), "stream": True, "store": True, **fields}, PATH)
    assert status == 200
    _, body = server.asked[-1]
    assert {name: body[name] for name in fields} == fields
    assert "store" not in body
