"""Conversations made shorter: what the client gets for them, and what the model reads of them afterwards."""

import asyncio
import contextlib

import openai
import pytest
from openai.types.responses import CompactedResponse

from antiphon.protocols.responses.compaction import SUMMARY_PROMPT
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.scripted_server import configured

SCRIPT = {
    "answers": [
        {"when": "Write only the summary", "lines": [{"reasoning": "Hm."}, {"text": "They count. Seven."}]},
        {"when": "", "say": "You said: {input}"},
    ]
}
FAILING = [
    {"lines": [{"text": "So far"}, {"finish_reason": "length"}]},
    {"lines": [{"reasoning": "Hm."}]},
    {"lines": [{"text": "So far"}, {"failure": {"status": 503, "message": "It broke."}}]},
]


def chat_answer(body):
    is_summary = body["messages"][-1]["content"] == SUMMARY_PROMPT
    text = "They count. Seven." if is_summary else "Eight."
    return [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 70, "completion_tokens": 4}},
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A client of a server with the model `chat`, and what the chat server behind was asked."""
    with playing(chat_answer) as (upstream, asked):
        models = {f"failing-{number}": {"engine": "scripted", "answers": [answer]} for number, answer in enumerate(FAILING)}
        models["chat"] = {"engine": "chat", "base_url": upstream, "quirks": "generic", "retries": 0, "always_stream": True}
        models["parrot"] = {"engine": "scripted", **SCRIPT}
        with background_server(configured(tmp_path_factory.mktemp("home"), models)) as url:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official:
                yield official, asked


CONVERSATION = [
    {"role": "developer", "content": "Count."},
    {"role": "user", "content": "Five."},
    {"role": "assistant", "content": "Six."},
    {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "7"},
    {"role": "user", "content": "And?"},
]


def as_input(compacted):
    return [item.to_dict(warnings=False) for item in compacted.output]


def texts(messages):
    return [message["content"] for message in messages]


def test_all_user_messages_are_followed_by_one_item_for_the_rest(server):
    client, asked = server
    compacted = client.responses.compact(model="chat", input=CONVERSATION, instructions="Be brief.")
    assert isinstance(compacted, CompactedResponse) and compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert [item.content[0].text for item in compacted.output[:2]] == ["Five.", "And?"]
    assert compacted.output[2].id.startswith("cmp_") and "Seven" not in compacted.output[2].encrypted_content
    assert (compacted.usage.input_tokens, compacted.usage.output_tokens, compacted.usage.total_tokens) == (70, 4, 74)
    messages = asked[-1]["messages"]
    assert messages[0]["content"] == "Be brief.\n\nCount." and messages[-1]["content"] == SUMMARY_PROMPT
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user", "user"]
    assert "tools" not in asked[-1]


def test_the_model_reads_the_summary_and_what_comes_after_it(server):
    client, asked = server
    compacted = client.responses.compact(model="chat", input=CONVERSATION)
    response = client.responses.create(model="chat", input=[*as_input(compacted), {"role": "user", "content": "Next?"}])
    summary, question = texts(asked[-1]["messages"])
    assert summary.endswith("They count. Seven.") and question == "Next?"
    assert len(list(client.responses.input_items.list(response.id))) == 4, "what is stored is whole"
    client.responses.create(model="chat", input="And then?", previous_response_id=response.id)
    assert texts(asked[-1]["messages"]) == [summary, "Next?", "Eight.", "And then?"]
    tokens = client.responses.input_tokens.count(model="parrot", input="x", previous_response_id=response.id).input_tokens
    assert tokens == len(summary.split()) + 3


def test_a_stored_conversation_is_compacted_by_its_id_and_again(server):
    client, asked = server
    first = client.responses.create(model="chat", input="Five.")
    compacted = client.responses.compact(model="chat", previous_response_id=first.id, input="And?")
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    again = client.responses.compact(model="chat", input=[*as_input(compacted), {"role": "user", "content": "Next?"}])
    assert [item.content[0].text for item in again.output[:-1]] == ["Five.", "And?", "Next?"]
    assert texts(asked[-1]["messages"])[0].endswith("They count. Seven."), "the earlier summary is part of the new one"
    client.responses.create(model="chat", input=as_input(again))
    assert len(asked[-1]["messages"]) == 1


def test_nothing_is_stored_of_a_compaction(server):
    client, _ = server
    compacted = client.responses.compact(model="parrot", input="Five.")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(compacted.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="parrot", input="x", previous_response_id=compacted.id)
    assert refusal.value.code == "previous_response_not_found"


@pytest.mark.parametrize(("number", "status"), [(0, 502), (1, 502), (2, 503)])
def test_a_summary_that_is_cut_off_or_empty_or_fails_is_an_error(server, number, status):
    with pytest.raises(openai.APIStatusError) as failure:
        server[0].responses.compact(model=f"failing-{number}", input="Five.")
    assert failure.value.status_code == status and failure.value.body["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "parrot"}, "missing_required_parameter", "input"),
        ({"model": "parrot", "input": []}, "missing_required_parameter", "input"),
        ({"model": "parrot", "input": "x", "previous_response_id": "resp_none"}, "previous_response_not_found", "previous_response_id"),
        ({"model": "none", "input": "x"}, "model_not_found", "model"),
        ({"input": "x"}, "missing_required_parameter", "model"),
        ({"model": "parrot", "input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "invalid_value", None),
        ({"model": "parrot", "input": [{"type": "compaction", "encrypted_content": "x"}]}, "invalid_encrypted_content", None),
    ],
)
def test_what_cannot_be_compacted_is_refused_by_name(server, fields, code, param):
    with pytest.raises(openai.APIStatusError) as refusal:
        server[0].post("/responses/compact", body=fields, cast_to=object)
    assert refusal.value.code == code and 400 <= refusal.value.status_code < 500
    assert param is None or refusal.value.param == param


def test_a_compaction_is_no_reasoning_and_no_other_tenants(tmp_path):
    keys = KeyServer(tmp_path, {"parrot": {"engine": "scripted", **SCRIPT, "abilities": {"encrypts_reasoning": False}}})
    mine, other = (asyncio.run(keys.key(tenant=tenant)) for tenant in ("a", "b"))
    with contextlib.ExitStack() as clients:
        url = clients.enter_context(keys.serving())
        here, there = (clients.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)) for key in (mine, other))
        content = here.responses.compact(model="parrot", input="Five.").output[-1].encrypted_content
        compaction = {"type": "compaction", "encrypted_content": content}
        for client, item in ((there, compaction), (here, {"type": "reasoning", "summary": [], "encrypted_content": content})):
            with pytest.raises(openai.BadRequestError) as refusal:
                client.responses.create(model="parrot", input=[item, {"role": "user", "content": "Next?"}])
            assert (refusal.value.code, refusal.value.param) == ("invalid_encrypted_content", "input[0].encrypted_content")
        assert here.responses.create(model="parrot", input=[compaction, {"role": "user", "content": "Next?"}]).output_text
