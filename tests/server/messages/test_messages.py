"""Anthropic's Messages API over a real socket, by plain HTTP. Its own SDKs are tried in `conformance`."""

import asyncio
import json
import re
import socket
from urllib.parse import urlsplit

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.protocols.message_laws import read_stream
from support.server.key_server import KeyServer
from support.server.messages_peer import ask
from support.server.model_server import playing
from support.server.plain_http import events_in
from support.server.scripted_server import SCRIPT, configured
from support.server.tokenizing_server import tokenizing

WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
THINKING = {"thinking": {"type": "adaptive"}}
ERROR_KEYS = {"type", "error", "request_id"}


def question(text="Hi there", **fields):
    return {"model": "parrot", "max_tokens": 1024, "messages": [{"role": "user", "content": text}], **fields}


def message(url, text="Hi there", **fields):
    status, _, body = ask(url, body=question(text, **fields))
    assert status == 200, body
    return body


def streamed(url, text="Hi there", **fields):
    status, headers, body = ask(url, body=question(text, stream=True, **fields))
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    return events_in(body)


def test_a_message_that_is_cut_is_counted_as_incomplete(tmp_path):
    with background_server(configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}})) as url:
        message(url)
        for ask_for in (message, streamed):
            ask_for(url, "one two three", max_tokens=2)
        metrics = ask(url, "GET", "/metrics")[2].decode()
    counts = re.findall(r'duration_seconds_count\{gen_ai_request_model="parrot",outcome="(\w+)"\} (\d+)', metrics)
    assert {outcome: int(count) for outcome, count in counts if int(count)} == {"completed": 1, "incomplete": 2}


@pytest.mark.parametrize("ask_for", [message, streamed])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_message_is_in_the_log_where_content_is_wanted_however_it_is_sent(tmp_path, capfd, ask_for, is_wanted):
    settings = {"logging.level": "info", "logging.format": "json", "logging.content": is_wanted}
    with background_server(configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url:
        ask_for(url, "weather", **TOOLS)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    answers = [json.loads(line["content"]) for line in lines if line["event"] == "answered"]
    assert [answer["content"][-1]["name"] for answer in answers] == ["get_weather"] * is_wanted


def refused(url, body, **how):
    """Status, type and message of an error in Anthropic's shape."""
    status, headers, error = ask(url, body=body, **how)
    assert set(error) == ERROR_KEYS and error["type"] == "error"
    assert error["request_id"] == headers["request-id"] == headers["x-request-id"]
    assert set(error["error"]) == {"type", "message"}
    return status, error["error"]["type"], error["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages?beta=true"])
def test_a_question_is_answered_whole(url, path):
    status, headers, body = ask(url, path=path, body=question(), anthropic_version="2023-06-01", anthropic_beta="new-1,new-2")
    assert status == 200 and headers["request-id"].startswith("req_")
    assert body["id"].startswith("msg_") and (body["type"], body["role"], body["model"]) == ("message", "assistant", "parrot")
    assert body["content"] == [{"type": "text", "text": "You said: Hi there"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"]["input_tokens"] == 2 and body["usage"]["output_tokens"] == 4


TOOLS = {"tools": [WEATHER]}
QUESTIONS = [("Hi", {}), ("think", THINKING), ("think", {}), ("weather", TOOLS), ("two tools", TOOLS), ("refuse", {}), ("too long", {})]


@pytest.mark.parametrize(("text", "fields"), QUESTIONS)
def test_a_stream_keeps_its_laws_and_says_what_the_whole_message_says(url, text, fields):
    made, _ = read_stream(streamed(url, text, **fields))
    whole = message(url, text, **fields)
    for each in (made, whole):
        del each["id"]
        for block in each["content"]:
            block.pop("signature", None)
    assert made == whole


def test_the_tokens_of_the_input_are_told_first(url):
    assert streamed(url)[0]["message"]["usage"]["input_tokens"] == 2
    assert streamed(url, model="plain")[0]["message"]["usage"]["input_tokens"] > 0


def test_a_failure_before_the_first_word_is_a_status_and_one_midway_is_an_event(url):
    assert refused(url, question("break at once", stream=True))[:2] == (529, "overloaded_error")
    _, headers, _ = ask(url, body=question("break at once"))
    assert headers["retry-after"] == "3"
    assert read_stream(streamed(url, "break midway")) == (None, {"type": "api_error", "message": "The model broke."})
    assert refused(url, question("break midway"))[:2] == (500, "api_error")


def test_a_silence_is_filled_with_pings(tmp_path):
    script = {"answers": [{"when": "", "lines": [{"text": "So."}, {"wait_ms": 400}, {"text": " Done."}]}]}
    config = configured(tmp_path, {"parrot": {"engine": "scripted", **script}}, **{"server.heartbeat_s": 0.05})
    with background_server(config) as slow_url:
        events = streamed(slow_url)
    assert {"type": "ping"} in events and read_stream(events)[0]["content"][0]["text"] == "So. Done."


def test_tokens_are_counted_or_estimated(url):
    body = {"model": "parrot", "messages": [{"role": "user", "content": "one two three"}], "system": "Be brief.", "tools": [WEATHER]}
    status, headers, count = ask(url, path="/v1/messages/count_tokens", body=body)
    assert (status, count, headers["antiphon-estimated"]) == (200, {"input_tokens": 3}, None)
    del body["tools"]
    status, headers, count = ask(url, path="/v1/messages/count_tokens?beta=true", body=body | {"model": "plain"})
    assert status == 200 and set(count) == {"input_tokens"} and count["input_tokens"] > 3 and headers["antiphon-estimated"] == "1"


def test_a_name_with_a_star_answers_for_every_claude(url):
    assert message(url, model="claude-opus-4-8")["model"] == "claude-opus-4-8"


def test_tools_of_other_servers_are_left_out_by_name(url):
    _, headers, _ = ask(url, body=question(tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    assert headers["antiphon-tools-not-offered"] == "web_search_20250305"
    forced = {"type": "tool", "name": "web_search"}
    status, kind, text = refused(url, question(tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice=forced))
    assert (status, kind) == (400, "invalid_request_error") and text.startswith("tools.0: Input tag 'web_search_20250305'")


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"{", 400, "invalid_request_error", "could not parse the JSON"),
        (b"[" * 100 + b"]" * 100, 400, "invalid_request_error", "nested"),
        (b"[" + b"0," * 100_001 + b"0]", 413, "request_too_large", "too many JSON values"),
        ({"model": "parrot", "messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request_error", "model"),
        (question(model="none"), 404, "not_found_error", "none"),
        (question(messages=[{"role": "robot", "content": "x"}]), 400, "invalid_request_error", "messages.0.role"),
        (question(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "invalid_request_error", "messages.0.content.0.text"),
        (question(tools=[{"name": "f", "input_schema": 7}]), 400, "invalid_request_error", "tools.0.input_schema"),
        (question(tools=[WEATHER], model="plain"), 400, "invalid_request_error", "tools"),
        (
            question(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "file-none"}}]}]),
            404,
            "not_found_error",
            "file-none",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_told_in_the_apis_own_shape(url, body, status, kind, words):
    told = refused(url, body)
    assert told[:2] == (status, kind) and words in told[2]
    assert "[" not in told[2].partition(":")[0]


def test_the_common_layers_speak_the_apis_shape_too(url):
    assert refused(url, None, method="GET", path="/v1/messages")[:2] == (405, "invalid_request_error")
    assert refused(url, question(), content_encoding="gzip")[:2] == (415, "invalid_request_error")
    assert refused(url, question(), content_type="text/plain")[:2] == (400, "invalid_request_error")
    assert refused(url, question(), origin="https://elsewhere.example")[:2] == (403, "permission_error")
    assert refused(url, question(), host="elsewhere.example")[0] == 421
    assert refused(url, {}, path="/v1/responses", anthropic_version="2023-06-01")[0] in (400, 404)


def test_an_input_beyond_the_window_is_told_in_the_words_that_clients_look_for(tmp_path):
    lines = [{"failure": {"status": 400, "code": "context_length_exceeded", "message": ""}}]
    texts = {
        "figures": "(This model's maximum context length is 200 tokens; your input is 210 tokens.)",
        "words": "The input is too large.",
    }
    answers = [{"when": name, "lines": [{"failure": lines[0]["failure"] | {"message": text}}]} for name, text in texts.items()]
    with background_server(configured(tmp_path, {"parrot": {"engine": "scripted", "answers": answers}})) as small_url:
        assert refused(small_url, question("figures"))[2] == "prompt is too long: 210 tokens > 200 maximum"
        assert refused(small_url, question("words"))[2] == "prompt is too long: The input is too large."


def test_max_tokens_beyond_the_window_are_cut_and_not_refused(url):
    assert message(url, "one two", model="plain", max_tokens=64_000)["stop_reason"] == "end_turn"


def test_a_client_that_leaves_frees_its_place(url):
    address = urlsplit(url)
    body = json.dumps(question("sing", stream=True)).encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert b"message_start" in connection.recv(65536) + connection.recv(65536)
    assert message(url)["stop_reason"] == "end_turn"


# Files


def test_files_are_named_by_the_id_they_were_uploaded_under(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        uploaded = client.files.create(file=("note.txt", b"milk and honey"), purpose="user_data")
    document = {"type": "document", "source": {"type": "file", "file_id": uploaded.id}}
    answer = message(url, [document, {"type": "text", "text": "Read."}], model="plain")
    assert "milk and honey" in answer["content"][0]["text"]
    image = {"type": "image", "source": {"type": "file", "file_id": uploaded.id}}
    assert "Could not process image" in refused(url, question([image]))[2]
    assert refused(url, question([document | {"source": {"type": "file", "file_id": "x"}}]))[0] == 400


def test_a_document_by_url_is_not_fetched_from_this_machine(url):
    document = {"type": "document", "source": {"type": "url", "url": "http://127.0.0.1:1/secret.pdf"}}
    status, kind, text = refused(url, question([document], model="plain"))
    assert (status, kind) == (400, "invalid_request_error") and "Failed to download 'messages.0.content.0.source.url'" in text


# Keys and limits


def test_a_key_comes_as_anthropics_clients_send_it_and_its_limits_are_told_in_their_headers(tmp_path):
    door = KeyServer(tmp_path)
    key = asyncio.run(door.key(requests_per_minute=2, tokens_per_minute=10_000))
    with door.serving() as url:
        status, headers, _ = ask(url, body=question(), x_api_key=key)
        assert status == 200 and headers["anthropic-ratelimit-requests-limit"] == "2"
        assert headers["anthropic-ratelimit-requests-remaining"] == "1" and headers["anthropic-ratelimit-tokens-limit"] == "10000"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", headers["anthropic-ratelimit-requests-reset"])
        assert "x-ratelimit-limit-requests" not in headers
        assert ask(url, body=question(), authorization=f"Bearer {key}")[0] == 200
        assert refused(url, question(), x_api_key=key)[:2] == (429, "rate_limit_error")
        assert refused(url, question(), x_api_key="wrong")[:2] == (401, "authentication_error")
        assert refused(url, question())[:2] == (401, "authentication_error")
        reader = asyncio.run(door.key(scopes=("models:read",)))
        assert refused(url, question(), x_api_key=reader)[:2] == (403, "permission_error")


# Through to a model server


def chunk(delta, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def chat_answer(body):
    """A model that thinks and calls `find`; after its result it says so, and ends at a stop sequence."""
    if body["messages"][-1]["role"] == "tool":
        return [chunk({"reasoning": "That will do."}), chunk({"content": "Found."}), chunk({}, "stop", stop_reason="END")]
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"page": 7}'}}
    return [chunk({"reasoning": "I should look."}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_max_tokens_are_cut_to_a_window_that_only_the_server_behind_knows(tmp_path, kind):
    with tokenizing(kind, window=400) as (upstream, asked):
        models = {"chat": {"engine": "chat", "base_url": upstream, "quirks": kind, "retries": 0}}
        with background_server(configured(tmp_path, models)) as url:
            first = message(url, "one two three", model="chat", max_tokens=64_000)
            assert ask(url, "GET", "/v1/models/chat")[2]["context_length"] == 400
            assert streamed(url, "one two three", model="chat", max_tokens=20)[0]["message"]["usage"]["input_tokens"] > 0
    sent = [body.get("max_tokens") or body["max_completion_tokens"] for path, body in asked if path.endswith("/chat/completions")]
    assert sent[0] == 400 - first["usage"]["input_tokens"] and sent[1] == 20


FIND = {"name": "find", "description": "Finds.", "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}}}


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_tool_loop_brings_its_reasoning_back_to_the_model(tmp_path, display):
    with playing(chat_answer) as (upstream, asked):
        models = {"chat": {"engine": "chat", "base_url": upstream, "quirks": "vllm", "retries": 0}}
        with background_server(configured(tmp_path, models)) as url:
            fields = {"model": "chat", "tools": [FIND], "thinking": {"type": "adaptive", "display": display}, "stop_sequences": ["END"]}
            first = message(url, "Where?", **fields)
            assert [block["type"] for block in first["content"]] == ["thinking", "tool_use"]
            assert first["content"][0]["thinking"] == ("I should look." if display == "summarized" else "")
            result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "page 7", "is_error": False}
            messages = [
                {"role": "user", "content": "Where?"},
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [result]},
            ]
            second = message(url, **fields | {"messages": messages})
    assert second["content"][-1] == {"type": "text", "text": "Found."}
    assert (second["stop_reason"], second["stop_sequence"]) == ("stop_sequence", "END")
    sent = [body["messages"] for body in asked if "messages" in body and len(body["messages"]) == 3][-1]
    assert sent[1]["reasoning"] == "I should look." and sent[2]["content"] == "page 7"
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"page": 7}
