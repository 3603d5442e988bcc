import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.socket import ResponseCreate, ResponseSteer, SteerMessage, decode_client_event


def test_a_request_is_a_message_with_a_lane():
    body = {"type": "response.create", "model": "m", "input": "Hello", "generate": False, "stream_id": "a.1", "client_metadata": {"x": 1}}
    event = decode_client_event(json.dumps(body).encode())
    assert isinstance(event, ResponseCreate)
    assert (event.model, event.generate, event.stream_id) == ("m", False, "a.1")
    assert json.loads(encode(event)) == body


def test_an_empty_request_is_written_as_its_type_alone():
    assert encode(ResponseCreate()) == b'{"type":"response.create"}'


def test_steering_brings_more_input():
    event = decode_client_event(
        b'{"type":"response.steer","previous_response_id":"resp_1","input":[{"type":"message","role":"user","content":"Stop."}]}'
    )
    assert event == ResponseSteer(previous_response_id="resp_1", input=[SteerMessage(role="user", content="Stop.")])


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "type", "missing_required_parameter"),
        ({"type": "response.stop"}, None, "invalid_value"),
        ({"type": "response.create", "stream_id": ""}, "stream_id", "empty_string"),
        ({"type": "response.create", "stream_id": "a" * 257}, "stream_id", "string_above_max_length"),
        ({"type": "response.create", "stream_id": "a b"}, "stream_id", "invalid_value"),
        (
            {"type": "response.create", "reasoning": {"summary": "auto", "generate_summary": "auto"}},
            "reasoning.generate_summary",
            "mutually_exclusive_parameters",
        ),
    ],
)
def test_a_wrong_message_is_named(body, param, code):
    with pytest.raises(ClientError) as caught:
        decode_client_event(json.dumps(body).encode())
    assert (caught.value.param, caught.value.code) == (param, code)
