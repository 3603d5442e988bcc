import json

from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses.response import Response, ResponseReasoning, decode_response, encode_response

LEAST = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


def test_the_least_response_is_written_without_more():
    response = Response(id="resp_1", created_at=1, model="m", output=[], parallel_tool_calls=True, tool_choice="auto", tools=[])
    assert json.loads(encode_response(response)) == LEAST
    assert decode_response(encode_response(response)) == response


def test_seconds_stay_whole():
    assert b'"created_at":1,' in encode_response(decode_response(json.dumps(LEAST).encode()))


def test_reasoning_always_tells_effort_and_summary():
    response = decode_response(json.dumps(LEAST | {"reasoning": {}}).encode())
    assert response.reasoning == ResponseReasoning()
    assert json.loads(encode_response(response))["reasoning"] == {"effort": None, "summary": None}


def test_unknown_items_tools_and_fields_survive():
    body = LEAST | {
        "output": [
            {"type": "acme:thing", "id": "t_1"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "acme:x": 1},
        ],
        "tools": [{"type": "acme:oven"}],
        "acme:cost": [1.5],
        "billing": {"payer": "developer"},
    }
    response = decode_response(json.dumps(body).encode())
    assert isinstance(response.output[0], Unknown)
    assert isinstance(response.tools[0], Unknown)
    assert json.loads(encode_response(response)) == body


def test_what_the_original_lacks_is_known():
    body = LEAST | {"presence_penalty": 0.5, "frequency_penalty": 0.0, "store": True}
    response = decode_response(json.dumps(body).encode())
    assert (response.presence_penalty, response.frequency_penalty, response.store) == (0.5, 0.0, True)


def test_the_text_of_a_response_is_that_of_its_messages_without_refusals():
    parts = [{"type": "output_text", "text": "A "}, {"type": "refusal", "refusal": "No."}, {"type": "output_text", "text": "fugue."}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = [{"type": "message", "role": "assistant", "content": parts}, call, {"type": "acme:thing"}]
    response = decode_response(json.dumps(LEAST | {"output": output}).encode())
    assert response.output_text == "A fugue."
    assert [call.name for call in response.function_calls] == ["f"]
    assert json.loads(encode_response(response)).keys() == LEAST.keys()
