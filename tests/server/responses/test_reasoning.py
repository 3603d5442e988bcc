"""Reasoning on its way to the client and back: encrypted, summarised, and bound to what it led to."""

import asyncio
import base64

import openai
import pytest

from antiphon.runtime.core.encrypted_content import rotate_keys
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.plain_http import events_in, post
from support.server.scripted_server import configured

ENCRYPTED = ["reasoning.encrypted_content"]
FIND = {"type": "function", "name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}, "strict": False}
THOUGHT = "I should look.\n\nIn the index, that is."
RAW = {
    "answers": [
        {"to": "result", "lines": [{"reasoning": "That will do. "}, {"text": "Found {input}."}]},
        {"when": "find", "lines": [{"reasoning": THOUGHT}, {"call": "find", "arguments": {}, "call_id": "call_1"}]},
        {"when": "both", "lines": [{"reasoning": THOUGHT}, {"summary": "It looks."}, {"text": "Done."}]},
        {"when": "cut", "lines": [{"reasoning": THOUGHT}, {"finish_reason": "length"}]},
        {"when": "", "lines": [{"reasoning": THOUGHT}, {"text": "Done."}]},
    ]
}


def chunk(delta, finish=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_answer(body):
    """A model that thinks, and calls `find` for a question."""
    if body["messages"][-1]["role"] == "tool":
        return [chunk({"reasoning": "That will do."}), chunk({"content": "Found."}), chunk({}, "stop")]
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    words = [chunk({"reasoning": piece}) for piece in ("I should look.", "\n\nIn the index, that is.")]
    return [*words, chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """
    A server with the models `raw` (it thinks aloud and makes no summaries), `summing` (it may make some) and `chat`; its
    home; and what the chat server behind was asked.
    """
    raw = {"engine": "scripted", **RAW, "abilities": {"summaries": False, "encrypts_reasoning": False}}
    with playing(chat_answer) as (upstream, asked):
        models = {
            "raw": raw,
            "summing": {"engine": "scripted", **RAW},
            "chat": {"engine": "chat", "base_url": upstream, "quirks": "vllm", "retries": 0},
        }
        config = configured(tmp_path_factory.mktemp("home"), models)
        with background_server(config) as url:
            yield url, config.home, asked


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as made:
        yield made


def as_codex_sends_it(item):
    """A reasoning item of a client that keeps the conversation: the encrypted form, and nothing else of it."""
    return {"type": "reasoning", "summary": [], "encrypted_content": item.encrypted_content}


def test_a_client_that_keeps_the_conversation_brings_the_reasoning_back_to_the_model(client, server):
    asked = {"model": "chat", "store": False, "include": ENCRYPTED, "tools": [FIND]}
    response = client.responses.create(input="Where?", **asked)
    thought, call = response.output
    assert (thought.type, call.type) == ("reasoning", "function_call")
    assert THOUGHT not in base64.urlsafe_b64decode(thought.encrypted_content[4:] + "===").decode(errors="replace")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "page 7"}
    sent_call = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    question = {"role": "user", "content": "Where?"}
    answer = client.responses.create(input=[question, as_codex_sends_it(thought), sent_call, result], **asked)
    assert answer.output_text == "Found."
    messages = server[2][-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning"] == THOUGHT and messages[1]["tool_calls"][0]["id"] == "call_1"


def test_a_stored_conversation_brings_it_back_as_well(client, server):
    asked = {"model": "chat", "tools": [FIND], "include": ENCRYPTED, "reasoning": {"summary": "auto"}}
    first = client.responses.create(input="Where?", **asked)
    result = {"type": "function_call_output", "call_id": "call_1", "output": "page 7"}
    client.responses.create(input=[result], previous_response_id=first.id, **asked)
    assert server[2][-1]["messages"][1]["reasoning"] == THOUGHT


def test_what_a_client_gave_back_is_read_again_in_the_stored_conversation(client, server):
    asked = {"model": "chat", "tools": [FIND], "include": ENCRYPTED}
    thought = client.responses.create(input="Where?", store=False, **asked).output[0]
    given = [{"role": "user", "content": "Where?"}, as_codex_sends_it(thought), {"role": "assistant", "content": "There."}]
    stored = client.responses.create(input=[*given, {"role": "user", "content": "Really?"}], **asked)
    result = {"type": "function_call_output", "call_id": "call_1", "output": "page 7"}
    client.responses.create(input=[result], previous_response_id=stored.id, **asked)
    assert server[2][-1]["messages"][1] == {"role": "assistant", "reasoning": THOUGHT, "content": "There."}


def test_only_who_asks_gets_encrypted_reasoning_and_only_when_the_item_is_done(server):
    _, _, body = post(server[0], {"model": "raw", "input": "Hi", "stream": True, "store": False})
    assert b"encrypted_content" not in body
    _, _, body = post(server[0], {"model": "raw", "input": "Hi", "stream": True, "store": False, "include": ENCRYPTED})
    events = events_in(body)
    assert "encrypted_content" not in next(event for event in events if event["type"] == "response.output_item.added")["item"]
    done = next(event for event in events if event["type"] == "response.output_item.done")["item"]
    assert done == events[-1]["response"]["output"][0] and done["encrypted_content"].startswith("ap1.")


@pytest.mark.parametrize(
    "change", [lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"), lambda text: text[4:], lambda text: "c2VhbA"]
)
def test_what_was_changed_or_was_never_ours_is_refused_by_name(client, change):
    thought = client.responses.create(model="raw", input="Hi", store=False, include=ENCRYPTED).output[0]
    item = as_codex_sends_it(thought) | {"encrypted_content": change(thought.encrypted_content)}
    history = [{"role": "user", "content": "Hi"}, item, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And?"}]
    for refuse in (client.responses.create, client.responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError) as refusal:
            refuse(model="raw", input=history)
        assert (refusal.value.code, refusal.value.param) == ("invalid_encrypted_content", "input[1].encrypted_content")


def test_another_tenants_content_is_refused_and_a_rotated_key_still_reads_it(tmp_path):
    raw = {"engine": "scripted", **RAW, "abilities": {"encrypts_reasoning": False}}
    keys = KeyServer(tmp_path, {"raw": raw})
    mine, other = (asyncio.run(keys.key(tenant=tenant)) for tenant in ("a", "b"))
    with keys.serving() as url:
        here, there = (openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in (mine, other))
        thought = here.responses.create(model="raw", input="Hi", store=False, include=ENCRYPTED).output[0]
        history = [as_codex_sends_it(thought), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And?"}]
        rotate_keys(keys.config.home)
        assert here.responses.create(model="raw", input=history).status == "completed"
        with pytest.raises(openai.BadRequestError) as refusal:
            there.responses.create(model="raw", input=history)
    assert refusal.value.code == "invalid_encrypted_content"


def test_content_that_is_too_long_is_refused_by_its_length(client):
    item = {"type": "reasoning", "summary": [], "encrypted_content": "ap1." + "A" * 20_971_520}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="raw", input=[item, {"role": "user", "content": "And?"}])
    assert (refusal.value.code, refusal.value.param) == ("string_above_max_length", "input[0].encrypted_content")


def test_an_engine_that_encrypts_itself_gets_its_own_back_unchanged_and_ours_as_text(tmp_path):
    def answer(_body):
        thought = {"type": "reasoning", "id": "rs_up", "summary": [], "encrypted_content": "theirs"}
        message = {"type": "message", "id": "msg_up", "role": "assistant", "status": "completed", "content": []}
        response = {"id": "resp_up", "object": "response", "status": "completed", "output": [thought, message]}
        items = [
            {"type": f"response.output_item.{what}", "output_index": index, "item": item}
            for index, item in enumerate(response["output"])
            for what in ("added", "done")
        ]
        return [
            {"type": "response.created", "response": response | {"output": []}},
            *items,
            {"type": "response.completed", "response": response},
        ]

    with playing(answer) as (upstream, asked):
        behind = {"engine": "responses", "base_url": upstream, "retries": 0}
        raw = {"engine": "scripted", **RAW, "abilities": {"encrypts_reasoning": False}}
        with background_server(configured(tmp_path, {"behind": behind, "raw": raw})) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            theirs = client.responses.create(model="behind", input="Hi", include=ENCRYPTED, store=False).output[0]
            ours = client.responses.create(model="raw", input="Hi", include=ENCRYPTED, store=False).output[0]
            assert theirs.encrypted_content == "theirs"
            done = {"role": "assistant", "content": "Done."}
            history = [as_codex_sends_it(theirs), done, as_codex_sends_it(ours), done, {"role": "user", "content": "And?"}]
            client.responses.create(model="behind", input=history, store=False)
    sent = [item for item in asked[-1]["input"] if item["type"] == "reasoning"]
    assert sent[0]["encrypted_content"] == "theirs"
    assert sent[1]["content"] == [{"type": "reasoning_text", "text": THOUGHT}] and "encrypted_content" not in sent[1]


def test_reasoning_that_led_to_nothing_is_not_given_to_the_model(client, server):
    cut = client.responses.create(model="raw", input="cut", include=ENCRYPTED, store=False)
    assert (cut.status, cut.output[0].status) == ("incomplete", "incomplete")
    history = [{"role": "user", "content": "cut"}, as_codex_sends_it(cut.output[0]), {"role": "user", "content": "Go on."}]
    client.responses.create(model="chat", input=history, tools=[FIND], store=False)
    assert [message["role"] for message in server[2][-1]["messages"]] == ["user", "user"]


SUMMARY = [
    "response.output_item.added",
    "response.reasoning_summary_part.added",
    *["response.reasoning_summary_text.delta"] * 8,
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
    "response.output_item.done",
]


@pytest.mark.parametrize("wish", [{"summary": "auto"}, {"summary": "concise"}, {"summary": "detailed"}, {"generate_summary": "auto"}])
def test_raw_reasoning_is_streamed_as_the_summary_that_a_client_asked_for(client, wish):
    with client.responses.stream(model="raw", input="Hi", reasoning=wish) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[2 : 2 + len(SUMMARY)] == SUMMARY and "response.reasoning_text.delta" not in kinds
    assert [part.text for part in response.output[0].summary] == [THOUGHT] and not response.output[0].content


def test_without_a_wish_raw_reasoning_stays_raw(client):
    thought = client.responses.create(model="raw", input="Hi").output[0]
    assert thought.summary == [] and [part.text for part in thought.content] == [THOUGHT]


def test_an_engine_with_summaries_keeps_its_own_and_lacks_none(client):
    asked = {"model": "summing", "reasoning": {"summary": "auto"}}
    own, made = (client.responses.create(input=question, **asked).output[0] for question in ("both", "Hi"))
    assert [part.text for part in own.summary] == ["It looks."] and own.content[0].text == THOUGHT
    assert [part.text for part in made.summary] == [THOUGHT] and made.content[0].text == THOUGHT
    with client.responses.stream(input="Hi", **asked) as stream:
        kinds = [event.type for event in stream]
    ending = [kind for kind in kinds if "summary" in kind or kind.endswith("content_part.done")]
    assert ending[:5] == ["response.content_part.done", *dict.fromkeys(SUMMARY[1:-1])]
