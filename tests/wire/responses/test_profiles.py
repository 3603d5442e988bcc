import json

import pytest
from msgspec import structs

from antiphon.wire.codec.types import Extra, Unknown
from antiphon.wire.responses.events import (
    UNNUMBERED_EVENTS,
    ErrorEvent,
    OutputTextDelta,
    ReasoningTextDelta,
    ReasoningTextDone,
    StreamEvent,
    decode_event,
    encode_event,
    error_event,
)
from antiphon.wire.responses.hosted_calls import McpCall, McpToolExecutionError
from antiphon.wire.responses.profiles import PROFILES, EventEncoder, Profile
from antiphon.wire.responses.response import Response
from support.wire.our_samples import alternatives, samples

OPENAI = EventEncoder(PROFILES["openai"])
OPEN_RESPONSES = EventEncoder(PROFILES["open-responses"])
DELTA = OutputTextDelta(sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta="Hi")
ERROR = error_event(9, message="Overloaded.", type="server_error")


def framed(encoding, *events):
    buffer = bytearray()
    encoding.encode_sse_into(events, buffer)
    return bytes(buffer)


@pytest.mark.parametrize("kind", alternatives(StreamEvent), ids=lambda kind: kind.__name__)
def test_an_event_is_framed_on_two_lines(kind):
    for event in samples(kind):
        if isinstance(event, UNNUMBERED_EVENTS):
            assert framed(OPENAI, event) == framed(OPEN_RESPONSES, event) == b""
            continue
        name, line, *rest = framed(OPENAI, event).split(b"\n")
        assert rest == [b"", b""]
        assert name == b"event: " + event.type.encode()
        assert line == b"data: " + encode_event(event)


def test_events_are_appended_to_what_is_there():
    once = framed(OPENAI, DELTA)
    assert framed(OPENAI, DELTA, DELTA, DELTA) == once * 3


def test_unknown_events_and_fields_are_framed_as_they_came():
    events = [Unknown(extra=Extra({"type": "acme:tick", "sequence_number": 1})), decode_event(encode_event(DELTA)[:-1] + b',"acme:x":1}')]
    assert framed(OPENAI, *events) == (
        b'event: acme:tick\ndata: {"type":"acme:tick","sequence_number":1}\n\n'
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","acme:x":1,"sequence_number":4,"item_id":"msg_1",'
        b'"output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}\n\n'
    )


def test_the_name_of_an_unknown_event_stays_on_its_line():
    event = Unknown(extra=Extra({"type": "acme:x\n\ndata: forged"}))
    assert framed(OPENAI, event).startswith(b"event: acme:x data: forged\ndata: {")


def test_open_responses_has_its_own_names_for_raw_reasoning():
    place = {"sequence_number": 1, "item_id": "rs_1", "output_index": 0, "content_index": 0}
    written = framed(OPEN_RESPONSES, ReasoningTextDelta(delta="Hm", **place), ReasoningTextDone(text="Hm", **place))
    assert written.startswith(b'event: response.reasoning.delta\ndata: {"type":"response.reasoning.delta","sequence_number":1,')
    assert b'event: response.reasoning.done\ndata: {"type":"response.reasoning.done",' in written


def test_only_open_responses_ends_with_done():
    assert (OPENAI.stream_end, OPEN_RESPONSES.stream_end) == (b"", b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("shape", "keys"), [("both", {"code", "message", "param", "error"}), ("flat", {"code", "message", "param"}), ("nested", {"error"})]
)
def test_an_error_has_the_shape_of_the_profile(shape, keys):
    written = EventEncoder(Profile("some", error_shape=shape)).encode_json(ERROR)
    assert json.loads(written).keys() == {"type", "sequence_number"} | keys
    assert ERROR.message == "Overloaded."


def test_an_error_of_one_shape_keeps_what_it_says():
    flat = ErrorEvent(sequence_number=1, message="Overloaded.")
    assert json.loads(OPEN_RESPONSES.encode_json(flat))["message"] == "Overloaded."


def test_a_profile_may_call_every_event_a_message():
    assert framed(EventEncoder(Profile("some", event_line="message")), DELTA).startswith(b"event: message\ndata: {")


def test_a_socket_gets_the_event_alone():
    assert OPENAI.encode_json(DELTA) == encode_event(DELTA)


def test_eugpt_tells_in_words_why_a_call_failed():
    error = McpToolExecutionError(content=[{"type": "text", "text": "The function failed: no such city"}])
    call = McpCall(id="mcp_1", arguments="{}", name="f", server_label="s", error=error, status="failed")
    response = structs.replace(next(iter(samples(Response))), output=[call])
    [shown] = json.loads(EventEncoder(PROFILES["eugpt"]).encode_response(response))["tool_calls"]
    assert (shown["status"], shown["output"]) == ("failed", "The function failed: no such city")
