"""Answers that are rewritten before they are final: what clients get, and what is stored."""

import asyncio
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from antiphon.server.processes.run import background_server
from support.server import plain_http, raw_http
from support.server.model_server import playing
from support.server.responses_peer import connected
from support.server.scripted_server import configured

COLOURS = [{"pattern": "colour", "replacement": "color"}]
CITATION = {"type": "url_citation", "url": "https://example.com/", "title": "Paint", "start_index": 18, "end_index": 23}
PAINT = "A colour, and the paint `colour`."
ANSWERS = [
    {"when": "paint", "lines": [{"text": PAINT}, {"annotation": CITATION}]},
    {"when": "tool first", "lines": [{"text": "One colour."}, {"call": "look", "arguments": {}}]},
    {"when": "stay long", "lines": [{"text": "colour " * 400}]},
    {"when": "Hauptstadt", "say": "The capital of France is Paris, and it is on the river that they call the Seine."},
    {"when": "refuse", "lines": [{"refusal": "No colour."}]},
    {"when": "json", "lines": [{"text": '{"colour":"the colour"}'}]},
    {"when": "cut", "lines": [{"text": "A colour and"}, {"finish_reason": "length"}]},
    {"when": "^break", "lines": [{"text": "A colour and"}, {"wait_ms": 1}, {"failure": {"message": "The model broke."}}]},
    {"when": "", "say": "You said colour: {input}"},
]
WRITER = [
    {"when": "break", "lines": [{"failure": {"message": "No."}}]},
    {"when": "slowly", "lines": [{"wait_ms": 60000}]},
    {"when": "empty", "lines": [{"text": " "}]},
    {"when": "ramble", "lines": [{"text": "la ", "repeat": 100000}]},
    {"when": "capital of France", "say": "Die Hauptstadt von Frankreich ist Paris, und sie liegt an der Seine."},
    {"when": "You said", "lines": [{"text": "<text1>\nWritten anew.\n</text1>"}, {"usage": {"input_tokens": 7, "output_tokens": 5}}]},
]
FORMAT = {"type": "json_object"}


def rewrites():
    def rule(name, *models, **fields):
        return {"name": name, "models": list(models), "kind": "rule", "rules": COLOURS, **fields}

    return [
        rule("send", "sent", "both"),
        rule("hold", "held", drafts="hold"),
        rule("short", "short", drafts="hold", max_chars=100),
        {"name": "runaway", "models": ["runaway"], "kind": "rule", "rules": [{"pattern": "(o+)+$"}], "timeout_s": 0.1},
        {"name": "writer", "models": ["draft*"], "kind": "model", "model": "writer", "instruction": "Write it anew.", "timeout_s": 5},
        {"name": "held-writer", "models": ["slow"], "kind": "spelling", "model": "writer", "drafts": "hold", "timeout_s": 0.2},
        {"name": "long-writer", "models": ["patient"], "kind": "spelling", "model": "writer", "drafts": "hold", "timeout_s": 60},
        {"name": "align", "models": ["align"], "kind": "language", "model": "writer"},
        {"name": "own", "models": ["own"], "kind": "spelling"},
        {"name": "away", "models": ["lost"], "kind": "spelling", "model": "away"},
        {"name": "twice", "models": ["both"], "kind": "rule", "rules": [{"pattern": "color", "replacement": "hue"}]},
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    script = {"engine": "scripted", "answers": ANSWERS}
    own = [{"when": "<text1>", "say": "Corrected."}, {"when": "", "say": "Drafd."}]
    models = {name: script for name in ("sent", "held", "short", "runaway", "draft-1", "slow", "patient", "align", "lost", "both")}
    models |= {
        "writer": {"engine": "scripted", "answers": WRITER},
        "own": {"engine": "scripted", "answers": own},
        "away": {"engine": "chat", "base_url": "http://127.0.0.1:9/v1", "quirks": "generic", "retries": 0},
    }
    with background_server(configured(tmp_path_factory.mktemp("home"), models, rewrites=rewrites())) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(client, model, input, **fields):
    return list(client.responses.create(model=model, input=input, stream=True, **fields))


def deltas(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def of_type(events, name):
    return [event for event in events if event.type == f"response.{name}"]


def test_a_draft_is_sent_and_the_end_says_the_final_text(client):
    events = streamed(client, "sent", "paint")
    final = PAINT.replace("colour,", "color,")
    assert deltas(events) == PAINT
    assert of_type(events, "output_text.done")[0].text == of_type(events, "content_part.done")[0].part.text == final
    assert of_type(events, "output_item.done")[0].item.content[0].text == of_type(events, "completed")[0].response.output_text == final
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(events[-1].response.id).output_text == final


def test_annotations_of_a_draft_are_told_again_where_their_words_are_now(client):
    events = streamed(client, "sent", "paint")
    (told,) = of_type(events, "output_text.annotation.added")
    assert told.annotation.start_index == 18
    (annotation,) = events[-1].response.output[0].content[0].annotations
    text = events[-1].response.output_text
    assert text[annotation.start_index : annotation.end_index] == PAINT[18:23] == "paint"


def test_nothing_of_a_draft_that_is_held_is_sent(client):
    events = streamed(client, "held", "paint")
    final = PAINT.replace("colour,", "color,")
    assert deltas(events) == of_type(events, "output_text.done")[0].text == events[-1].response.output_text == final
    (told,) = of_type(events, "output_text.annotation.added")
    assert final[told.annotation.start_index : told.annotation.end_index] == "paint"


def test_a_held_draft_without_a_change_keeps_its_own_deltas(client):
    events = streamed(client, "held", "cut the grass")
    assert deltas(events) == events[-1].response.output_text == "A color and"
    assert events[-1].type == "response.incomplete"
    assert len(of_type(streamed(client, "short", "stay long"), "output_text.delta")) > 400, "too long: not held any longer"


def test_the_official_stream_helper_reads_both(client):
    for model in ("sent", "held"):
        with client.responses.stream(model=model, input="paint") as stream:
            assert stream.get_final_response().output_text == PAINT.replace("colour,", "color,")


def test_a_whole_answer_says_in_a_header_what_became_of_the_rewrite(client):
    for model, input, status, text in (
        ("sent", "x", "completed", "You said color: x"),
        ("held", "x", "completed", "You said color: x"),
        ("both", "x", "completed", "You said hue: x"),
        ("draft-1", "x", "completed", "Written anew."),
        ("draft-1", "please break", "failed", "You said colour: please break"),
        ("draft-1", "say empty", "failed", "You said colour: say empty"),
        ("draft-1", "ramble", "failed", "You said colour: ramble"),
        ("slow", "slowly", "failed", "You said colour: slowly"),
        ("lost", "x", "failed", "You said colour: x"),
        ("runaway", "ooooooooooooooooooooooooooooooooooooox", "failed", "You said colour: ooooooooooooooooooooooooooooooooooooox"),
        ("own", "x", "completed", "Corrected."),
        ("short", "stay long", None, "colour " * 400),
        ("align", "What is the capital of France?", None, "You said colour: What is the capital of France?"),
    ):
        raw = client.responses.with_raw_response.create(model=model, input=input)
        assert (raw.headers.get("antiphon-rewrite"), raw.parse().output_text) == (status, text), (model, input)


def test_the_language_of_an_answer_is_that_of_its_question(client):
    for input, expected in (
        ("Wie heißt die Hauptstadt von Frankreich?", "Die Hauptstadt"),
        ("Wie heißt die Hauptstadt von Frankreich auf Englisch?", "The capital"),
        ("Hauptstadt!", "The capital"),
    ):
        assert client.responses.create(model="align", input=input).output_text.startswith(expected)


def test_the_tokens_of_both_passes_are_counted(client):
    usage = client.responses.create(model="draft-1", input="x").usage
    plain = client.responses.create(model="draft-1", input="x", text={"format": FORMAT}, instructions="json").usage
    assert usage.output_tokens == 5 + len(["You", "said", "colour:", "x"])
    assert usage.input_tokens == 7 + 1 and plain.output_tokens == 4


def test_only_a_message_of_text_that_ends_the_answer_is_rewritten(client):
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    for model in ("sent", "held"):
        events = streamed(client, model, "tool first", tools=tools)
        assert deltas(events) == events[-1].response.output_text == "One colour."
        assert client.responses.create(model=model, input="refuse").output[0].content[0].refusal == "No colour."
        structured = client.responses.create(model=model, input="json please", text={"format": FORMAT})
        assert json.loads(structured.output_text) == {"colour": "the colour"}


def test_an_answer_that_breaks_off_keeps_what_there_is_of_its_draft(url):
    _, _, body = plain_http.post(url, {"model": "sent", "input": "break", "stream": True})
    events = plain_http.events_in(body)
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "A colour and"
    assert events[-1]["type"] == "response.failed"
    status, _, body = plain_http.post(url, {"model": "held", "input": "break", "stream": True})
    assert status == 500 and json.loads(body)["error"]["message"] == "The model broke.", "nothing was sent, so the status can say it"


def test_a_conversation_remembers_the_final_text(client):
    conversation = client.conversations.create()
    for model in ("sent", "held"):
        client.responses.create(model=model, input=model, conversation=conversation.id)
    texts = [part.text for item in client.conversations.items.list(conversation.id, order="asc") for part in item.content]
    assert texts == ["sent", "You said color: sent", "held", "You said color: held"]


def test_a_background_answer_is_rewritten_and_its_stream_can_be_read_again(client):
    events = streamed(client, "sent", "paint", background=True)
    again = list(client.responses.retrieve(events[-1].response.id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
    assert events[-1].response.output_text == PAINT.replace("colour,", "color,")


def test_a_background_answer_can_be_cancelled_while_it_is_rewritten(client):
    response = client.responses.create(model="patient", input="slowly", background=True)
    while client.responses.retrieve(response.id).status == "queued":
        time.sleep(0.01)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"


def test_a_client_that_leaves_while_its_answer_is_rewritten_leaves_nothing_behind(url, client):
    with raw_http.connect(url) as connection:
        connection.sendall(raw_http.ask("patient", "slowly", stream=True))
        raw_http.until(connection, b"response.in_progress")
    assert client.responses.create(model="held", input="x").output_text == "You said color: x"


def test_rules_leave_the_loop_to_others(url):
    def ask(model, input):
        _, headers, body = plain_http.post(url, {"model": model, "input": input})
        return json.loads(body)["output"][0]["content"][0]["text"], headers["antiphon-rewrite"]

    with ThreadPoolExecutor(16) as pool:
        runaways = [pool.submit(ask, "runaway", "o" * 40 + "x") for _ in range(3)]
        others = [pool.submit(ask, "draft-1", "x") for _ in range(10)]
        runaways, others = [task.result() for task in runaways], [task.result() for task in others]
    assert runaways == [("You said colour: " + "o" * 40 + "x", "failed")] * 3
    assert others == [("Written anew.", "completed")] * 10


def test_over_a_websocket_answers_are_rewritten_too(url):
    async def scenario():
        async with connected(url) as peer:
            await peer.create("paint", model="sent")
            return await peer.until("response.completed")

    events = asyncio.run(scenario())
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == PAINT
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == PAINT.replace("colour,", "color,")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_summary_for_models_is_not_rewritten(tmp_path):
    def answer(body):
        return [{"choices": [{"index": 0, "delta": {"content": "The colour was blue."}, "finish_reason": "stop"}]}]

    with playing(answer) as (upstream, asked):
        models = {"chat": {"engine": "chat", "base_url": upstream, "quirks": "generic", "retries": 0, "always_stream": True}}
        rule = {"name": "colours", "kind": "rule", "rules": COLOURS}
        with (
            background_server(configured(tmp_path, models, rewrites=[rule])) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client,
        ):
            history = [
                {"role": "user", "content": "word " * 1500},
                {"role": "assistant", "content": "Noted."},
                {"role": "user", "content": "What?"},
            ]
            threshold = [{"type": "compaction", "compact_threshold": 1000}]
            response = client.responses.create(model="chat", input=history, context_management=threshold)
            assert [item.type for item in response.output] == ["compaction", "message"]
            assert response.output_text == "The color was blue."
            assert "The colour was blue." in str(asked[-1]["messages"]), "the summary is as the model wrote it"
            compacted = client.responses.compact(model="chat", input=history)
            assert compacted.output[-1].type == "compaction"


def test_metrics_count_what_became_of_rewrites(url, client):
    client.responses.create(model="held", input="refresh")
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        text = reply.read().decode()
    assert 'antiphon_rewrites_total{outcome="completed",rewrite="hold"}' in text


def eugpt_events(url, model, input, base="/eugpt/v1", **fields):
    _, _, body = plain_http.post(url, {"model": model, "input": input, "stream": True, **fields}, f"{base}/responses")
    events = plain_http.events_in(body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def short_types(events):
    """Types without the prefix, deltas of one kind in a row as one."""
    types = [event["type"].removeprefix("response.") for event in events]
    return [kind for kind, before in zip(types, [None, *types], strict=False) if kind != before]


def test_the_profile_eugpt_tells_a_rewrite_between_the_last_delta_and_the_final_text(url):
    for model, order in (
        ("sent", ["created", "output_item.added", "content_part.added", "output_text.delta", "rewrite.in_progress"]),
        ("held", ["created", "rewrite.in_progress", "output_item.added", "content_part.added", "output_text.delta"]),
    ):
        events = eugpt_events(url, model, "paint")
        assert short_types(events) == [*order, "output_text.done", "output_item.done", "completed"]
        final = PAINT.replace("colour,", "color,")
        (done,) = [event for event in events if event["type"] == "response.output_text.done"]
        assert done["text"] == events[-1]["response"]["output_text"] == final and "rewrite" not in events[-1]["response"]
        (rewrite,) = [event for event in events if event["type"] == "response.rewrite.in_progress"]
        assert rewrite.keys() == {"type", "sequence_number"}


def test_the_profile_eugpt_says_at_the_end_that_a_rewrite_failed(url):
    events = eugpt_events(url, "draft-1", "please break")
    assert "rewrite.in_progress" in short_types(events)
    assert events[-1]["response"]["output_text"] == "You said colour: please break"
    assert events[-1]["response"]["rewrite"] == {"status": "failed"}


def test_the_profile_eugpt_tells_the_rewrite_of_a_background_answer_too(url):
    events = eugpt_events(url, "draft-1", "please break", background=True)
    assert "rewrite.in_progress" in short_types(events) and events[-1]["response"]["rewrite"] == {"status": "failed"}


def test_no_other_profile_has_the_event(url):
    for base in ("/v1", "/openresponses/v1"):
        _, _, body = plain_http.post(url, {"model": "draft-1", "input": "please break", "stream": True}, f"{base}/responses")
        assert b"rewrite" not in body and b"response.completed" in body
