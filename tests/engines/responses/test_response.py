"""What the responses engine makes of a server's events, whatever of them a server leaves out, repeats or mixes."""

import itertools
import json
import typing

import pytest
from hypothesis import given, settings, strategies as st
from openai.types.responses import ResponseStreamEvent

from antiphon.engine_api import events as engine_events
from antiphon.engine_api.options import FunctionTool
from antiphon.engines.responses.response import _EVENT_READERS, END_STATUSES, IGNORED_EVENTS, ResponsesResponseReader
from antiphon.errors import ApiError
from antiphon.protocols import output as machine
from antiphon.wire.codec.sse import SseParser
from support.engines.responses_events import (
    CALLED,
    ID,
    OPENING,
    SAID,
    SEEN,
    THOUGHT,
    USED,
    WHOLE,
    argument_deltas,
    call,
    event,
    frames,
    full_call,
    full_message,
    full_reasoning,
    message,
    opened,
    over,
    reasoning,
    shown,
    text_deltas,
    words_of,
)


def without(events, *types):
    return [each for each in events if each["type"].removeprefix("response.") not in types]


def bare(events, *keys):
    return [{key: value for key, value in each.items() if key not in keys} for each in events]


def renamed(events):
    """As servers do that make up a new id for each event."""
    return [each | ({"item_id": f"item_{number}"} if "item_id" in each else {}) for number, each in enumerate(events)]


WITHOUT_OUTPUT = [*WHOLE[:-1], over()]
DIALECTS = {
    "the original's": WHOLE,
    "with an empty final output": WITHOUT_OUTPUT,
    "only items that are done": [each for each in WHOLE if each["type"] in ("response.output_item.done", "response.completed")],
    "only the final output": [WHOLE[-1]],
    "no deltas": [each for each in WITHOUT_OUTPUT if not each["type"].endswith(".delta")],
    "no deltas and no parts": without([each for each in WITHOUT_OUTPUT if not each["type"].endswith(".delta")], "content_part.done"),
    "no wholes": [each for each in WITHOUT_OUTPUT if not each["type"].endswith("_text.done") and "arguments.done" not in each["type"]],
    "items that never begin": without(WITHOUT_OUTPUT, "output_item.added"),
    "items that never end": without(WHOLE, "output_item.done"),
    "no places": bare(WITHOUT_OUTPUT, "output_index", "content_index"),
    "a new id for each event": renamed(WITHOUT_OUTPUT),
    "a new id for each event, and items that never begin": renamed(without(WHOLE, "output_item.added")),
    "no ids": bare(WITHOUT_OUTPUT, "item_id"),
    "one place for all": [each | ({"output_index": 0} if "output_index" in each else {}) for each in WITHOUT_OUTPUT],
    "all at once": WHOLE[:2] + sorted(WHOLE[2:-1], key=lambda each: "done" in each["type"]) + [WHOLE[-1]],
    "ends before beginnings": WHOLE[:2] + sorted(WHOLE[2:-1], key=lambda each: "output_item.done" not in each["type"]) + [WHOLE[-1]],
    "deltas alone": [each for each in WHOLE if each["type"].endswith("text.delta") or each["type"] == "response.completed"],
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whatever_a_server_leaves_out_or_says_twice_each_thing_is_heard_once(dialect):
    words = words_of(DIALECTS[dialect], [FunctionTool("f")])
    assert sorted(shown(words), key=str) == sorted(SEEN, key=str)
    assert words[-2:] == [USED, engine_events.ResponseEnded(ID)]


@given(st.permutations(range(3)), st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_items_that_come_mixed_are_told_one_after_the_other(order, data):
    """Each item's events stay in order, but the items' events are interleaved in any way."""
    left = [full_reasoning("Let me see.", 0), full_message("Hello, you.", index=1), full_call("f", '{"x": 1}', 2)]
    mixed = []
    while any(left):
        chosen = data.draw(st.sampled_from([events for events in left if events]))
        mixed.append(chosen.pop(0))
    words = words_of([*OPENING, *mixed, over(output=[THOUGHT, SAID, CALLED])], [FunctionTool("f")])
    assert sorted(shown(words), key=str) == sorted(SEEN, key=str)


def test_text_goes_out_as_it_comes_while_a_server_never_says_that_its_reasoning_is_done():
    reading = ResponsesResponseReader(ID, {}, False)
    words = []
    thinking = event("reasoning_text.delta", item_id="rs_a", output_index=0, content_index=0, delta="Hm")
    reading.read([json.dumps(each).encode() for each in (thinking, *text_deltas("Hello", index=1))], words)
    assert [word.text for word in words if isinstance(word, engine_events.TextDelta)] == ["Hel", "lo"]


ENTIRE = frames(
    [
        *OPENING,
        *full_reasoning("Höm. 思", 0),
        *full_message("Héllo — 你好 🙂", index=1),
        *full_call("f", '{"x": "é"}', 2),
        {"type": "response.from_the_future", "sequence_number": 3},
        over(),
    ]
).encode()


@given(st.lists(st.integers(0, len(ENTIRE)), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_however_a_stream_is_cut_its_words_are_the_same(cuts, line_end):
    def read(pieces):
        parser, reading, words = SseParser(), ResponsesResponseReader(ID, {}, False), []
        for piece in pieces:
            if events := parser.feed(piece):
                reading.read(events, words)
        return words

    stream = ENTIRE.replace(b"\n", line_end)
    edges = sorted({0, *cuts, len(stream)})
    assert read([stream[start:end] for start, end in itertools.pairwise(edges)]) == read([ENTIRE])


PICTURE = {"type": "image_generation_call", "id": "ig_7", "status": "in_progress", "result": None}


THEIR_EVENTS = typing.get_args(typing.get_args(ResponseStreamEvent)[0])


@pytest.mark.parametrize("type", sorted(typing.get_args(kind.model_fields["type"].annotation)[0] for kind in THEIR_EVENTS))
def test_every_event_of_the_original_is_understood_or_passed_on_or_knowingly_skipped(type):
    if type in _EVENT_READERS or type in END_STATUSES or type in IGNORED_EVENTS or type == "error":
        return
    moved = {"type": type, "item_id": "ig_7", "output_index": 0, "sequence_number": 4, "delta": "x"}
    words = words_of([event("output_item.added", output_index=0, item=PICTURE), moved, over()])
    assert words[1:3] == [engine_events.HostedToolStarted(ID, PICTURE), engine_events.HostedToolProgress(ID, moved)]


ANYTHING = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.integers(0, 2),
    st.just({"type": "output_text", "text": "Hi", "annotations": [{"type": "file_path"}, 7], "logprobs": "none"}),
    st.lists(st.one_of(st.text(max_size=2), st.just({"type": "reasoning_text", "text": "Hm"}), st.just({"text": "S"})), max_size=2),
)
ANY_ITEM = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "web_search_call", "", None])},
        optional={
            key: ANYTHING
            for key in (
                "id",
                "call_id",
                "name",
                "namespace",
                "arguments",
                "input",
                "content",
                "summary",
                "encrypted_content",
                "status",
                "phase",
            )
        },
    ),
)
ANY_EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from([*sorted(_EVENT_READERS), "response.web_search_call.searching", "response.created"])},
    optional={
        "item_id": st.sampled_from([None, "msg_a", "fc_a", "rs_a"]),
        "output_index": st.sampled_from([None, 0, 1, 2]),
        "content_index": st.sampled_from([None, 0, 1]),
        "summary_index": st.sampled_from([None, 0, 1]),
        "name": st.sampled_from([None, "f"]),
        "item": ANY_ITEM,
        "part": ANYTHING,
        **{key: ANYTHING for key in ("delta", "text", "refusal", "arguments", "input", "annotation")},
    },
)


@given(st.lists(ANY_EVENT, max_size=12), st.lists(ANY_ITEM, max_size=3))
@settings(max_examples=2 * settings.default.max_examples)
def test_whatever_a_server_sends_is_an_answer_or_a_fault_of_its(events, output):
    try:
        words = words_of([*events, over(output=output)])
    except ApiError:
        return
    response = machine.OutputMachine(lambda prefix: f"{prefix}_1")
    last = [step for word in words for step in response.apply(word)][-1]
    assert (last.outcome, last.failure) == ("completed", None)


# Reasoning


@pytest.mark.parametrize("name", ["reasoning_text", "reasoning"])
def test_reasoning_goes_by_two_names_and_may_be_sealed(name):
    events = [*full_reasoning("Let me see.", name=name, encrypted_content="c2VhbA"), *full_message("Yes", index=1), over()]
    assert shown(words_of(events)) == [("reasoning", ("thinking", "Let me see."), "c2VhbA"), ("message", ("text", "Yes"))]


@pytest.mark.parametrize("name", ["reasoning_summary_text", "reasoning_summary"])
@pytest.mark.parametrize("has_parts", [True, False])
def test_the_parts_of_a_summary_stay_apart(name, has_parts):
    events = [event("output_item.added", output_index=0, item=opened(reasoning("")))]
    for index, text in enumerate(["One.", "Two."]):
        place = {"item_id": "rs_a", "output_index": 0, "summary_index": index}
        events += [event(f"{name}.delta", **place, delta=text), event(f"{name}.done", **place, text=text)]
        events += [event("reasoning_summary_part.done", **place, part={"type": "summary_text", "text": text})] if has_parts else []
    summary = [{"type": "summary_text", "text": text} for text in ("One.", "Two.")]
    events += [event("output_item.done", output_index=0, item={"type": "reasoning", "id": "rs_a", "summary": summary}), over()]
    assert shown(words_of(events)) == [("reasoning", ("summary", "One."), ("summary", "Two."))]


# Text


def test_log_probabilities_come_with_their_tokens():
    token = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": [{"token": "Ho", "logprob": -2.0}]}
    told = event("output_text.delta", item_id="msg_a", output_index=0, content_index=0, delta="Hi", logprobs=[token])
    heard = next(word for word in words_of([told, over()]) if isinstance(word, engine_events.TextDelta))
    assert heard.logprobs == (
        engine_events.TokenLogprob(
            engine_events.TokenCandidate("Hi", -0.1, (72, 105)), (engine_events.TokenCandidate("Ho", -2.0, (72, 111)),)
        ),
    )


@pytest.mark.parametrize("name", ["output_text.annotation.added", "output_text_annotation.added", None])
def test_a_citation_is_told_once(name):
    cited = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "T", "url": "http://u"}
    events = full_message("Hi", annotations=[cited])
    if name:
        events.insert(4, event(name, item_id="msg_a", output_index=0, content_index=0, annotation_index=0, annotation=cited))
    assert [word.annotation for word in words_of([*events, over()]) if isinstance(word, engine_events.AnnotationAdded)] == [cited]


def test_a_message_keeps_its_phase():
    events = full_message("Looking.") + full_message("Found.", "msg_b", 1)
    events[0]["item"]["phase"], events[-1]["item"]["phase"] = "commentary", "final_answer"
    phases = [word.phase for word in words_of([*events, over()]) if isinstance(word, engine_events.ItemBoundary) and word.phase]
    assert phases == ["commentary"], "what comes with the end comes too late"


def test_a_refusal_is_no_text():
    place = {"item_id": "msg_a", "output_index": 0, "content_index": 0}
    events = [event("refusal.delta", **place, delta="No"), event("refusal.done", **place, refusal="No way"), over()]
    assert shown(words_of(events)) == [("message", ("refusal", "No way"))]


# Calls


def test_a_custom_call_takes_text():
    whole = {"type": "custom_tool_call", "id": "ctc_a", "call_id": "call_c", "name": "apply_patch", "input": "*** Begin\n"}
    events = [
        event("output_item.added", output_index=0, item=opened(whole)),
        event("custom_tool_call_input.delta", item_id="ctc_a", output_index=0, delta="*** "),
        event("custom_tool_call_input.done", item_id="ctc_a", output_index=0, input="*** Begin\n"),
        event("output_item.done", output_index=0, item=whole),
        over(),
    ]
    words = words_of(events)
    assert words[1] == engine_events.ToolCallStarted(ID, "call_c", "apply_patch", custom=True)
    assert shown(words) == [("call", "call_c", "apply_patch", None, "*** Begin\n")]


@pytest.mark.parametrize(("name", "more"), [("gh__find", {}), ("find", {"namespace": "gh"})])
def test_a_call_says_its_tools_namespace_whichever_form_the_server_knows(name, more):
    tools = [FunctionTool("find", namespace="gh"), FunctionTool("find", namespace="hub")]
    words = words_of([*full_call(name, "{}", **more), over()], tools)
    assert shown(words) == [("call", "call_a", "find", "gh", "{}")]


def test_arguments_that_come_before_their_name_wait_for_it():
    events = [*argument_deltas('{"x":1}'), event("output_item.done", output_index=0, item=call("f", '{"x":1}')), over()]
    assert shown(words_of(events)) == [("call", "call_a", "f", None, '{"x":1}')]


def test_a_call_that_is_never_named_is_no_answer():
    with pytest.raises(ApiError, match="sent an invalid tool call: it has no name"):
        words_of([*argument_deltas('{"x":1}'), over()])


def test_two_calls_of_one_id_are_told_apart():
    events = [*full_call("f", "{}", 0, "fc_a"), *full_call("f", "{}", 1, "fc_b"), over()]
    first, second = shown(words_of(events))
    assert first[1] != second[1]


@pytest.mark.parametrize("has_output", [True, False])
def test_items_of_one_id_in_two_places_are_told_apart(has_output):
    told = [*full_message("A", "x", 0), *full_message("B", "x", 1), *full_call("f", "{}", 2, "x"), *full_call("g", "{}", 3, "x", "call_b")]
    output = [each["item"] for each in told if each["type"] == "response.output_item.done"] if has_output else ()
    items = shown(words_of([*told, over(output=output)]))
    assert [item[0] for item in items] == ["message", "message", "call", "call"]
    assert [item[2] for item in items[2:]] == ["f", "g"]


def test_a_call_without_arguments_has_an_empty_object():
    assert shown(words_of([*full_call("f", ""), over()])) == [("call", "call_a", "f", None, "{}")]


@pytest.mark.parametrize("delta", [rb"a\ud83d", b"a\xf0\x9f"])
def test_parts_of_characters_are_replaced(delta):
    written = b'{"type":"response.output_text.delta","item_id":"msg_a","output_index":0,"content_index":0,"delta":"%s"}' % delta
    words = []
    ResponsesResponseReader(ID, {}, False).read([written], words)
    assert words[-1] == engine_events.TextDelta(ID, "a\ufffd")


def test_an_event_nested_without_end_is_a_fault():
    with pytest.raises(ApiError, match="no event"):
        ResponsesResponseReader(ID, {}, False).read([b'{"type":"x","item":' + b"[" * 5000 + b"]" * 5000 + b"}"], [])


# Ids


def test_ids_are_theirs_where_that_is_wanted_and_each_only_once():
    events = [*full_message("A", "msg_x"), *full_call("f", "{}", 1, "fc x"), *full_message("B", "msg_y", 2), over()]
    wanted = [word.item_id for word in words_of(events, keeps_ids=True) if isinstance(word, engine_events.ItemBoundary) and word.item_id]
    assert wanted == ["msg_x", "msg_y"]
    assert not [word for word in words_of(events) if isinstance(word, engine_events.ItemBoundary) and word.item_id]


# Hosted tools


def test_what_a_hosted_tool_does_is_passed_on():
    search = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
    found = search | {"status": "completed", "action": {"type": "search", "query": "q"}}
    place = {"item_id": "ws_1", "output_index": 0}
    events = [
        event("output_item.added", output_index=0, item=search),
        event("web_search_call.searching", **place, sequence_number=3),
        event("output_item.done", output_index=0, item=found),
        *full_message("Found", index=1),
        over(output=[found, message("Found")]),
    ]
    words = words_of(events)
    assert words[1:4] == [
        engine_events.HostedToolStarted(ID, search),
        engine_events.HostedToolProgress(ID, events[1]),
        engine_events.HostedToolDone(ID, found),
    ]
    assert shown(words) == [("hosted", found), ("message", ("text", "Found"))]


def test_a_hosted_item_that_is_only_done_is_told_whole():
    found = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    assert shown(words_of([event("output_item.done", output_index=0, item=found), over()])) == [("hosted", found)]


# Ends


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (over(), "stop"),
        (over("incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
        (over("incomplete", incomplete_details={"reason": "length"}), "length"),
        (over("incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (over("incomplete"), "length"),
        (event("completed", response={"status": "incomplete"}), "length"),
        (over("cancelled"), "cancelled"),
    ],
)
def test_every_end_has_its_reason(last, reason):
    words = words_of([*text_deltas("Hi"), last])
    assert words[-1] == engine_events.ResponseEnded(ID, reason)


def test_what_was_cut_off_is_incomplete():
    half = message("Once") | {"status": "incomplete"}
    events = [*text_deltas("Once"), event("output_item.done", output_index=0, item=half), over("incomplete", [half])]
    response = machine.OutputMachine(lambda prefix: f"{prefix}_1")
    for word in words_of(events):
        response.apply(word)
    assert [item.status for item in response.items] == ["incomplete"]


@pytest.mark.parametrize(
    ("last", "status", "code"),
    [
        (event("failed", response={"status": "failed", "error": {"code": "server_error", "message": "boom"}}), 502, None),
        (event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "slow"}}), 429, "rate_limit_exceeded"),
        (event("failed", response={"error": {"code": "context_length_exceeded", "message": "long"}}), 400, "context_length_exceeded"),
        (event("failed", response={"error": {"code": "invalid_image", "message": "bad"}}), 400, "invalid_image"),
        ({"type": "error", "code": "server_error", "message": "flat", "param": None, "sequence_number": 2}, 502, None),
        ({"type": "error", "error": {"type": "server_error", "code": None, "message": "nested"}}, 502, None),
        ({"type": "response.error", "error": "words alone"}, 502, None),
        ({"error": {"message": "no type", "code": 503}}, 503, "server_is_overloaded"),
        ({"type": 5}, 502, "upstream_malformed"),
        (event("completed", response={"usage": "much"}), 502, "upstream_malformed"),
    ],
)
def test_a_failure_in_the_stream_is_told_as_what_it_is(last, status, code):
    reading, words = ResponsesResponseReader(ID, {}, False), []
    with pytest.raises(ApiError) as failure:
        reading.read([json.dumps(each).encode() for each in [*text_deltas("So far"), last]], words)
    assert failure.value.status == status
    assert code is None or failure.value.code == code
    assert [word.text for word in words if isinstance(word, engine_events.TextDelta)] == ["So ", "far"]
