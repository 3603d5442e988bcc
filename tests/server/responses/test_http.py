"""The Responses API over a real socket, with the official client, and plain HTTP where that can't send the request."""

import concurrent.futures
import json
import socket
import urllib.error
import urllib.request
from typing import Literal

import openai
import pytest
from openai.types.responses import Response as TheirResponse, ResponseStreamEvent
from pydantic import BaseModel

from support.wire.adapters import adapter

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}


def post(base_url, body, path="/v1/responses"):
    """Status, headers and body of a POST; `body` is bytes, or is made JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(base_url + path, payload, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def refused(base_url, **fields):
    """The status, code and param with which a request is refused."""
    status, _, body = post(base_url, {"model": "parrot", "input": "Hi", **fields})
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return status, error["code"], error["param"]


def events_of(base_url, **fields):
    """The events of a stream, each checked to be framed as the protocol has it."""
    status, headers, body = post(base_url, {"model": "parrot", "input": "Hi", "stream": True, **fields})
    assert status == 200, body
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    events = []
    for record in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = record.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


# What is answered


def test_a_question_is_answered_whole(client):
    response = client.responses.create(model="parrot", input="Hello there")
    assert response.output_text == "You said: Hello there"
    assert response.status == "completed"
    assert response.usage.total_tokens == 6
    assert response.id.startswith("resp_")


def test_a_question_is_answered_as_a_stream(client):
    kinds, text = [], ""
    for event in client.responses.create(model="parrot", input="Hello there", stream=True):
        kinds.append(event.type)
        adapter(ResponseStreamEvent).validate_python(event.model_dump())
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == "You said: Hello there"
    assert (kinds[0], kinds[1], kinds[-1]) == ("response.created", "response.in_progress", "response.completed")


def test_the_clients_stream_helper_follows_every_kind_of_item(client):
    for question in ("think", "weather", "patch", "two tools", "refuse", "Hi"):
        with client.responses.stream(model="parrot", input=question, tools=[WEATHER, TIME, {"type": "custom", "name": "apply"}]) as stream:
            list(stream)
            final = stream.get_final_response()
        assert final.status == "completed"


def test_a_streamed_and_a_whole_answer_are_the_same(base_url):
    for question in ("think", "weather", "refuse", "Hi"):
        streamed = events_of(base_url, input=question, tools=[WEATHER])[-1]["response"]
        whole = json.loads(post(base_url, {"model": "parrot", "input": question, "tools": [WEATHER]})[2])

        def bare(response):
            kept = {key: value for key, value in response.items() if key not in ("id", "created_at", "completed_at")}
            return json.loads(json.dumps(kept), object_hook=lambda each: {k: v for k, v in each.items() if k not in ("id", "call_id")})

        assert bare(streamed) == bare(whole)


def test_numbers_rise_by_one_and_padding_can_be_had_or_not(base_url):
    padded = events_of(base_url)
    assert [event["sequence_number"] for event in padded] == list(range(len(padded)))
    assert all("obfuscation" in event for event in padded if event["type"].endswith("delta"))
    plain = events_of(base_url, stream_options={"include_obfuscation": False})
    assert not any("obfuscation" in event for event in plain)


def test_a_structured_answer_is_parsed_by_the_client(client):
    class Person(BaseModel):
        name: str
        age: int

    response = client.responses.parse(model="parrot", input="json please", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)


def test_a_tool_is_called_and_its_result_answered(client):
    first = client.responses.create(model="parrot", input="How is the weather?", tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    second = client.responses.create(
        model="parrot",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[WEATHER],
    )
    assert second.output_text == "The tool says sunny"


def test_a_tool_round_trip_works_without_the_store(client):
    question = {"role": "user", "content": "How is the weather?"}
    first = client.responses.create(model="parrot", input=[question], tools=[WEATHER], store=False)
    replayed = [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": "call_w1", "output": "fog"}
    second = client.responses.create(model="parrot", input=[question, *replayed, result], tools=[WEATHER], store=False)
    assert second.output_text == "The tool says fog"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_parallel_calls_are_items_of_their_own(client):
    response = client.responses.create(model="parrot", input="two tools", tools=[WEATHER, TIME])
    assert [(item.name, item.call_id) for item in response.output] == [("get_weather", "call_a"), ("get_time", "call_b")]


def test_an_answer_cut_at_the_limit_is_incomplete(client):
    response = client.responses.create(model="parrot", input="too long")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_the_clients_limit_cuts_an_answer_whatever_the_model(client):
    response = client.responses.create(model="parrot", input=" ".join(["la"] * 17), max_output_tokens=16)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output_text, response.usage.output_tokens) == (" ".join(["You said:", *["la"] * 14]), 16)


def test_no_model_named_is_the_first_one(base_url):
    assert json.loads(post(base_url, {"input": "Hi"})[2])["model"] == "parrot"


def test_metadata_and_other_settings_are_echoed(client):
    response = client.responses.create(
        model="parrot",
        input="Hi",
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        parallel_tool_calls=False,
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
        truncation="auto",
    )
    echoed = response.model_dump()
    assert echoed["instructions"] == "Be brief."
    assert echoed["metadata"] == {"a": "b"}
    assert (echoed["temperature"], echoed["top_p"], echoed["max_output_tokens"]) == (0.5, 0.9, 100)
    assert echoed["parallel_tool_calls"] is False
    assert (echoed["prompt_cache_key"], echoed["safety_identifier"], echoed["user"]) == ("k", "s", "u")


def test_unknown_fields_of_a_request_are_forgiven(base_url):
    status, _, _ = post(base_url, {"model": "parrot", "input": "Hi", "client_metadata": {"x": [1]}})
    assert status == 200


# What is kept


def test_a_response_can_be_retrieved_listed_continued_and_deleted(client):
    first = client.responses.create(model="parrot", input="My name is Ada")
    assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
    second = client.responses.create(model="parrot", input="And you?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens == len("My name is Ada You said: My name is Ada And you?".split())
    listed = client.responses.input_items.list(second.id)
    assert [item.content[0].text for item in listed] == ["And you?"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.retrieve(first.id)
    assert gone.value.message.endswith(f"Response with id '{first.id}' not found.'}}}}") or first.id in str(gone.value)
    with pytest.raises(openai.BadRequestError) as broken:
        client.responses.create(model="parrot", input="More?", previous_response_id=second.id)
    assert broken.value.code == "previous_response_not_found"


def test_what_is_deleted_while_it_is_being_said_stays_deleted(client):
    with client.responses.create(model="slow", input="Say all of this again. " * 20, stream=True) as stream:
        deleted_id = next(stream).response.id
        client.responses.delete(deleted_id)
        with pytest.raises(openai.APIError, match="deleted"):
            list(stream)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(deleted_id)


def test_delete_answers_as_the_original(client, base_url):
    response = client.responses.create(model="parrot", input="Hi")
    request = urllib.request.Request(f"{base_url}/v1/responses/{response.id}", method="DELETE")
    with urllib.request.urlopen(request) as reply:
        assert json.loads(reply.read()) == {"id": response.id, "object": "response", "deleted": True}


def test_a_streamed_response_is_kept_too(client):
    events = list(client.responses.create(model="parrot", input="Hi", stream=True))
    assert client.responses.retrieve(events[0].response.id).status == "completed"


def test_input_items_are_paged_in_either_order(client):
    told = [{"role": "user", "content": f"line {number}"} for number in range(45)]
    response = client.responses.create(model="parrot", input=told)
    texts = [item.content[0].text for item in client.responses.input_items.list(response.id, order="asc", limit=10)]
    assert texts == [f"line {number}" for number in range(45)]
    page = client.responses.input_items.list(response.id)
    assert (len(page.data), page.has_more, page.data[0].content[0].text) == (20, True, "line 44")
    assert (page.data[0].id, page.data[-1].id) == (page.first_id, page.last_id)
    end = client.responses.input_items.list(response.id, order="asc", after=page.data[0].id)
    assert (end.data, end.first_id, end.last_id) == ([], "", "")


def test_an_item_can_be_given_by_reference(client):
    first = client.responses.create(model="parrot", input="Hello")
    again = client.responses.create(
        model="parrot", input=[{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "x"}]
    )
    assert again.usage.input_tokens == len("You said: Hello x".split())
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="parrot", input=[{"type": "item_reference", "id": "msg_none"}])


# What goes wrong


def test_a_failure_before_the_first_word_is_an_http_error_in_either_mode(client):
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as failure:
            client.responses.create(model="parrot", input="break at once", stream=stream)
        assert failure.value.status_code == 503
        assert failure.value.response.headers["retry-after"] == "3"
        assert "loading" in failure.value.message


def test_a_failure_after_the_first_word_is_an_error_and_then_a_failed_response(base_url):
    events = events_of(base_url, model="slow", input="break midway")
    error, failed = events[-2:]
    assert (error["type"], error["message"], error["error"]["message"]) == ("error", "The model broke.", "The model broke.")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The model broke."}
    stored = TheirResponse.model_validate(json.loads(urllib.request.urlopen(f"{base_url}/v1/responses/{failed['response']['id']}").read()))
    assert stored.status == "failed"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "gpt-none"}, (404, "model_not_found", "model")),
        ({"input": []}, (400, "missing_required_parameter", "input")),
        ({"input": 7}, (400, "invalid_type", "input")),
        ({"previous_response_id": "resp_none"}, (400, "previous_response_not_found", "previous_response_id")),
        ({"max_output_tokens": 15}, (400, "integer_below_min_value", "max_output_tokens")),
        ({"temperature": 3}, (400, "decimal_above_max_value", "temperature")),
        ({"background": True, "store": False}, (400, None, "background")),
        ({"tool_choice": "required"}, (400, "invalid_value", "tool_choice")),
        ({"tool_choice": {"type": "function", "name": "nope"}}, (400, "invalid_value", "tool_choice")),
        ({"tool_choice": {"type": "file_search"}}, (400, "invalid_value", "tool_choice")),
        ({"input": [{"type": "compaction", "encrypted_content": "AA"}]}, (400, "invalid_encrypted_content", "input[0].encrypted_content")),
        ({"input": [{"type": "compaction_trigger"}]}, (400, "missing_required_parameter", "input")),  # there is nothing to compact
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, (400, None, "input")),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, (400, None, "input")),
        ({"stream_options": {"include_obfuscation": False}}, (400, None, "stream_options")),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(base_url, fields, expected):
    assert refused(base_url, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "JVBERi0xLjc="}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [WEATHER]}, "tools[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ],
)
def test_an_ability_that_the_model_lacks_is_named(base_url, fields, param):
    assert refused(base_url, model="plain", **fields) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
    ],
)
def test_a_value_that_the_model_does_not_serve_is_named(base_url, fields, param):
    assert refused(base_url, model="plain", **fields) == (400, "unsupported_value", param)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"type": "zzz"}], (400, "invalid_value", "input[0].type")),
        ([{"type": ""}], (400, "invalid_value", "input[0].type")),
        (
            [{"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"]}, {"type": "zzz"}],
            (400, "unsupported_value", "input[0]"),
        ),
        ([], (400, "missing_required_parameter", "input")),
    ],
)
def test_a_request_of_which_nothing_can_be_told_names_the_item_that_can_not(base_url, items, expected):
    assert refused(base_url, input=items) == expected


def test_an_item_of_an_unknown_type_by_itself_is_told_the_known_ones(base_url):
    _, _, body = post(base_url, {"model": "parrot", "input": [{"type": "zzz"}]})
    message = json.loads(body)["error"]["message"]
    assert message.startswith("Invalid value: 'zzz'. Supported values are: 'message', ")
    assert "'function_call_output'" in message and "unknown" not in message


def test_hints_that_the_model_can_not_act_on_are_taken_and_echoed(base_url):
    hints = {"reasoning": {"effort": "high", "summary": "concise"}, "truncation": "auto", "text": {"verbosity": "low"}}
    status, _, body = post(base_url, {"model": "plain", "input": "Hi", **hints})
    answer = json.loads(body)
    assert status == 200
    assert answer["reasoning"] == hints["reasoning"] and answer["truncation"] == "auto" and answer["text"]["verbosity"] == "low"
    assert [item["type"] for item in answer["output"]] == ["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"null", b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_a_body_that_is_no_request_is_refused_in_the_same_shape(base_url, body):
    status, _, answer = post(base_url, body)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("coding", "expected"), [("gzip", 415), ("zstd", 415), ("gzip, identity", 415), ("identity", 200)])
def test_a_body_that_is_compressed_is_refused_by_name(base_url, coding, expected):
    body = b'{"model":"parrot","input":"Hi"}'
    request = urllib.request.Request(f"{base_url}/v1/responses", body, {"content-type": "application/json", "content-encoding": coding})
    try:
        status, answer = 200, urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as refusal:
        status, answer = refusal.code, refusal.read()
    assert status == expected
    assert status == 200 or json.loads(answer)["error"]["code"] == "unsupported_content_encoding"


def test_a_body_over_the_cap_is_refused(base_url):
    status, _, answer = post(base_url, b'{"input":"' + b"x" * (33 << 20) + b'"}')
    assert (status, json.loads(answer)["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/models", 405), ("/", 405)])
def test_a_wrong_address_is_told_in_the_same_shape(base_url, path, status):
    got, headers, body = post(base_url, {}, path)
    assert got == status
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=no", "after"),
        ("include[]=all", "include[0]"),
    ],
)
def test_a_wrong_page_is_refused_by_name(client, base_url, query, param):
    response = client.responses.create(model="parrot", input="Hi")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{base_url}/v1/responses/{response.id}/input_items?{query}")
    assert refusal.value.code == 400
    assert json.loads(refusal.value.read())["error"]["param"] == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("include[]=all", "include[0]"),
        ("starting_after=x", "starting_after"),
        ("starting_after=-1", "starting_after"),
        ("stream=maybe", "stream"),
        ("stream=true", "stream"),
        ("include_obfuscation=2", "include_obfuscation"),
    ],
)
def test_a_wrong_way_to_show_a_response_is_refused_by_name(client, base_url, query, param):
    response = client.responses.create(model="parrot", input="Hi")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{base_url}/v1/responses/{response.id}?{query}")
    assert refusal.value.code == 400
    assert json.loads(refusal.value.read())["error"]["param"] == param


def test_a_response_is_shown_whatever_may_be_included(client, base_url):
    response = client.responses.create(model="parrot", input="Hi")
    shown = client.responses.retrieve(response.id, include=["message.output_text.logprobs"], extra_query={"api-version": "1"})
    assert shown.model_dump() == response.model_dump()


# What surrounds it


def test_models_are_listed_and_retrieved(client):
    assert [model.id for model in client.models.list()] == ["parrot", "slow", "plain"]
    assert client.models.retrieve("slow").owned_by == "antiphon"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-none")


@pytest.mark.parametrize(("path", "more"), [("/livez", {}), ("/readyz", {"warm_up": "off"}), ("/health", {"warm_up": "off"})])
def test_health_is_told(base_url, path, more):
    assert json.loads(urllib.request.urlopen(base_url + path).read()) == {"status": "ok", **more}


def test_every_answer_has_a_request_id_and_its_time(client):
    raw = client.responses.with_raw_response.create(model="parrot", input="Hi")
    assert raw.headers["x-request-id"].startswith("req_")
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse()._request_id == raw.headers["x-request-id"]


def test_a_client_that_leaves_ends_the_answer_and_what_was_said_is_kept(base_url):
    host, port = base_url.removeprefix("http://").split(":")
    body = json.dumps({"model": "slow", "input": "sing", "stream": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        got = b""
        while got.count(b"output_text.delta") < 3:
            got += connection.recv(4096)
    response_id = got.split(b'"id":"')[1].split(b'"')[0].decode()
    assert eventually(lambda: status_of(base_url, response_id), "cancelled")


def status_of(base_url, response_id):
    return json.loads(urllib.request.urlopen(f"{base_url}/v1/responses/{response_id}").read())["status"]


def eventually(look: object, wanted: Literal["cancelled"]) -> bool:
    """Whether `look()` comes to be `wanted`; each look is a round trip, so that many of them are time enough."""
    return any(look() == wanted for _ in range(2000))


def test_a_connection_serves_one_request_after_another(base_url):
    host, port = base_url.removeprefix("http://").split(":")
    body = json.dumps({"model": "parrot", "input": "Hi", "stream": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        for _ in range(3):
            connection.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            got = b""
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += connection.recv(65536)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"response.completed" in got


def test_many_streams_at_once_each_get_their_own_words(client):
    def ask(number):
        text = "".join(
            event.delta
            for event in client.responses.create(model="slow", input=f"number {number}", stream=True)
            if event.type == "response.output_text.delta"
        )
        return text == f"You said: number {number}"

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(48)))
