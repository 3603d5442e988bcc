import json

from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses.events import (
    ErrorEvent,
    OutputItemAdded,
    OutputTextDelta,
    OutputTextDone,
    decode_event,
    encode_event,
    error_event,
)

DELTA = {
    "type": "response.output_text.delta",
    "sequence_number": 4,
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
}


def test_fields_stand_in_the_order_of_the_original():
    event = OutputTextDelta(sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta="Hi", obfuscation="x")
    assert encode_event(event) == (
        b'{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,'
        b'"delta":"Hi","logprobs":[],"obfuscation":"x"}'
    )


def test_log_probabilities_are_always_an_array():
    for missing in ({}, {"logprobs": None}):
        event = decode_event(json.dumps(DELTA | missing).encode())
        assert isinstance(event, OutputTextDelta)
        assert event.logprobs == []
    done = OutputTextDone(sequence_number=5, item_id="msg_1", output_index=0, content_index=0, text="Hi")
    assert json.loads(encode_event(done))["logprobs"] == []


def test_an_unknown_event_survives_unchanged():
    body = b'{"type":"acme:tick","sequence_number":3,"at":1.50}'
    event = decode_event(body)
    assert isinstance(event, Unknown)
    assert encode_event(event) == body


def test_an_unknown_item_within_an_event_survives():
    body = {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {"type": "acme:thing", "id": "t_1"}}
    event = decode_event(json.dumps(body).encode())
    assert isinstance(event, OutputItemAdded)
    assert isinstance(event.item, Unknown)
    assert json.loads(encode_event(event)) == body


def test_unknown_fields_of_an_event_survive():
    body = DELTA | {"logprobs": [], "acme:x": [1]}
    assert json.loads(encode_event(decode_event(json.dumps(body).encode()))) == body


def test_an_error_is_told_in_both_shapes():
    event = error_event(9, message="Overloaded.", type="server_error", code="server_error")
    assert json.loads(encode_event(event)) == {
        "type": "error",
        "sequence_number": 9,
        "code": "server_error",
        "message": "Overloaded.",
        "param": None,
        "error": {"type": "server_error", "code": "server_error", "message": "Overloaded.", "param": None},
    }


def test_an_error_is_read_in_either_shape():
    flat = decode_event(b'{"type":"error","sequence_number":1,"code":null,"message":"m","param":null}')
    nested = decode_event(b'{"type":"error","status":400,"error":{"type":"t","code":"c","message":"m","param":null}}')
    assert isinstance(flat, ErrorEvent)
    assert isinstance(nested, ErrorEvent)
    assert flat.message == nested.error.message == "m"
