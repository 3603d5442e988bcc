"""What EU GPT's page "Streaming events" promises: its rules over random answers, and its examples one by one."""

import asyncio
import itertools
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings, strategies as st
from msgspec import structs

from antiphon.config.routing import RouteEntry
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationSettings
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import shutting_down
from antiphon.protocols.responses.include import TOOL_RESULTS
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.protocols.session import FromClient, FromEngine, Hangup, Send, Shutdown
from antiphon.runtime.core.ids import new_response_id
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.rewriting.engine import RewritingEngine
from antiphon.runtime.routing.features import RouteCaller, RouteFeatures
from antiphon.runtime.routing.router import Router
from antiphon.wire.responses import events
from antiphon.wire.responses.profiles import ENCODERS
from support.protocols.eugpt_page import EXAMPLES, FAILURE
from support.protocols.responses_dialogues import order_for
from support.protocols.words import ID, any_word, ending
from support.runtime.rewrites import Louder, Playing, settle

SETTINGS = ConversationSettings(model="m", tenant="t")
EUGPT = ENCODERS["eugpt"]
LISTED = {
    "response.created",
    "response.completed",
    "error",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_item.added",
    "response.output_item.done",
    "response.routing.completed",
    "response.rewrite.in_progress",
}
"""The types on the page."""

KEYS = {
    "response.created": ["type", "sequence_number", "response"],
    "response.completed": ["type", "sequence_number", "response"],
    "error": ["type", "sequence_number", "code", "message"],
    "response.content_part.added": ["type", "sequence_number", "output_index", "content_index", "part"],
    "response.output_text.delta": ["type", "sequence_number", "output_index", "content_index", "delta"],
    "response.output_text.done": ["type", "sequence_number", "output_index", "content_index", "text"],
    "response.output_item.added": ["type", "sequence_number", "output_index", "item"],
    "response.output_item.done": ["type", "sequence_number", "output_index", "item"],
    "response.routing.completed": ["type", "sequence_number", "model_id", "category", "source", "reasoning"],
    "response.rewrite.in_progress": ["type", "sequence_number"],
}
"""Their keys, in the order of the examples; `error` has a number too, as every event should."""

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ROUTE = RouteDecision(model="gpt-oss-120b", category="reasoning", reasoning="Input length > 500 tokens")
MCP = {"type": "mcp_call", "id": "mcp_1", "name": "look_up", "server_label": "library", "arguments": "", "status": "in_progress"}
MCP_ARGUMENTS = {"type": "response.mcp_call_arguments.done", "item_id": "mcp_1", "arguments": '{"title":"Emma"}'}
MCP_FAILED = MCP | {
    "arguments": '{"title":"Emma"}',
    "status": "failed",
    "error": {"type": "http_error", "code": 500, "message": "No book."},
}
MCP_DONE = MCP | {"arguments": '{"title":"Emma"}', "output": "Found.", "status": "completed"}
hosted = st.one_of(
    st.builds(engine_events.HostedToolStarted, st.just(ID), st.just(MCP)),
    st.builds(engine_events.HostedToolProgress, st.just(ID), st.just(MCP_ARGUMENTS)),
    st.builds(engine_events.HostedToolDone, st.just(ID), st.sampled_from([MCP_DONE, MCP_FAILED])),
)
scripts = st.lists(st.one_of(any_word, hosted), max_size=12)


def session_events(words, route=None, last=None):
    """All that a session sends for an engine's words."""
    numbers = iter(range(10_000))
    resolved_request = structs.replace(order_for(include=list(TOOL_RESULTS)), id=new_response_id(), created_at=int(time.time()))
    session = ResponsesSession(resolved_request, lambda prefix: f"{prefix}_{next(numbers)}", route=route)
    effects = session.handle(FromClient(None, 1000.0))
    for word in words:
        effects += session.handle(FromEngine([word], 1001.0))
    if last is not None:
        effects += session.handle(last)
    return [effect.event for effect in effects if isinstance(effect, Send)]


def rewrite(sent, text):
    """The events of an answer that is rewritten before its last text is said to be done."""
    places = [index for index, event in enumerate(sent) if isinstance(event, events.OutputTextDone)]
    if not places:
        return sent
    done = structs.replace(sent[places[-1]], text=text)
    return [*sent[: places[-1]], events.RewriteInProgress(), done, *sent[places[-1] + 1 :]]


def written(sent):
    """The body of the stream, and its events."""
    body = bytearray()
    stream = EUGPT.stream()
    for event in sent:
        stream.encode_sse_into([event], body)
    text = body.decode()
    records = text.removesuffix("\n\n").split("\n\n") if text else []
    assert all(re.fullmatch(r"event: message\ndata: \{.*\}", record) for record in records)  # P11
    return [json.loads(record.partition("\ndata: ")[2]) for record in records]


def check_laws(got, *, is_routed, rewritten=None, is_fresh=True):
    types = [event["type"] for event in got]
    assert types[0] == "response.created" and got[0]["sequence_number"] == 0  # P1
    assert types[-1] in ("response.completed", "error")  # P2
    assert sum(each in ("response.completed", "error") for each in types) == 1
    assert [event["sequence_number"] for event in got] == list(range(len(got)))  # P3
    assert set(types) <= LISTED  # P5
    assert ("response.routing.completed" in types) == is_routed  # P6
    assert not is_routed or types[1] == "response.routing.completed"
    assert [list(event) for event in got] == [KEYS[each] for each in types]  # P12
    check_items(got, rewritten)
    check_ends(got, is_fresh)


def check_items(got, rewritten):
    placed = {}
    for event in got:
        if "output_index" in event:
            placed.setdefault(event["output_index"], []).append(event)
    assert list(placed) == list(range(len(placed)))  # P14
    is_over = got[-1]["type"] == "response.completed"
    for found in placed.values():
        kinds = [event["type"].removeprefix("response.") for event in found]
        assert kinds[0] == "output_item.added" and kinds.count("output_item.added") == 1  # P4
        assert "output_item.done" not in kinds[:-1]
        assert not is_over or kinds[-1] == "output_item.done"
        item = found[0]["item"]
        assert list(item) == (["type", "role"] if item["type"] == "message" else ["type", "name", "call_id", "arguments"])
        if kinds[-1] == "output_item.done":
            done = found[-1]["item"]
            assert done.items() >= item.items() and done["status"] in ("completed", "failed")
            assert list(done) in (["type", "role", "status"], [*item, "status"], [*item, "output", "status"])
    texts = {}
    for event in got:
        place = (event.get("output_index"), event.get("content_index"))
        if event["type"] == "response.content_part.added":
            assert event["part"] == {"type": "output_text", "text": ""} and place not in texts
            texts[place] = ""
        elif event["type"] == "response.output_text.delta":
            texts[place] += event["delta"]
        elif event["type"] == "response.output_text.done":
            assert event["text"] in (texts[place], rewritten)  # P8
            texts[place] = event["text"]
    if is_over:
        assert got[-1]["response"]["output_text"] == "".join(texts.values())  # P9


def check_ends(got, is_fresh):
    created, end = got[0]["response"], got[-1]
    assert list(created) == ["id", "object", "created_at", "model", "status"]
    assert UUID.fullmatch(created["id"]) and created["object"] == "response" and created["status"] == "in_progress"  # P13
    assert isinstance(created["created_at"], int)
    assert not is_fresh or abs(time.time() * 1000 - created["created_at"]) < 60_000
    if end["type"] == "error":
        return
    response = end["response"]
    extras = ("tool_calls", "incomplete_details", "rewrite")
    assert [key for key in response if key not in extras] == ["id", "status", "model", "output_text"]
    assert response["id"] == created["id"] and response["model"] == created["model"] and response["status"] == "completed"
    done = [event["item"] for event in got if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call"]
    assert response.get("tool_calls", []) == [{key: each[key] for key in each if key != "type"} for each in done]  # P10
    assert response.get("tool_calls") != []


@given(scripts, ending, st.booleans())
@example([], engine_events.ResponseEnded(ID, "length"), True)
def test_the_rules_hold_for_every_answer(words, end, is_routed):
    check_laws(written(session_events([*words, end], ROUTE if is_routed else None)), is_routed=is_routed)


@given(scripts, st.sampled_from([Shutdown(shutting_down(), 1002.0)]), st.booleans())
def test_the_rules_hold_wherever_the_server_ends_an_answer(words, last, is_routed):
    got = written(session_events(words, ROUTE if is_routed else None, last))
    check_laws(got, is_routed=is_routed)
    assert got[-1]["type"] == "error" and got[-1]["code"] in ("overloaded", "internal_error")  # it may have failed before


@given(scripts)
def test_nothing_is_out_of_order_when_the_client_leaves(words):
    got = written(session_events(words, last=Hangup(1002.0)))
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert "response.completed" not in [event["type"] for event in got]


@given(scripts, st.sampled_from(["", "Better."]))
def test_a_rewrite_stands_before_the_text_that_it_changes(words, text):
    sent = rewrite(session_events([*words, engine_events.TextDelta(ID, "Draft"), engine_events.ResponseEnded(ID)]), text)
    got = written(sent)
    check_laws(got, is_routed=False, rewritten=text)
    types = [event["type"] for event in got]
    assume(types[-1] == "response.completed")  # a script may fail before
    place = types.index("response.rewrite.in_progress")  # P7
    assert types[place + 1] == "response.output_text.done" and got[place + 1]["text"] == text
    later_deltas = [event for event in got[place:] if event["type"] == "response.output_text.delta"]
    assert all(event["output_index"] > got[place + 1]["output_index"] or event["content_index"] for event in later_deltas)


def with_calls_counted(response):
    """A response with the number of its calls: random scripts end a call as another than it began, and a stream keeps to the beginning."""
    return response | {"tool_calls": len(response.get("tool_calls", ()))}


@pytest.mark.parametrize("name", ["reference/profiles.md", "guide/routing.md", "guide/rewriting.md"])
def test_the_streams_that_our_pages_show_follow_the_rules(name):
    page = Path(__file__).parents[2].joinpath("docs", name).read_text()
    (shown,) = re.findall(r"^```text\n(event: message\n.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    got = [json.loads(line.removeprefix("data: ")) for line in shown.splitlines() if line.startswith("data: ")]
    finals = [event["text"] for event in got if event["type"] == "response.output_text.done"]
    is_rewritten = any(event["type"] == "response.rewrite.in_progress" for event in got)
    check_laws(got, is_routed=name != "guide/rewriting.md", rewritten=finals[-1] if is_rewritten else None, is_fresh=False)


# Routing and rewriting as a server does them


class Models:
    """Two models of which nothing more is known."""

    def find(self, name):
        return name

    def has(self, name):
        return name in ("small", "large")


def route_of(input_tokens):
    """The decision of a router about a request of this length."""
    rule = {"model": "large", "category": "reasoning", "when": {"min_input_tokens": 500}}
    entry = RouteEntry.model_validate({"default": "small", "rules": [rule]})
    router = Router([entry], Models(), lambda *_: Capabilities(), Metrics(), Path(), Path())
    return router.resolve("auto", lambda: RouteFeatures(input_tokens=input_tokens), RouteCaller())


def rewritten_events(words, pieces, rewrite, input_tokens):
    """All that a session sends whose request was routed, and whose engine's words are rewritten."""

    async def scenario():
        numbers = iter(range(10_000))
        route = None if input_tokens is None else (await route_of(input_tokens)).decision
        model = route.model if route else "m"
        resolved_request = structs.replace(
            order_for(include=list(TOOL_RESULTS)), id=new_response_id(), created_at=int(time.time()), model=model
        )
        session = ResponsesSession(resolved_request, lambda prefix: f"{prefix}_{next(numbers)}", route=route)
        effects = session.handle(FromClient(None, 1000.0))
        deliver = lambda batch: effects.extend(session.handle(FromEngine(batch, 1001.0)))  # noqa: E731
        engine = Playing()
        async with RewritingEngine(engine, [rewrite], replaces=True).open(SETTINGS, deliver) as conversation:
            conversation.send(commands.Respond(id=ID, history=()))
            places = sorted({0, len(words), *(place for place in pieces if place < len(words))})
            for start, end in itertools.pairwise(places):
                engine.deliver(words[start:end])
            await settle()
        return [effect.event for effect in effects if isinstance(effect, Send)], session.notes

    return asyncio.run(scenario())


def check_rewrite(got, does):
    """P7: once, behind the last delta of a draft that was sent, and before the text that it changes."""
    types = [event["type"] for event in got]
    failed = got[-1].get("response", {}).get("rewrite")
    if "response.rewrite.in_progress" not in types or types[-1] == "error":
        assert failed is None
        return
    place = types.index("response.rewrite.in_progress")
    assert types.count("response.rewrite.in_progress") == 1 and "response.output_text.delta" not in types[place:]
    (done,) = (event for event in got[place:] if event["type"] == "response.output_text.done")
    where = done["output_index"], done["content_index"]
    deltas = (each for each in got if each["type"] == "response.output_text.delta")
    draft = "".join(each["delta"] for each in deltas if (each["output_index"], each["content_index"]) == where)
    assert done["text"] == (f"{draft.upper()}!" if does == "shouts" else draft)
    assert failed == ({"status": "failed"} if does == "fails" else None)


cuts = st.lists(st.integers(1, 12), max_size=3)
lengths = st.sampled_from([None, 499, 500, 501])


@given(scripts, ending, cuts, st.sampled_from(["shouts", "whispers", "fails"]), st.sampled_from(["send", "hold"]), lengths)
@example([engine_events.TextDelta(ID, "a")], engine_events.ResponseEnded(ID), [], "shouts", "send", 501)
@example([engine_events.TextDelta(ID, "a")], engine_events.ResponseEnded(ID), [], "fails", "hold", None)
def test_the_rules_hold_where_the_model_is_chosen_and_the_answer_rewritten(words, end, pieces, does, drafts, input_tokens):
    sent, notes = rewritten_events([*words, end], pieces, Louder(does, drafts=drafts), input_tokens)
    got = written(sent)
    finals = [event["text"] for event in got if event["type"] == "response.output_text.done"]
    is_replaced = drafts == "send" and does == "shouts" and any(event["type"] == "response.rewrite.in_progress" for event in got)
    check_laws(got, is_routed=input_tokens is not None, rewritten=finals[-1] if is_replaced and finals else None)
    if drafts == "send":
        check_rewrite(got, does)
    if input_tokens is not None:
        reason = {499: "No rule fits; default model", 500: "Input length = 500 tokens", 501: "Input length > 500 tokens"}
        assert got[1]["reasoning"] == reason[input_tokens] and got[1]["model_id"] == got[0]["response"]["model"]
    if got[-1]["type"] == "response.completed":
        whole = json.loads(EUGPT.encode_response(sent[-1].response, notes))
        routing = whole.pop("routing", None)
        assert with_calls_counted(whole) == with_calls_counted(got[0]["response"] | got[-1]["response"])
        assert (routing is not None) == (input_tokens is not None)


@given(scripts, ending)
@settings(max_examples=25)
def test_a_response_that_is_not_streamed_says_what_its_stream_said(words, end):
    sent = session_events([*words, end])
    got = written(sent)
    if got[-1]["type"] == "error":
        return
    whole = json.loads(EUGPT.encode_response(sent[-1].response))
    told = got[0]["response"] | got[-1]["response"]
    assert with_calls_counted(whole) == with_calls_counted(told)
    assert list(whole)[:6] == ["id", "object", "created_at", "model", "status", "output_text"]


# The page's examples. Their numbers are those of several streams, so only what they say is compared.

SEARCH = {"type": "web_search_call", "id": "ws_abc123", "status": "in_progress"}
FOUND = SEARCH | {"status": "completed", "action": {"type": "search", "query": "", "sources": [{"type": "url", "title": "", "url": ""}]}}


def masked(event):
    """An event as its JSON, without what differs from one stream to the next."""
    response = event.get("response")
    if response:
        event = event | {"response": response | {"id": "…"} | ({"created_at": 0} if "created_at" in response else {})}
    return json.dumps({key: value for key, value in event.items() if key != "sequence_number"})


@pytest.fixture(scope="module")
def replay():
    words = [
        engine_events.TextDelta(ID, "Hello"),
        engine_events.TextDelta(ID, ", world"),
        engine_events.ItemBoundary(ID, "ws_abc123"),
        engine_events.HostedToolStarted(ID, SEARCH),
        engine_events.HostedToolDone(ID, FOUND),
        engine_events.ResponseEnded(ID),
    ]
    sent = rewrite(session_events(words, ROUTE), "Hello, world.")
    return {masked(event) for event in written(sent)}


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: json.loads(line)["type"])
def test_each_example_of_the_page_is_sent_as_it_stands_there(replay, line):
    assert masked(json.loads(line)) in replay


def test_the_example_of_a_failure_is_sent_as_it_stands_there():
    failure = engine_events.ResponseFailed(id=ID, message="Unexpected upstream failure")
    got = written(session_events([engine_events.TextDelta(ID, "He"), failure]))
    assert masked(got[-1]) == json.dumps(json.loads(FAILURE))
    assert [event["type"] for event in got].count("response.output_item.done") == 0


# What the page leaves open


def test_a_call_that_the_client_makes_has_no_output():
    words = [engine_events.ToolCallStarted(ID, "call_1", "now"), engine_events.ToolCallDone(ID, "call_1"), engine_events.ResponseEnded(ID)]
    got = written(session_events(words))
    assert got[1]["item"] == {"type": "function_call", "name": "now", "call_id": "call_1", "arguments": "{}"}
    assert got[2]["item"] == got[1]["item"] | {"status": "completed"}


def test_a_server_s_call_is_told_before_it_is_made_and_a_failed_one_says_why():
    words = [engine_events.HostedToolStarted(ID, MCP), engine_events.HostedToolProgress(ID, MCP_ARGUMENTS)]
    assert [event["type"] for event in written(session_events(words))] == ["response.created", "response.output_item.added"]
    got = written(session_events([*words, engine_events.HostedToolDone(ID, MCP_FAILED), engine_events.ResponseEnded(ID)]))
    assert got[2]["item"] == {
        "type": "function_call",
        "name": "look_up",
        "call_id": got[1]["item"]["call_id"],
        "arguments": '{"title":"Emma"}',
        "output": "No book.",
        "status": "failed",
    }
    assert got[-1]["type"] == "response.completed"


def test_an_answer_that_is_too_long_is_complete_and_one_that_is_filtered_fails():
    cut = written(session_events([engine_events.TextDelta(ID, "Once"), engine_events.ResponseEnded(ID, "length")]))
    assert cut[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut[-2]["item"]["status"] == "completed"
    filtered = written(session_events([engine_events.TextDelta(ID, "Once"), engine_events.ResponseEnded(ID, "content_filter")]))
    assert (filtered[-1]["type"], filtered[-1]["code"]) == ("error", "content_filtered")


def test_a_call_that_is_cut_off_is_one_that_failed():
    words = [engine_events.ToolCallStarted(ID, "call_1", "now"), engine_events.ToolArgumentsDelta(ID, "call_1", '{"zo')]
    got = written(session_events([*words, engine_events.ResponseEnded(ID, "length")]))
    assert got[-2]["item"]["status"] == "failed" and isinstance(got[-2]["item"]["output"], str)


def test_a_picture_in_an_output_is_left_out():
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 10_000, "revised_prompt": "A cat"}
    words = [engine_events.HostedToolStarted(ID, image), engine_events.HostedToolDone(ID, image), engine_events.ResponseEnded(ID)]
    item = written(session_events(words))[2]["item"]
    assert (item["name"], item["arguments"]) == ("image_generation", '{"prompt":"A cat"}')
    assert item["output"] == "(a picture of 10000 characters, left out)"


def test_a_name_that_two_servers_have_is_told_with_its_server_s():
    words = []
    for item in (MCP_DONE, MCP_DONE | {"server_label": "shop"}):
        words += [engine_events.HostedToolStarted(ID, item), engine_events.HostedToolDone(ID, item)]
    got = written(session_events([*words, engine_events.ResponseEnded(ID)]))
    assert [call["name"] for call in got[-1]["response"]["tool_calls"]] == ["look_up", "shop__look_up"]
