"""A server behind a server: the engine `responses` in front of another antiphon gives a client what that one would have given it."""

import json

import pytest
from openai import OpenAI

from antiphon.server.processes.run import background_server
from support.server.model_server import playing
from support.server.plain_http import events_in, post
from support.server.scripted_server import SCRIPT, configured

F = {"type": "function", "name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}, "strict": False}
TOOLS = [F, {"type": "namespace", "name": "gh", "description": "Code.", "tools": [F]}, {"type": "custom", "name": "apply"}]
CITED = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "T", "url": "http://u"}
MORE = [
    {
        "when": "everything",
        "lines": [
            {"reasoning": "Let me see. "},
            {"summary": "It was seen."},
            {"summary": "And again."},
            {"encrypted_content": "c2VhbA"},
            {"text": "Hélló — 你好 🙂, all of it. "},
            {"annotation": CITED},
            {"refusal": "But not that."},
            {"call": "find", "namespace": "gh", "arguments": {"query": "é"}, "call_id": "call_1"},
            {"call": "find", "arguments": {}, "call_id": "call_2"},
            {"call": "apply", "input": "*** free text ***", "call_id": "call_3"},
            {"usage": {"input_tokens": 11, "output_tokens": 7, "cached_tokens": 5, "cache_write_tokens": 2, "reasoning_tokens": 3}},
        ],
    },
    {"when": "cut off", "lines": [{"text": "Once upon a"}, {"finish_reason": "content_filter"}]},
]
PARROT = {"engine": "scripted", "answers": [*MORE, *SCRIPT["answers"]]}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The addresses of the server in front, whose models `ours`, `theirs` and `nested` ask the other, and of that one."""
    with background_server(
        configured(tmp_path_factory.mktemp("behind"), {"parrot": PARROT}, responses={"profile": "open-responses"})
    ) as behind:
        upstream = {"engine": "responses", "base_url": f"{behind}/v1", "model": "parrot", "retries": 0}
        upstream["abilities"] = {"grammars": True}
        models = {"ours": upstream, "theirs": upstream | {"ids": "theirs"}, "nested": upstream | {"namespaces": True}}
        with background_server(configured(tmp_path_factory.mktemp("front"), models)) as front:
            yield front, behind


def streamed(base_url, model, **fields):
    _, _, body = post(base_url, {"model": model, "stream": True, "store": False, "tools": TOOLS, **fields})
    return events_in(body)


def without_prefixes(events):
    """Events of Open Responses with the types that the original has."""
    return json.loads(json.dumps(events).replace('"openai:', '"'))


def without_ids(value):
    """A value with all that differs between two answers left out."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        changing = {"id", "item_id", "created_at", "completed_at", "model", "obfuscation"}
        return {key: without_ids(each) for key, each in value.items() if key not in changing}
    return value


@pytest.mark.parametrize("model", ["ours", "theirs", "nested"])
@pytest.mark.parametrize("question", ["everything", "think", "two tools", "patch", "refuse", "json", "too long", "cut off", "Hi"])
def test_a_client_hears_the_same_through_two_servers_as_from_one(both, model, question):
    front, behind = both
    told, direct = streamed(front, model, input=question), without_prefixes(streamed(behind, "parrot", input=question))
    assert without_ids(told[-1]["response"]["output"]) == without_ids(direct[-1]["response"]["output"])
    assert without_ids(told[-1]["response"]["usage"]) == without_ids(direct[-1]["response"]["usage"])
    assert told[-1]["response"]["status"] == direct[-1]["response"]["status"]
    # What is raw reasoning goes by another name in the profile of the server behind.
    kinds = [event["type"].replace("response.reasoning.", "response.reasoning_text.") for event in direct]
    assert [event["type"] for event in told] == kinds


@pytest.mark.parametrize("model", ["ours", "theirs"])
def test_a_stored_answer_of_calls_goes_on_with_their_results_whoever_named_its_items(both, model):
    front, _ = both
    _, _, body = post(front, {"model": model, "input": "everything", "tools": TOOLS, "stream": True})
    response = events_in(body)[-1]["response"]
    assert len({item["id"] for item in response["output"]}) == len(response["output"])
    assert [item["call_id"] for item in response["output"] if "call_id" in item] == ["call_1", "call_2", "call_3"]
    again = post(front, {"model": model, "input": "Hi", "previous_response_id": response["id"]})
    assert again[0] == 400, "its calls have no outputs yet"
    outputs = [
        {"type": kind, "call_id": call_id, "output": "done"}
        for kind, call_id in [
            ("function_call_output", "call_1"),
            ("function_call_output", "call_2"),
            ("custom_tool_call_output", "call_3"),
        ]
    ]
    status, _, body = post(front, {"model": model, "input": outputs, "previous_response_id": response["id"]})
    assert status == 200, body
    assert b"The tool says done" in body


@pytest.mark.parametrize(("question", "status"), [("break at once", 503), ("break midway", 502)])
def test_a_failure_behind_is_a_failure_in_front(both, question, status):
    front, _ = both
    got, headers, body = post(front, {"model": "ours", "input": question})
    assert got == status
    assert b'"error"' in body
    if status == 503:
        assert headers["retry-after"] == "3"


SEARCH = {"type": "web_search_call", "id": "ws_up", "status": "in_progress", "action": {"type": "search", "query": "q"}}
FOUND = SEARCH | {"status": "completed"}
MESSAGE = {
    "type": "message",
    "id": "msg_up",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Found."}],
}


def searched(body):
    """The events of a server that searches the web itself."""
    place = {"item_id": "ws_up", "output_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": SEARCH},
        {"type": "response.web_search_call.searching", **place, "sequence_number": 5},
        {"type": "response.output_item.done", "output_index": 0, "item": FOUND},
        {"type": "response.output_item.done", "output_index": 1, "item": MESSAGE},
        {"type": "response.completed", "response": {"status": "completed"}},
    ]


def test_a_tool_of_the_server_behind_is_handed_on_with_its_progress_and_its_item_goes_back(tmp_path):
    tools = [{"type": "web_search", "search_context_size": "low"}, {"type": "image_generation"}]
    with playing(searched) as (upstream, asked):
        model = {"engine": "responses", "base_url": upstream, "tools": ["web_search"]}
        with (
            background_server(configured(tmp_path, {"m": model})) as url,
            OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            with client.responses.stream(model="m", input="q", tools=tools) as stream:
                seen = [event.type for event in stream]
                final = stream.get_final_response()
            again = client.responses.with_raw_response.create(model="m", input="And?", previous_response_id=final.id, tools=tools)
    assert seen[2:5] == ["response.output_item.added", "response.web_search_call.searching", "response.output_item.done"]
    assert [item.type for item in final.output] == ["web_search_call", "message"]
    assert final.output[0].id != "ws_up"
    assert asked[0]["tools"] == [tools[0]]
    assert asked[1]["input"][1] == FOUND | {"id": final.output[0].id}
    assert again.headers["antiphon-tools-not-offered"] == "image_generation"
    assert "antiphon-items-not-told" not in again.headers


def test_a_conversation_goes_on_after_an_item_of_the_server_behind_that_lacks_something(tmp_path):
    found = {"type": "web_search_call", "id": "ws_up", "status": "completed"}  # without its `action`
    with playing(lambda _body: [event | {"item": found} if event.get("item") == FOUND else event for event in searched(_body)]) as behind:
        upstream, asked = behind
        model = {"engine": "responses", "base_url": upstream, "tools": ["web_search"]}
        with (
            background_server(configured(tmp_path, {"m": model})) as url,
            OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            conversation = client.conversations.create().id
            for fields in ({"conversation": conversation}, {"conversation": conversation}):
                first = client.responses.create(model="m", input="q", tools=[{"type": "web_search"}], **fields)
            client.responses.create(model="m", input="And?", previous_response_id=first.id)
            reference = {"type": "item_reference", "id": first.output[0].id}
            client.responses.create(model="m", input=[reference, {"role": "user", "content": "And?"}])
    assert [[item["type"] for item in body["input"] if "type" in item].count("web_search_call") for body in asked] == [0, 1, 1, 1]
