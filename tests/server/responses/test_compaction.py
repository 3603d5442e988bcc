"""Conversations that are compacted while a response is made: what the client gets, and what the model reads."""

import asyncio
import contextlib
import re
import time

import openai
import pytest
from openai.types.responses import ResponseCompactionItem, ResponseStreamEvent

from antiphon.protocols.responses.compaction import SUMMARY_HEADING, SUMMARY_PROMPT
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.model_server import playing
from support.server.responses_peer import connected
from support.server.scripted_server import configured
from support.wire.adapters import adapter

PATIENCE_S = 20
THRESHOLD = 1000
PROMPT = {"id": "pmpt_rhyme", "instructions": "Answer {{how}}.", "messages": [{"role": "user", "content": "Nightingales!"}]}
COMPACT = [{"type": "compaction", "compact_threshold": THRESHOLD}]
FILLER = "word " * 40


def texts(body):
    return [str(message["content"]) for message in body["messages"]]


def is_summary(body):
    return body["messages"][-1]["content"] == SUMMARY_PROMPT


def answer(body):
    """Remembers all facts in a summary, and otherwise recites those that it can read."""
    facts = sorted(set(re.findall(r"fact-\d+", " ".join(texts(body)))))
    text = f"Facts: {' '.join(facts)}." if is_summary(body) else f"I know {len(facts)}. {FILLER}"
    finish = "length" if is_summary(body) and "fact-13 " in texts(body)[-2] else "stop"
    size = sum(len(text.encode()) for text in texts(body)) // 4
    return [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": {"prompt_tokens": size, "completion_tokens": 10}},
    ]


def chat(upstream, **fields):
    return {"engine": "chat", "base_url": upstream, "quirks": "generic", "retries": 0, "always_stream": True, **fields}


def compacting_answer(body):
    """What a server of the Responses API sends that compacts by itself."""
    compaction = {"id": "cmp_theirs", "type": "compaction", "encrypted_content": "theirs"}
    events = [
        {"type": "response.created", "response": {"id": "resp_theirs", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": compaction | {"encrypted_content": ""}},
        {"type": "response.compaction.compacting", "output_index": 0, "item_id": "cmp_theirs"},
        {"type": "response.output_item.done", "output_index": 0, "item": compaction},
        {"type": "response.completed", "response": {"id": "resp_theirs", "status": "completed", "output": [compaction]}},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A client, what the model's server was asked, and the server's address."""
    slow = [
        {"when": "Write only the summary", "lines": [{"text": "Sum "}, {"text": "up ", "repeat": 100000}]},
        {"when": "", "say": "You said: {input}"},
    ]
    with playing(answer) as (upstream, asked):
        models = {
            "chat": chat(upstream),
            "small": chat(upstream, abilities={"context_window": 1500}),
            "slow": {"engine": "scripted", "pace_ms": 10, "answers": slow},
            "away": chat("http://127.0.0.1:9/v1"),
        }
        with background_server(configured(tmp_path_factory.mktemp("home"), models, prompts=[PROMPT])) as url:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official:
                yield official, asked, url


def long_history(start=0, turns=40):
    """More than the threshold, with a fact in each question."""
    history = []
    for number in range(start, start + turns):
        history += [{"role": "user", "content": f"fact-{number} {FILLER}"}, {"role": "assistant", "content": "Noted."}]
    return [*history, {"role": "user", "content": "How many?"}]


def as_input(response):
    return [item.to_dict(warnings=False) for item in response.output]


def test_a_long_conversation_is_compacted_and_the_model_answers_from_its_summary(server):
    client, asked, _ = server
    developer = {"role": "developer", "content": "Count."}
    response = client.responses.create(
        model="chat", instructions="Be brief.", input=[developer, *long_history()], context_management=COMPACT
    )
    assert [item.type for item in response.output] == ["compaction", "message"] and response.status == "completed"
    assert isinstance(response.output[0], ResponseCompactionItem) and response.output[0].id.startswith("cmp_")
    assert response.output_text.startswith("I know 40.")
    summarized, answered = asked[-2:]
    assert is_summary(summarized) and "tools" not in summarized and len(summarized["messages"]) == 83
    system, summary, question = texts(answered)
    assert system == "Be brief.\n\nCount." and summary.startswith(SUMMARY_HEADING) and question == "How many?"
    both = [sum(len(text.encode()) for text in texts(body)) // 4 for body in (summarized, answered)]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (sum(both), 20), "both passes count"


def test_the_instructions_of_a_prompt_survive_and_belong_to_their_response_alone(server):
    client, asked, _ = server
    prompt = {"id": "pmpt_rhyme", "variables": {"how": "in rhymes"}}
    first = client.responses.create(model="chat", prompt=prompt, input=long_history(), context_management=COMPACT)
    assert first.output[0].type == "compaction"
    for body in asked[-2:]:
        assert texts(body)[:2] == ["Answer in rhymes.", "Nightingales!"]
    assert len(texts(asked[-1])) == 4 and texts(asked[-1])[-1] == "How many?"
    instructions = [{"role": "system", "content": "Be brief."}]
    client.responses.create(model="chat", instructions=instructions, input=long_history(), context_management=COMPACT)
    assert texts(asked[-1])[0] == "Be brief." and len(texts(asked[-1])) == 3
    client.responses.create(model="chat", input="Next?", previous_response_id=first.id)
    assert not any("rhymes" in text for text in texts(asked[-1]))


def test_a_file_in_the_turn_that_is_answered_is_read_in_the_next_one_too(server):
    client, asked, _ = server
    file_id = client.files.create(file=("owls.md", b"They hoot."), purpose="user_data").id
    question = {"role": "user", "content": [{"type": "input_file", "file_id": file_id}, {"type": "input_text", "text": "Why?"}]}
    first = client.responses.create(model="chat", input=[*long_history(), question], context_management=COMPACT)
    assert first.output[0].type == "compaction" and "They hoot." in texts(asked[-1])[-1]
    window = texts(asked[-1])
    client.responses.create(model="chat", input="Next?", previous_response_id=first.id)
    assert texts(asked[-1])[:2] == window
    own_conversation = [*as_input(first), {"role": "user", "content": "Next?"}]
    client.responses.create(model="chat", input=own_conversation, store=False)
    assert texts(asked[-1])[:2] == window
    client.files.delete(file_id)
    client.responses.create(model="chat", input=own_conversation, store=False)
    assert "has been deleted" in texts(asked[-1])[1], "what was kept is no mistake of this request"


def test_what_follows_begins_with_the_same_words(server):
    client, asked, _ = server
    tool = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": False}
    call = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "fact-99"}
    first = client.responses.create(
        model="chat",
        input=[{"role": "developer", "content": "Count."}, *long_history(), call, result],
        tools=[tool],
        context_management=COMPACT,
    )
    window = asked[-1]["messages"]
    assert [message["role"] for message in window] == ["system", "user", "user", "assistant", "tool"]
    client.responses.create(model="chat", input="Next?", previous_response_id=first.id, context_management=COMPACT)
    assert asked[-1]["messages"][:5] == window and texts(asked[-1])[-1] == "Next?"
    everything = [*long_history(), call, result, *as_input(first), {"role": "user", "content": "Next?"}]
    client.responses.create(model="chat", input=everything, context_management=COMPACT, store=False)
    assert asked[-1]["messages"][:5] == window, "what stands before the compaction is not read"
    client.responses.create(model="chat", input=everything[-3:])
    assert asked[-1]["messages"][:5] == window, "and need not be sent"


def test_a_short_conversation_is_not_compacted(server):
    client, asked, _ = server
    count = len(asked)
    response = client.responses.create(model="chat", input="Hi", context_management=COMPACT)
    assert [item.type for item in response.output] == ["message"]
    client.responses.create(model="chat", input="word " * 4000, context_management=COMPACT)
    assert len(asked) == count + 2, "nor a question that is long alone"


@pytest.mark.parametrize("threshold", [None, 1_000_000])
def test_without_a_threshold_that_can_be_met_the_models_window_decides(server, threshold):
    client, _, _ = server
    compact = [{"type": "compaction", "compact_threshold": threshold}]
    response = client.responses.create(model="small", input=long_history(turns=18), context_management=compact)
    assert response.output[0].type == "compaction" and response.output_text.startswith("I know 18.")
    response = client.responses.create(model="chat", input=long_history(turns=18), context_management=compact)
    assert response.output[0].type == "message", "a window that is not known decides nothing"


def test_a_stream_tells_of_the_compaction_and_its_item_comes_first(server):
    client, _, _ = server
    events = list(client.responses.create(model="chat", input=long_history(), context_management=COMPACT, stream=True))
    for event in events:
        adapter(ResponseStreamEvent).validate_python(event.to_dict(warnings=False))
    types = [event.type for event in events]
    assert types[:6] == [
        "response.created",
        "response.in_progress",
        "response.compaction.compacting",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_item.added",
    ]
    assert events[2].item_id == events[4].item.id and events[2].output_index == events[4].output_index == 0
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in events[-1].response.output] == ["compaction", "message"]
    assert client.responses.retrieve(events[0].response.id).output == events[-1].response.output


def test_a_trigger_compacts_and_nothing_else(server):
    client, asked, _ = server
    trigger = {"type": "compaction_trigger"}
    events = list(client.responses.create(model="chat", input=[*long_history(turns=2), trigger], store=False, stream=True))
    response = events[-1].response
    assert [item.type for item in response.output] == ["compaction"] and response.usage.output_tokens == 10
    assert is_summary(asked[-1])
    client.responses.create(model="chat", input=[*as_input(response), {"role": "user", "content": "Next?"}])
    summary, question = texts(asked[-1])
    assert summary == f"{SUMMARY_HEADING}\n\nFacts: fact-0 fact-1." and question == "Next?"


def test_a_trigger_in_a_chain_ends_its_window(server):
    client, asked, _ = server
    first = client.responses.create(model="chat", input="fact-1")
    second = client.responses.create(model="chat", input=[{"type": "compaction_trigger"}], previous_response_id=first.id)
    assert [item.type for item in second.output] == ["compaction"]
    client.responses.create(model="chat", input="Next?", previous_response_id=second.id)
    assert texts(asked[-1]) == [f"{SUMMARY_HEADING}\n\nFacts: fact-1.", "Next?"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": [{"type": "compaction_trigger"}, {"role": "user", "content": "x"}]}, "invalid_value", "input[0]"),
        ({"input": [{"type": "compaction_trigger"}]}, "missing_required_parameter", "input"),
        ({"input": "x", "context_management": []}, "empty_array", "context_management"),
        (
            {"input": "x", "context_management": [{"type": "compaction", "compact_threshold": 999}]},
            "integer_below_min_value",
            "context_management[0].compact_threshold",
        ),
        ({"input": "x", "context_management": [{"type": "forget"}]}, "invalid_value", "context_management[0].type"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "invalid_encrypted_content", "input[0].encrypted_content"),
    ],
)
def test_what_cannot_be_compacted_is_refused_by_name(server, fields, code, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        server[0].responses.create(model="chat", **fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)


def test_a_summary_that_is_cut_off_does_not_end_the_response(server):
    client, asked, _ = server
    history = long_history(turns=30)
    history[-1]["content"] = "fact-13 How many?"
    response = client.responses.create(model="chat", input=history, context_management=COMPACT)
    assert [item.type for item in response.output] == ["message"] and len(asked[-1]["messages"]) == 61
    assert response.usage.output_tokens == 20, "the attempt counts"
    with pytest.raises(openai.InternalServerError, match="could not be compacted"):
        client.responses.create(model="small", input=history, context_management=COMPACT)
    response = client.responses.create(model="small", input=history, context_management=COMPACT, truncation="auto")
    assert [item.type for item in response.output] == ["message"]


def test_a_trigger_whose_summary_fails_is_an_error(server):
    client, _, _ = server
    with pytest.raises(openai.APIStatusError) as failure:
        client.responses.create(model="away", input=[*long_history(turns=1), {"type": "compaction_trigger"}])
    assert failure.value.status_code >= 500 and "could not be compacted" in failure.value.body["message"]


def test_an_upstream_that_compacts_itself_does_it_and_gets_its_item_back(tmp_path):
    with playing(compacting_answer) as (upstream, asked):
        theirs = {"engine": "responses", "base_url": upstream, "retries": 0, "abilities": {"compacts": True}}
        models = {"theirs": theirs, "parrot": {"engine": "scripted"}}
        with background_server(configured(tmp_path, models)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            question = {"role": "user", "content": "Hi"}
            stream = client.responses.create(model="theirs", input=[question], context_management=COMPACT, stream=True)
            types = [event.type for event in stream]
            assert types.index("response.output_item.added") < types.index("response.compaction.compacting")
            assert asked[-1]["context_management"] == COMPACT and asked[-1]["input"] == [{"type": "message", **question}]
            first = client.responses.create(model="theirs", input=[question, {"type": "compaction_trigger"}])
            assert asked[-1]["input"][-1] == {"type": "compaction_trigger"} and "context_management" not in asked[-1]
            assert [(item.type, item.encrypted_content) for item in first.output] == [("compaction", "theirs")]
            client.responses.create(model="theirs", input=[question], previous_response_id=first.id)
            assert asked[-1]["input"] == [{"type": "compaction", "encrypted_content": "theirs"}, {"type": "message", **question}]
            with pytest.raises(openai.BadRequestError) as refusal:
                client.responses.create(model="parrot", input=[*as_input(first), question])
            assert refusal.value.code == "invalid_encrypted_content"


def test_a_conversation_goes_on_from_its_compaction_and_keeps_its_items(server):
    client, asked, _ = server
    conversation = client.conversations.create(items=long_history()[:20])
    client.conversations.items.create(conversation.id, items=long_history(10)[:20])
    client.conversations.items.create(conversation.id, items=long_history(20)[:20])
    first = client.responses.create(model="chat", input="How many?", conversation=conversation.id, context_management=COMPACT)
    assert first.output[0].type == "compaction" and first.output_text.startswith("I know 30.")
    client.responses.create(model="chat", input="Next?", conversation=conversation.id, context_management=COMPACT)
    assert len(texts(asked[-1])) == 4 and texts(asked[-1])[0].startswith(SUMMARY_HEADING)
    types = [item.type for item in client.conversations.items.list(conversation.id, order="asc", limit=100)]
    assert len(types) == 60 + 5 and types.count("compaction") == 1
    repeated = {"type": "message", "role": "user", "content": "x", "id": next(iter(client.conversations.items.list(conversation.id))).id}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="chat", input=[repeated], conversation=conversation.id)
    assert "Duplicate item" in refusal.value.message


def test_a_background_response_is_compacted_likewise(server):
    client, _, _ = server
    stream = client.responses.create(model="chat", input=long_history(), context_management=COMPACT, background=True, stream=True)
    events = list(stream)
    assert [event.type for event in events].count("response.compaction.compacting") == 1
    assert [item.type for item in events[-1].response.output] == ["compaction", "message"]
    again = list(client.responses.retrieve(events[0].response.id, stream=True))
    assert [event.to_dict(warnings=False) for event in again] == [event.to_dict(warnings=False) for event in events]


def test_over_a_websocket_it_is_compacted_likewise(server):
    _, asked, url = server

    async def talk():
        async with connected(url) as peer:
            first = await peer.ask(model="chat", input=long_history(), context_management=COMPACT)
            assert [item["type"] for item in first["output"]] == ["compaction", "message"]
            await peer.ask("Next?", model="chat", previous_response_id=first["id"], context_management=COMPACT)
            assert len(texts(asked[-1])) == 4 and texts(asked[-1])[0].startswith(SUMMARY_HEADING)

    asyncio.run(talk())


def test_a_client_that_leaves_and_one_that_cancels_stop_the_summary(server):
    client, _, _ = server
    running = {"model": "slow", "input": long_history(), "context_management": COMPACT, "stream": True}

    def leave(**fields):
        with client.responses.create(**running, **fields) as stream:
            for event in stream:
                if event.type == "response.created":
                    response_id = event.response.id
                if event.type == "response.compaction.compacting":
                    return response_id

    deadline = time.monotonic() + PATIENCE_S
    left = leave()
    while client.responses.retrieve(left).status != "cancelled":
        assert time.monotonic() < deadline
    made = leave(background=True)
    assert client.responses.cancel(made).status == "cancelled"


def test_a_compaction_is_no_other_tenants(tmp_path):
    keys = KeyServer(tmp_path, {"parrot": {"engine": "scripted", "answers": [{"when": "", "say": "You said: {input}"}]}})
    mine, other = (asyncio.run(keys.key(tenant=tenant)) for tenant in ("a", "b"))
    with contextlib.ExitStack() as clients:
        url = clients.enter_context(keys.serving())
        here, there = (clients.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)) for key in (mine, other))
        compaction = here.responses.create(model="parrot", input=long_history(), context_management=COMPACT).output[0]
        content = [{"type": "compaction", "encrypted_content": compaction.encrypted_content}, {"role": "user", "content": "Next?"}]
        assert here.responses.create(model="parrot", input=content).output_text == "You said: Next?"
        with pytest.raises(openai.BadRequestError) as refusal:
            there.responses.create(model="parrot", input=content)
        assert (refusal.value.code, refusal.value.param) == ("invalid_encrypted_content", "input[0].encrypted_content")


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("chain", 40),
        ("conversation", 40),
        ("input", 25),
        pytest.param("chain", 300, marks=pytest.mark.long),
        pytest.param("conversation", 300, marks=pytest.mark.long),
    ],
)
def test_a_conversation_of_any_length_stays_within_the_window(server, kind, turns):
    client, asked, _ = server
    conversation = client.conversations.create() if kind == "conversation" else None
    history, previous = [], None
    del asked[:]
    for number in range(turns):
        question = {"role": "user", "content": f"Remember fact-{number}. {FILLER}"}
        history.append(question)
        place = {
            "chain": {"input": [question], "previous_response_id": previous},
            "conversation": {"input": [question], "conversation": conversation and conversation.id},
            "input": {"input": history, "store": False},
        }[kind]
        response = client.responses.create(model="small", context_management=COMPACT, **place)
        previous, history = response.id, [*history, *as_input(response)]
        assert response.output_text.startswith(f"I know {number + 1}."), "no fact is lost"
    sizes = [sum(len(text.encode()) for text in texts(body)) // 4 for body in asked]
    assert turns < len(asked) < 1.7 * turns and max(sizes) < 1500
