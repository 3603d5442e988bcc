"""The Conversations API, with the official client, whose types every answer must match, and with plain HTTP."""

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList
from openai.types.responses import Response

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.plain_http import events_in, post
from support.server.scripted_server import SCRIPT, configured
from support.wire.adapters import adapter

TYPES = {
    "conversation": Conversation,
    "conversation.deleted": ConversationDeletedResource,
    "list": ConversationItemList,
    "response": Response,
}
LOCKED = {
    "message": "Another process is currently operating on this conversation. Please retry in a few seconds.",
    "type": "invalid_request_error",
    "param": "conversation",
    "code": "conversation_locked",
}
USER = {"role": "user", "content": "Hi"}


def ask(url, method, path, body=None, key="none"):
    """The status and the JSON of a request; what succeeds must be what the official client expects."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1{path}", content, headers, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            fields = json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]
    kind = TYPES.get(fields.get("object"))
    adapter(kind or ConversationItem).validate_python(fields, strict=kind is not Response)
    return 200, fields


def created(url, *items, **fields):
    status, conversation = ask(url, "POST", "/conversations", {"items": [*items], **fields})
    assert status == 200, conversation
    return conversation["id"]


def texts(url, id):
    """The words of a conversation's messages, oldest first."""
    status, page = ask(url, "GET", f"/conversations/{id}/items?order=asc&limit=100")
    assert status == 200, page
    return ["".join(part["text"] for part in item["content"]) if item["type"] == "message" else item["type"] for item in page["data"]]


def respond(url, id, input="Hello", **fields):
    return ask(url, "POST", "/responses", {"model": "parrot", "input": input, "conversation": id, **fields})


def refusal(url, method, path, body=None):
    status, error = ask(url, method, path, body)
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    return status, error["code"], error["param"]


# Conversations and their items


def test_the_official_client_creates_reads_changes_and_deletes_a_conversation(client):
    conversation = client.conversations.create(metadata={"topic": "birds"}, items=[USER])
    assert conversation.id.startswith("conv_") and conversation.metadata == {"topic": "birds"}
    assert client.conversations.retrieve(conversation.id) == conversation
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.update(conversation.id, metadata=None).metadata == {}
    deleted = client.conversations.delete(conversation.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (conversation.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


@pytest.mark.parametrize("body", [{}, {"items": None, "metadata": None}, {"items": [], "metadata": {}, "later": 1}])
def test_a_conversation_may_begin_empty(base_url, body):
    status, conversation = ask(base_url, "POST", "/conversations", body)
    assert (status, conversation["metadata"]) == (200, {})
    assert ask(base_url, "GET", f"/conversations/{conversation['id']}/items")[1] == {
        "object": "list",
        "data": [],
        "first_id": "",
        "last_id": "",
        "has_more": False,
    }


def test_items_are_added_listed_found_and_deleted(client):
    id = client.conversations.create().id
    new_items = [{"role": "user", "content": str(n)} for n in range(20)]
    added = client.conversations.items.create(id, items=new_items, include=["reasoning.encrypted_content"])
    assert [item.content[0].text for item in added.data] == [str(n) for n in range(20)]
    assert not added.has_more and (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
    client.conversations.items.create(id, items=[{"role": "user", "content": "20"}])
    newest = client.conversations.items.list(id, limit=6)
    assert [item.content[0].text for item in newest] == [str(n) for n in reversed(range(21))], "the client asks for page after page"
    first = client.conversations.items.retrieve(added.first_id, conversation_id=id, include=["message.input_image.image_url"])
    assert first == added.data[0]
    assert client.conversations.items.delete(added.first_id, conversation_id=id).id == id
    page = client.conversations.items.list(id, order="asc", limit=2, after=added.data[1].id)
    assert [item.content[0].text for item in page.data] == ["2", "3"]
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(added.first_id, conversation_id=id)


ITEMS = [
    {"type": "message", "role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
    },
    {"role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
    {"role": "assistant", "content": "Indeed."},
    {"type": "reasoning", "summary": [], "id": "rs_1"},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
    {
        "type": "local_shell_call",
        "call_id": "c3",
        "id": "ls_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    {"type": "mcp_approval_request", "id": "mcpr_1", "arguments": "{}", "name": "n", "server_label": "s"},
]


def test_every_item_comes_back_as_the_official_types_have_it_and_with_an_id(base_url):
    id = created(base_url, *ITEMS)
    _, page = ask(
        base_url, "GET", f"/conversations/{id}/items?order=asc&include[]=message.input_image.image_url&include=reasoning.encrypted_content"
    )
    assert [item["type"] for item in page["data"]] == [item.get("type", "message") for item in ITEMS]
    assert all(item["id"] for item in page["data"])
    for item in page["data"]:
        assert ask(base_url, "GET", f"/conversations/{id}/items/{item['id']}?include[]=code_interpreter_call.outputs") == (200, item)


@pytest.mark.parametrize(
    ("sent", "listed"),
    [
        (
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
            {"content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]},
        ),
        ({"type": "tool_search_call", "arguments": {}}, {"call_id": None, "execution": "server"}),
        ({"type": "tool_search_output", "tools": [], "call_id": "call_1"}, {"call_id": "call_1", "execution": "client"}),
        (
            {"type": "shell_call", "call_id": "call_1", "action": {"commands": ["ls"], "timeout_ms": 9}},
            {"action": {"commands": ["ls"], "max_output_length": None, "timeout_ms": 9}, "environment": None},
        ),
        ({"type": "shell_call_output", "call_id": "call_1", "output": [], "max_output_length": 5}, {"max_output_length": 5}),
        ({"type": "shell_call_output", "call_id": "call_1", "output": []}, {"max_output_length": None}),
    ],
)
def test_an_item_comes_back_with_all_that_the_apis_schema_requires_of_it(base_url, sent, listed):
    id = created(base_url, sent)
    _, page = ask(base_url, "GET", f"/conversations/{id}/items")
    (item,) = page["data"]
    assert item.items() >= {**listed, "status": "completed"}.items()


def test_a_reference_is_replaced_by_a_copy_of_what_it_stands_for(base_url):
    id = created(base_url, {"type": "message", "id": "msg_one", "role": "user", "content": "The word is plum."})
    other = created(base_url, {"type": "item_reference", "id": "msg_one"})
    assert texts(base_url, other) == ["The word is plum."]
    status, error = ask(base_url, "POST", "/conversations", {"items": [{"type": "item_reference", "id": "msg_none"}]})
    assert (status, error["param"]) == (404, "items")
    assert ask(base_url, "DELETE", f"/conversations/{id}")[0] == 200


UNKNOWN_TOOL = {"type": "additional_tools", "role": "developer", "tools": [{"type": "magic"}]}


def long_metadata(count):
    return {f"key_{number}": "x" for number in range(count)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"items": [USER] * 21}, (400, "array_above_max_length", "items")),
        ({"items": [{**USER, "role": "nobody"}]}, (400, "invalid_value", "items[0].role")),
        ({"items": [{"type": "message", "role": "user", "id": "a" * 65, "content": "x"}]}, (400, "string_above_max_length", "items[0].id")),
        ({"items": [{"type": "message", "role": "user", "id": "a\0", "content": "x"}]}, (400, "invalid_value", "items[0].id")),
        (
            {"items": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
            (400, "invalid_value", "items[0].content[0]"),
        ),
        ({"items": [{**USER, "id": "msg_1"}, {**USER, "id": "msg_1"}]}, (400, None, "items")),
        ({"items": [{"type": "riddle"}]}, (400, "invalid_value", "items[0].type")),
        ({"items": [USER, UNKNOWN_TOOL]}, (400, "invalid_value", "items[1].tools[0].type")),
        ({"items": "Hi"}, (400, "invalid_type", "items")),
        ({"metadata": long_metadata(17)}, (400, "object_above_max_properties", "metadata")),
        ({"metadata": {"a": "x" * 513}}, (400, "string_above_max_length", "metadata.a")),
        ({"metadata": {"a" * 65: "x"}}, (400, "property_name_above_max_length", f"metadata.{'a' * 65}")),
        ({"metadata": {"a": 1}}, (400, "invalid_type", "metadata.a")),
    ],
)
def test_what_is_beyond_the_limits_is_refused_by_name(base_url, body, expected):
    assert refusal(base_url, "POST", "/conversations", body) == expected
    id = created(base_url)
    path = f"/conversations/{id}/items" if "items" in body else f"/conversations/{id}"
    assert refusal(base_url, "POST", path, body) == expected


def test_what_is_missing_is_named(base_url):
    id = created(base_url, {**USER, "id": "msg_1", "type": "message"})
    assert refusal(base_url, "POST", f"/conversations/{id}", {}) == (400, "missing_required_parameter", "metadata")
    assert refusal(base_url, "POST", f"/conversations/{id}/items", {}) == (400, "missing_required_parameter", "items")
    assert refusal(base_url, "GET", f"/conversations/{id}/items?after=msg_9") == (400, "invalid_value", "after")
    assert refusal(base_url, "GET", f"/conversations/{id}/items?limit=101") == (400, "integer_above_max_value", "limit")
    assert refusal(base_url, "GET", f"/conversations/{id}/items?include=everything")[:2] == (400, "invalid_value")
    status, error = ask(base_url, "POST", f"/conversations/{id}/items", {"items": [{**USER, "id": "msg_1"}]})
    assert (status, error["code"], error["param"]) == (400, None, "items")
    assert error["message"] == "Duplicate item found with id msg_1. Remove duplicate items from your input and try again."


PATHS = [
    ("GET", "", None),
    ("POST", "", {"metadata": {}}),
    ("DELETE", "", None),
    ("GET", "/items", None),
    ("POST", "/items", {"items": []}),
    ("GET", "/items/msg_1", None),
    ("DELETE", "/items/msg_1", None),
]


@pytest.mark.parametrize(("method", "path", "body"), PATHS)
def test_an_id_of_the_wrong_form_names_the_prefix_and_an_unknown_one_is_not_found(base_url, method, path, body):
    status, error = ask(base_url, method, f"/conversations/resp_1{path}", body)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "conversation_id")
    assert error["message"] == "Invalid 'conversation_id': 'resp_1'. Expected an ID that begins with 'conv_'."
    status, error = ask(base_url, method, f"/conversations/conv_1%00{path}", body)
    assert status == 404 and "not found" in error["message"]


async def two_tenants(server):
    return await server.key(tenant="ada"), await server.key(tenant="eve"), await server.key(tenant="ada", scopes=("responses:read",))


def test_another_tenant_sees_nothing_and_a_key_that_only_reads_changes_nothing(tmp_path):
    server = KeyServer(tmp_path)
    ada, eve, reader = asyncio.run(two_tenants(server))
    with server.serving() as url:
        _, conversation = ask(url, "POST", "/conversations", {"items": [{**USER, "id": "msg_1"}]}, ada)
        for method, path, body in PATHS:
            status, error = ask(url, method, f"/conversations/{conversation['id']}{path}", body, eve)
            assert (status, error["message"]) == (404, f"Conversation with id '{conversation['id']}' not found.")
            status, _ = ask(url, method, f"/conversations/{conversation['id']}{path}", body, reader)
            assert status == (200 if method == "GET" else 403)
        body = {"model": "parrot", "input": "Hi", "conversation": conversation["id"]}
        assert ask(url, "POST", "/responses", body, eve)[0] == 404
        assert ask(url, "POST", "/responses/input_tokens", body, eve)[0] == 404
        reference = {"model": "parrot", "input": [{"type": "item_reference", "id": "msg_1"}]}
        assert ask(url, "POST", "/responses", reference, eve)[0] == 404
        assert ask(url, "POST", "/responses", reference, ada)[0] == 200


# Responses in a conversation


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_response_reads_the_conversation_and_adds_what_was_said(base_url, store, stream):
    id = created(base_url, {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"})
    body = {"model": "parrot", "input": "Three", "conversation": {"id": id}, "store": store, "stream": stream}
    status, _, content = post(base_url, body)
    assert status == 200, content
    if stream:
        shown = [event["response"]["conversation"] for event in events_in(content) if "response" in event]
        response = events_in(content)[-1]["response"]
    else:
        response = json.loads(content)
        shown = [response["conversation"]]
    assert shown == [{"id": id}] * len(shown) and shown
    assert texts(base_url, id) == ["One", "Two", "Three", "You said: Three"]
    page = ask(base_url, "GET", f"/conversations/{id}/items")[1]
    assert page["data"][0] == response["output"][0]
    assert ask(base_url, "GET", f"/responses/{response['id']}")[0] == (200 if store else 404)
    alone = ask(base_url, "POST", "/responses", {"model": "parrot", "input": "Three"})[1]["usage"]["input_tokens"]
    assert response["usage"]["input_tokens"] > alone


def test_the_next_turn_may_follow_at_once_on_the_end_of_the_last(client):
    id = client.conversations.create().id
    for turn in range(20):
        with client.responses.create(model="parrot", input=str(turn), conversation=id, stream=True) as stream:
            for event in stream:
                if event.type == "response.completed":
                    break
    questions = [item.content[0].text for item in client.conversations.items.list(id, order="asc") if item.role == "user"]
    assert questions == [str(number) for number in range(20)]


def test_a_tool_is_called_in_one_turn_and_answered_in_the_next(base_url):
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
    id = created(base_url)
    status, first = respond(base_url, id, "weather?", tools=[tool])
    assert status == 200 and first["output"][0]["type"] == "function_call"
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sun"}
    status, second = respond(base_url, id, [output], tools=[tool])
    assert second["output"][0]["content"][0]["text"] == "The tool says sun"
    assert texts(base_url, id) == ["weather?", "function_call", "function_call_output", "The tool says sun"]
    status, error = respond(base_url, id, [first["output"][0], output], tools=[tool])
    assert (status, error["param"]) == (400, "input")
    assert error["message"].startswith(f"Duplicate item found with id {first['output'][0]['id']}.")


@pytest.mark.parametrize("name", [{"id": "lsh_1"}, {"id": "call_s"}, {"id": "lsh_1", "call_id": "call_s"}])
def test_the_output_of_a_local_shell_may_have_the_id_of_its_call(base_url, name):
    action = {"type": "exec", "command": ["ls"], "env": {}}
    call = {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_s", "status": "completed", "action": action}
    output = {"type": "local_shell_call_output", "output": "a.txt", "status": "completed", **name}
    id = created(base_url, call)
    status, response = respond(base_url, id, [output])
    assert status == 200, response
    listed = ask(base_url, "GET", f"/conversations/{id}/items?order=asc")[1]["data"]
    assert listed[1]["call_id"] == name.get("call_id", name["id"]) and listed[1]["id"] not in ("lsh_1", "call_s")
    assert respond(base_url, id, "Go on.")[0] == 200
    assert respond(base_url, created(base_url, call, output), "Go on.")[0] == 200
    id = created(base_url, call)
    status, added = ask(base_url, "POST", f"/conversations/{id}/items", {"items": [output]})
    assert status == 200 and added["data"][0]["id"] not in ("lsh_1", "call_s"), added
    assert respond(base_url, id, "Go on.")[0] == 200


def test_a_response_without_input_answers_the_conversation(base_url):
    id = created(base_url, {"role": "user", "content": "Hello"})
    status, response = ask(base_url, "POST", "/responses", {"model": "parrot", "conversation": id})
    assert (status, response["output"][0]["content"][0]["text"]) == (200, "You said: Hello")
    assert texts(base_url, id) == ["Hello", "You said: Hello"]


def test_an_incomplete_response_is_added_and_a_failed_one_is_not(base_url):
    id = created(base_url)
    assert respond(base_url, id, "too long")[1]["status"] == "incomplete"
    assert texts(base_url, id) == ["too long", "Once upon a"]
    for question in ("break at once", "break midway"):
        for stream in (True, False):
            post(base_url, {"model": "parrot", "input": question, "conversation": id, "stream": stream})
            assert texts(base_url, id) == ["too long", "Once upon a"]
    assert respond(base_url, id, "Hello")[0] == 200, "no failure leaves a lock"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"previous_response_id": "resp_1"}, (400, "mutually_exclusive_parameters", "previous_response_id")),
        ({"conversation": "resp_1"}, (400, "invalid_value", "conversation")),
        ({"conversation": ""}, (400, "invalid_value", "conversation")),
        ({"conversation": {"id": "x"}}, (400, "invalid_value", "conversation")),
        ({"conversation": {}}, (400, "missing_required_parameter", "conversation.id")),
        ({"conversation": 1}, (400, "invalid_type", "conversation")),
        ({"conversation": "conv_none"}, (404, None, None)),
        ({"conversation": "conv_\0"}, (404, None, None)),
        ({"input": [{"type": "message", "role": "user", "id": "m" * 65, "content": "x"}]}, (400, "string_above_max_length", "input[0].id")),
        ({"model": "nobody"}, (404, "model_not_found", "model")),
        ({"temperature": 3}, (400, "decimal_above_max_value", "temperature")),
        ({"prompt": {"id": "p"}}, (400, "invalid_value", "prompt.id")),
        ({"prompt": {"id": "pmpt_none"}}, (404, None, None)),
    ],
)
def test_a_refused_response_leaves_the_conversation_free(base_url, fields, expected):
    id = created(base_url)
    for path in ("/responses", "/responses/input_tokens"):
        if path == "/responses" or fields.keys() <= {"conversation", "previous_response_id"}:
            assert refusal(base_url, "POST", path, {"model": "parrot", "input": "Hi", "conversation": id, **fields}) == expected
    assert respond(base_url, id)[0] == 200


def test_input_tokens_count_the_conversation_and_take_no_lock(base_url):
    id = created(base_url, {"role": "user", "content": "one two three four five"})
    counts = [
        ask_raw(base_url, {"model": "parrot", "input": "six", **fields})
        for fields in ({}, {"conversation": id}, {"conversation": {"id": id}})
    ]
    assert counts[0] < counts[1] == counts[2]
    assert texts(base_url, id) == ["one two three four five"]


def ask_raw(url, body):
    status, _, content = post(url, body, "/v1/responses/input_tokens")
    assert status == 200, content
    return json.loads(content)["input_tokens"]


def test_an_upstream_that_repeats_its_ids_does_not_break_a_conversation(tmp_path):
    message = {
        "type": "message",
        "id": "msg_0",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "So."}],
    }

    def answered(body):
        return [
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.completed", "response": {"status": "completed"}},
        ]

    with playing(answered) as (upstream, _):
        model = {"engine": "responses", "base_url": upstream, "ids": "theirs"}
        with background_server(configured(tmp_path, {"parrot": model})) as url:
            id = created(url)
            for _ in range(3):
                assert respond(url, id, "Hi")[0] == 200
            assert texts(url, id) == ["Hi", "So."] * 3


# One response at a time


@contextlib.contextmanager
def singing(client, id):
    """A response that lasts, in a conversation."""
    with client.responses.create(model="slow", input="sing", conversation=id, stream=True, store=False) as stream:
        next(iter(stream))
        yield


def eventually_free(url, id):
    """Ask until a conversation is free; the response that takes it."""
    deadline = time.monotonic() + 60
    while True:
        status, body = respond(url, id, "after")
        if status == 200:
            return body
        assert body == LOCKED and time.monotonic() < deadline, body


def test_while_a_response_is_made_others_are_refused_and_metadata_can_be_changed(base_url, client):
    id = created(base_url, USER)
    item_id = ask(base_url, "GET", f"/conversations/{id}/items")[1]["first_id"]
    with singing(client, id):
        for _ in range(2):
            assert respond(base_url, id) == (400, LOCKED)
            assert ask(base_url, "POST", f"/conversations/{id}/items", {"items": [USER]}) == (400, LOCKED)
            assert ask(base_url, "DELETE", f"/conversations/{id}/items/{item_id}") == (400, LOCKED)
        assert texts(base_url, id) == ["Hi"]
        assert ask_raw(base_url, {"model": "parrot", "input": "x", "conversation": id}) > 0
        assert ask(base_url, "POST", f"/conversations/{id}", {"metadata": {"a": "b"}})[1]["metadata"] == {"a": "b"}
    eventually_free(base_url, id)
    assert texts(base_url, id) == ["Hi", "after", "You said: after"], "one whose client hung up adds nothing"


def test_a_conversation_that_is_deleted_while_a_response_is_made_stays_deleted(base_url):
    id = created(base_url)
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.create(model="slow", input="one two three four", conversation=id, stream=True) as stream:
            next(iter(stream))
            assert ask(base_url, "DELETE", f"/conversations/{id}")[0] == 200
            assert [event.type for event in stream][-1] == "response.completed"
    assert ask(base_url, "GET", f"/conversations/{id}")[0] == 404


def test_of_many_responses_at_once_each_is_either_added_whole_or_refused(base_url):
    id = created(base_url)
    results = []

    def turn(number):
        results.append(respond(base_url, id, f"turn {number}", store=number % 2 == 0))

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(status == 200 or body == LOCKED for status, body in results)
    said = texts(base_url, id)
    assert len(said) == 2 * sum(status == 200 for status, _ in results) >= 2
    assert [f"You said: {question}" for question in said[::2]] == said[1::2]


def test_a_store_that_fails_in_the_middle_leaves_no_lock(tmp_path):
    config = configured(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT}, "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT}})
    file = config.database_url.database if hasattr(config.database_url, "database") else str(config.database_url).split("///")[1]
    with background_server(config, is_persistent=True) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        id = created(url)
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as program:
            with client.responses.create(model="slow", input="one two three", conversation=id, stream=True, store=False) as stream:
                next(iter(stream))
                program.execute("BEGIN IMMEDIATE")
                with pytest.raises(openai.APIError, match="store"):
                    list(stream)
            program.execute("ROLLBACK")
        eventually_free(url, id)
        assert texts(url, id) == ["after", "You said: after"]
