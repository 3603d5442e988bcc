"""The Responses session: each dialogue as the events that the client sees."""

import msgspec
import pytest
from hypothesis import given, strategies as st
from openai.types.responses import Response as TheirResponse, ResponseStreamEvent

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ServerError
from antiphon.protocols.session import PADDING_PERIOD, Close, FromClient, FromEngine, Hangup, Persist, PersistFailed, Send, SendToEngine
from antiphon.wire.codec.types import encode
from antiphon.wire.responses import items, parts, tools
from antiphon.wire.responses.request import ReasoningOptions, TextOptions
from antiphon.wire.responses.summary import FailureNote, decode_notes
from support.protocols.responses_dialogues import ALL, Dialogue, session_for
from support.protocols.words import ID, any_word, ending
from support.wire.adapters import adapter

OUR_OWN_KEYS = {"obfuscation", "error", "name", "bytes", "status"}
"""Keys of events that the original sends and its SDK has no field for."""
OUR_RESPONSE_KEYS = {"store", "presence_penalty", "frequency_penalty"}
"""Keys that Open Responses requires in every response and the original's SDK has no field for."""


ALL_WITH_MCP = msgspec.structs.replace(ALL, hosted=("mcp",))


def talk_with(*words, **fields):
    return Dialogue(session_for(**fields)).said(*words)


def assert_strictly_theirs(event):
    """The event is one of the SDK's types, with no key that the SDK has no field for, save those we know of."""
    theirs = adapter(ResponseStreamEvent).validate_python(event)
    assert theirs.type == event["type"]
    assert set(event) - set(type(theirs).model_fields) <= OUR_OWN_KEYS
    if "response" in event:
        response = TheirResponse.model_validate(event["response"], strict=True)
        assert set(event["response"]) - set(type(response).model_fields) <= OUR_RESPONSE_KEYS
    assert_no_extras(theirs)


def assert_no_extras(model):
    for name, value in model:
        assert name in type(model).model_fields or name in OUR_OWN_KEYS | OUR_RESPONSE_KEYS, name
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "model_fields_set"):
                assert_no_extras(inner)


def test_an_answer_in_text_is_the_sequence_of_the_original():
    dialogue = talk_with(
        engine_events.TextDelta(ID, "Hi"),
        engine_events.TextDelta(ID, " you"),
        engine_events.Usage(id=ID, input_tokens=3, output_tokens=2),
        engine_events.ResponseEnded(ID),
    )
    assert dialogue.types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert dialogue.events[2]["item"] == {"type": "message", "id": "msg_2", "status": "in_progress", "content": [], "role": "assistant"}
    assert dialogue.events[3]["part"] == {"type": "output_text", "annotations": [], "text": "", "logprobs": []}
    assert dialogue.events[5] == {
        "type": "response.output_text.delta",
        "sequence_number": 5,
        "item_id": "msg_2",
        "output_index": 0,
        "content_index": 0,
        "delta": " you",
        "logprobs": [],
    }
    final = dialogue.events[-1]["response"]
    assert final["status"] == "completed"
    assert final["completed_at"] == 1001
    assert final["output"] == [dialogue.events[-2]["item"]]
    assert final["output"][0]["content"] == [{"type": "output_text", "annotations": [], "text": "Hi you", "logprobs": []}]
    assert final["usage"]["total_tokens"] == 5
    assert isinstance(dialogue.effects[-1], Close)
    assert dialogue.effects[-1].error is None


EVERYTHING = (
    engine_events.ReasoningDelta(ID, "Hm. "),
    engine_events.ReasoningDelta(ID, "In short.", summary=True),
    engine_events.ReasoningBoundary(ID),
    engine_events.EncryptedReasoning(ID, "c2VhbA=="),
    engine_events.TextDelta(
        ID,
        "Hi",
        (
            engine_events.TokenLogprob(
                engine_events.TokenCandidate("Hi", -0.1, (72, 105)), (engine_events.TokenCandidate("Ho", -2.0, (72, 111)),)
            ),
        ),
    ),
    engine_events.AnnotationAdded(ID, {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "T", "url": "http://u"}),
    engine_events.RefusalDelta(ID, "No."),
    engine_events.ToolCallStarted(ID, "call_1", "f"),
    engine_events.ToolArgumentsDelta(ID, "call_1", "{}"),
    engine_events.ToolCallStarted(ID, "call_2", "edit", custom=True),
    engine_events.ToolArgumentsDelta(ID, "call_2", "free"),
    engine_events.ToolCallDone(ID, "call_1"),
    engine_events.ToolCallDone(ID, "call_2"),
    engine_events.Usage(id=ID, input_tokens=3, output_tokens=2, cached_tokens=1, reasoning_tokens=1),
)


@pytest.mark.parametrize(
    ("end", "terminal"),
    [
        (engine_events.ResponseEnded(ID), ["completed"]),
        (engine_events.ResponseEnded(ID, "length"), ["incomplete"]),
        (engine_events.ResponseEnded(ID, "content_filter"), ["incomplete"]),
        (engine_events.ResponseFailed(id=ID, message="gone"), ["error", "failed"]),
    ],
)
def test_every_event_of_every_kind_of_item_and_end_is_strictly_one_of_the_sdks(end, terminal):
    dialogue = talk_with(
        *EVERYTHING,
        end,
        tools=[tools.FunctionTool(name="f", parameters={"type": "object"}), tools.CustomTool(name="edit")],
        tool_choice=tools.AllowedToolsChoice(mode="auto", tools=[{"type": "function", "name": "f"}]),
        instructions=[items.Message(role="developer", content="Be brief.")],
        reasoning=ReasoningOptions(effort="low", summary="auto"),
        text=TextOptions(format=items.JsonSchemaFormat(name="n", schema={"type": "object"}, strict=True)),
        metadata={"k": "v"},
        top_logprobs=2,
    )
    assert dialogue.types[-len(terminal) :] == terminal
    for event in dialogue.events:
        assert_strictly_theirs(event)
    for kind in (
        "reasoning_text.delta",
        "reasoning_text.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_text.annotation.added",
        "refusal.delta",
        "refusal.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
    ):
        assert kind in dialogue.types


def test_a_stored_stream_is_kept_before_it_is_announced_and_before_it_is_said_to_be_complete():
    dialogue = talk_with(engine_events.TextDelta(ID, "Hi"), engine_events.ResponseEnded(ID))
    order = [type(effect).__name__ for effect in dialogue.effects]
    assert order[:3] == ["SendToEngine", "Persist", "Send"]
    assert order[-3:] == ["Persist", "Send", "Close"]
    begun, done = dialogue.kept
    assert (begun.status, done.status) == ("in_progress", "completed")
    assert [item.direction for item in done.items] == ["input", "output"]
    assert msgspec.json.decode(done.body) == dialogue.events[-1]["response"]
    assert msgspec.json.decode(done.items[0].body) == {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
        "role": "user",
    }


def test_an_answer_that_is_not_streamed_is_kept_once():
    assert [record.status for record in talk_with(engine_events.ResponseEnded(ID), stream=False).kept] == ["completed"]


def test_store_false_keeps_nothing():
    dialogue = talk_with(engine_events.TextDelta(ID, "Hi"), engine_events.ResponseEnded(ID), store=False)
    assert dialogue.kept == []
    assert dialogue.events[-1]["response"]["store"] is False


def test_a_failure_is_an_error_with_flat_and_nested_keys_and_then_a_failed_response():
    dialogue = talk_with(
        engine_events.TextDelta(ID, "On"),
        engine_events.ResponseFailed(id=ID, message="Gone.", status=503, code="server_error", retry_after_s=2),
    )
    assert dialogue.types[-3:] == ["output_item.done", "error", "failed"]
    error, failed = dialogue.events[-2:]
    assert (error["code"], error["message"], error["param"]) == ("server_error", "Gone.", None)
    assert error["error"] == {"type": "server_error", "code": "server_error", "message": "Gone.", "param": None}
    assert failed["response"]["error"] == {"code": "server_error", "message": "Gone."}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert dialogue.effects[-1].error.status == 503
    assert dialogue.kept[-1].status == "failed"


def test_the_notes_of_a_failure_keep_its_own_code():
    failure = engine_events.ResponseFailed(
        id=ID, message="Gone.", status=503, code="server_is_overloaded", type="service_unavailable_error"
    )
    *_, kept = talk_with(engine_events.TextDelta(ID, "H"), failure).kept
    assert decode_notes(kept.notes).failure == FailureNote(code="server_is_overloaded", type="service_unavailable_error", message="Gone.")


def test_a_client_that_hangs_up_cancels_the_engine_and_what_was_said_is_kept():
    dialogue = talk_with(engine_events.TextDelta(ID, "On"))
    effects = dialogue.session.handle(Hangup(1002.0))
    assert effects[0] == SendToEngine(commands.Cancel(ID))
    assert [type(effect) for effect in effects] == [SendToEngine, Persist, Close]
    shown = msgspec.json.decode(effects[1].record.body)
    assert shown["status"] == "cancelled"
    assert shown["output"][0]["content"][0]["text"] == "On"
    assert dialogue.session.handle(FromEngine((engine_events.TextDelta(ID, "late"),), 1003.0)) == []


def test_a_beginning_that_cannot_be_stored_ends_the_session_before_a_word():
    session = session_for()
    _, kept, *_ = session.handle(FromClient(None, 1000.0))
    fault = ServerError("disk full")
    assert session.handle(PersistFailed(kept.record, fault, 1000.1)) == [SendToEngine(commands.Cancel(ID)), Close(fault)]


def test_an_end_that_cannot_be_stored_is_told_as_a_failure_without_a_gap_in_the_numbers():
    dialogue = talk_with(engine_events.TextDelta(ID, "On"), engine_events.ResponseEnded(ID))
    last = dialogue.events[-1]["sequence_number"]
    effects = dialogue.session.handle(PersistFailed(dialogue.kept[-1], ServerError("disk full"), 1002.0))
    events = [msgspec.json.decode(encode(effect.event)) for effect in effects if isinstance(effect, Send)]
    assert [(event["type"], event["sequence_number"]) for event in events] == [("error", last), ("response.failed", last + 1)]
    assert events[1]["response"]["error"]["message"] == "disk full"
    assert events[1]["response"]["completed_at"] is None


def test_deltas_are_padded_so_that_their_length_does_not_tell_the_word():
    dialogue = talk_with(
        engine_events.TextDelta(ID, "a"),
        engine_events.TextDelta(ID, "much longer than sixteen"),
        engine_events.ResponseEnded(ID),
        noise=["x" * length for length in range(16, 0, -1)],
    )
    deltas = [event for event in dialogue.events if event["type"].endswith(".delta")]
    assert all((len(event["delta"]) + len(event["obfuscation"])) % PADDING_PERIOD == 0 for event in deltas)


def test_every_key_that_open_responses_or_an_sdk_requires_is_there_from_the_first_event():
    required = (
        "id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools "
        "tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning "
        "usage "
        "max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key access_programs"
    ).split()
    response = talk_with().events[0]["response"]
    assert set(required) <= set(response)
    never_null = (
        "temperature top_p presence_penalty frequency_penalty top_logprobs parallel_tool_calls store background service_tier truncation"
    )
    assert all(response[key] is not None for key in never_null.split())
    assert response["reasoning"] == {"effort": None, "summary": None}
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


def test_a_function_tool_is_echoed_with_every_key_that_strict_readers_insist_on():
    dialogue = talk_with(tools=[tools.FunctionTool(name="f")])
    assert dialogue.events[0]["response"]["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False}
    ]


def test_a_schema_is_echoed_with_every_key_that_strict_readers_insist_on():
    dialogue = talk_with(text=TextOptions(format=items.JsonSchemaFormat(name="n", schema={})))
    assert dialogue.events[0]["response"]["text"]["format"] == {
        "type": "json_schema", "name": "n", "schema": {}, "description": None, "strict": False
    }  # fmt: skip


def test_more_tokens_than_an_engine_can_count_are_told_as_the_most_that_it_can():
    dialogue = talk_with(max_output_tokens=2**31)
    (told,) = (effect.command for effect in dialogue.effects if isinstance(effect, SendToEngine))
    assert told.sampling.max_tokens == 2**31 - 1
    assert dialogue.events[0]["response"]["max_output_tokens"] == 2**31


def test_an_items_id_is_the_same_in_all_of_its_events():
    dialogue = talk_with(*EVERYTHING, engine_events.ResponseEnded(ID))
    by_index = {}
    for event in dialogue.events:
        if "output_index" in event:
            by_index.setdefault(event["output_index"], set()).add(event.get("item_id") or event["item"]["id"])
    assert all(len(ids) == 1 for ids in by_index.values())
    assert [item["id"] for item in dialogue.events[-1]["response"]["output"]] == [ids.pop() for _, ids in sorted(by_index.items())]


def assert_gathers_to(events):
    """A client that starts from what is announced and adds every delta has, at each `done`, just what is done."""
    gathered, parts = {}, {}
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            item = event["item"]
            assert item.get("status") == "in_progress"
            assert not any(item.get(key) for key in ("content", "summary", "arguments", "input", "encrypted_content"))
            gathered[item["id"]] = ""
        elif kind in ("content_part.added", "reasoning_summary_part.added"):
            assert not event["part"].get("text")
            assert not event["part"].get("refusal")
            parts[event["item_id"]] = ""
        elif kind.endswith(".delta"):
            into = gathered if "arguments" in kind or "input" in kind else parts
            into[event["item_id"]] += event["delta"]
        elif kind in ("function_call_arguments.done", "custom_tool_call_input.done"):
            assert (event["arguments"] if "arguments" in event else event["input"]) == gathered[event["item_id"]]
        elif kind in ("content_part.done", "reasoning_summary_part.done"):
            assert (event["part"]["text"] if "text" in event["part"] else event["part"]["refusal"]) == parts[event["item_id"]]


@given(st.lists(any_word, max_size=25), ending, st.sampled_from(["none", "hangup", "not begun", "not ended"]), st.integers(0, 25))
def test_whatever_an_engine_says_the_stream_keeps_its_laws(words, end, mishap, at):
    """
    One terminal for each `created` and nothing after it; numbers rise by one; every `added` has its `done`; the final output equals
    what streamed; nothing after `Close`; and the session never raises.
    """
    dialogue = Dialogue(session_for())
    for index, word in enumerate([*words, end]):
        if index == at and mishap == "hangup":
            dialogue.effects += dialogue.session.handle(Hangup(1002.0))
        if index == 0 and mishap == "not begun":
            dialogue.not_kept()
        dialogue.said(word)
    if mishap == "not ended":
        dialogue.not_kept()
    closes = [index for index, effect in enumerate(dialogue.effects) if isinstance(effect, Close)]
    assert closes == [len(dialogue.effects) - 1]
    events = dialogue.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    terminals = [event for event in events if event["type"] in ("response.completed", "response.incomplete", "response.failed")]
    if terminals:
        assert terminals == [events[-1]]
        added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
        done = [event for event in events if event["type"] == "response.output_item.done"]
        assert [event["output_index"] for event in done] == added == list(range(len(added)))
        assert events[-1]["response"]["output"] == [event["item"] for event in done]
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert_gathers_to(events)
        content = (part for item in events[-1]["response"]["output"] for part in item.get("content", ()))
        assert "".join(part["text"] for part in content if part["type"] == "output_text") == text
    assert len(terminals) == 1 or mishap in ("hangup", "not begun")


def test_parts_of_the_input_are_kept_as_they_came():
    picture = items.Message(role="user", content=[parts.InputImage(image_url="data:image/png;base64,AA==")])
    record = talk_with(engine_events.ResponseEnded(ID), given=(picture,)).kept[-1]
    assert msgspec.json.decode(record.items[0].body)["content"] == [
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AA=="}
    ]


@pytest.mark.parametrize(
    ("call", "output"),
    [
        (items.FunctionCall(call_id="c", name="f", arguments="{}"), items.FunctionCallOutput),
        (items.CustomToolCall(call_id="c", name="f", input="x"), items.CustomToolCallOutput),
    ],
)
def test_a_picture_that_a_tool_gave_is_kept_with_its_detail(call, output):
    pictures = [parts.OutputImage(image_url="data:image/png;base64,AA=="), parts.OutputImage(file_id="file_1", detail="low")]
    record = talk_with(engine_events.ResponseEnded(ID), given=(call, output(call_id="c", output=pictures))).kept[-1]
    assert [each["detail"] for each in msgspec.json.decode(record.items[1].body)["output"]] == ["auto", "low"]


def test_what_a_hosted_tool_does_is_told_in_its_own_events_with_our_numbers():
    search = {"type": "web_search_call", "id": "ws_theirs", "status": "in_progress"}
    found = search | {"status": "completed", "action": {"type": "search", "query": "q"}}
    moved = {"type": "response.web_search_call.searching", "item_id": "ws_theirs", "output_index": 7, "sequence_number": 99}
    dialogue = talk_with(
        engine_events.HostedToolStarted(ID, search),
        engine_events.HostedToolProgress(ID, moved),
        engine_events.HostedToolDone(ID, found),
        engine_events.TextDelta(ID, "Found"),
        engine_events.ResponseEnded(ID),
    )
    assert dialogue.types[2:6] == ["output_item.added", "web_search_call.searching", "output_item.done", "output_item.added"]
    assert dialogue.events[2]["item"] == search | {"id": "ws_2"}
    assert dialogue.events[3] == moved | {"item_id": "ws_2", "output_index": 0, "sequence_number": 3}
    assert dialogue.events[4]["item"] == found | {"id": "ws_2"}
    assert dialogue.events[-1]["response"]["output"][0] == found | {"id": "ws_2"}
    for event in dialogue.events[4:]:
        assert_strictly_theirs(event)


def test_a_hosted_tool_that_was_cut_off_is_incomplete():
    search = {"type": "web_search_call", "id": "ws_theirs", "status": "in_progress"}
    dialogue = talk_with(engine_events.HostedToolStarted(ID, search), engine_events.ResponseEnded(ID, "length"))
    assert dialogue.events[-1]["response"]["output"] == [search | {"id": "ws_2", "status": "incomplete"}]


def test_items_that_an_engine_tells_apart_are_apart_and_may_have_its_names():
    words = [
        engine_events.ItemBoundary(ID, "msg_x", "commentary"),
        engine_events.TextDelta(ID, "One"),
        engine_events.ItemBoundary(ID),
        engine_events.TextDelta(ID, "Two"),
        engine_events.ResponseEnded(ID),
    ]
    output = talk_with(*words).events[-1]["response"]["output"]
    assert [(item["id"], item["content"][0]["text"]) for item in output] == [("msg_x", "One"), ("msg_2", "Two")]
    assert [item.get("phase") for item in output] == ["commentary", None]


def test_reasoning_stays_reasoning_under_any_name():
    words = [engine_events.ItemBoundary(ID, "thought-1"), engine_events.ReasoningDelta(ID, "Hm"), engine_events.ResponseEnded(ID)]
    assert talk_with(*words).events[-1]["response"]["output"][0]["type"] == "reasoning"


def test_a_route_is_told_behind_the_first_event_and_takes_no_number():
    route = RouteDecision(model="m", category="reasoning", reasoning="Long")
    dialogue = talk_with(engine_events.TextDelta(ID, "Hi"), engine_events.ResponseEnded(ID), route=route)
    assert dialogue.types[:3] == ["created", "routing.completed", "in_progress"]
    assert dialogue.events[1] == {
        "type": "response.routing.completed",
        "model_id": "m",
        "category": "reasoning",
        "source": "router",
        "reasoning": "Long",
    }
    numbers = [event["sequence_number"] for event in dialogue.events if "sequence_number" in event]
    assert numbers == list(range(len(dialogue.events) - 1))


def test_a_queued_response_tells_its_route_once():
    session = session_for(route=RouteDecision(model="m"), background=True)
    _, events = session.queue()
    assert [event.type for event in events] == ["response.created", "response.routing.completed", "response.queued"]
    assert "routing.completed" not in Dialogue(session).types


def test_secrets_of_a_container_are_neither_shown_nor_stored():
    policy = tools.NetworkAllowlist(
        allowed_domains=["a.example"], domain_secrets=[tools.DomainSecret(domain="a.example", name="k", value="secret-1")]
    )
    tool = tools.CodeInterpreterTool(container=tools.AutoContainer(network_policy=policy))
    dialogue = talk_with(engine_events.TextDelta(ID, "a"), engine_events.ResponseEnded(ID), tools=[tool], capabilities=ALL)
    [echo] = dialogue.events[-1]["response"]["tools"]
    assert echo["container"] == {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}}
    assert not any("secret-1" in str(event) for event in dialogue.events)
    assert not any(b"secret-1" in record.body for record in dialogue.kept)


def test_secrets_of_an_mcp_server_are_neither_shown_nor_stored():
    tool = tools.McpTool(server_label="s", server_url="https://s.example/mcp", authorization="secret-1", headers={"x-key": "secret-2"})
    dialogue = talk_with(engine_events.TextDelta(ID, "a"), engine_events.ResponseEnded(ID), tools=[tool], capabilities=ALL_WITH_MCP)
    [echo] = dialogue.events[-1]["response"]["tools"]
    assert echo["headers"] is None and echo["require_approval"] == "always" and "authorization" not in echo
    assert not any("secret" in str(event) for event in dialogue.events)
    assert not any(b"secret" in record.body for record in dialogue.kept)
