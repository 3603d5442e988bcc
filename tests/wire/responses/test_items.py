import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses.items import FunctionCall, FunctionCallOutput, Message, decode_item, encode_item
from antiphon.wire.responses.parts import OutputText


def test_an_unknown_item_survives_unchanged():
    body = b'{"type":"acme:thing","id":"t_1","score":1.50,"parts":[{"type":"text","n":1e3}]}'
    item = decode_item(body)
    assert isinstance(item, Unknown)
    assert item.type == "acme:thing"
    assert encode_item(item) == body


def test_unknown_fields_of_a_known_item_survive():
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "acme:cost": {"eur": 0.25}}
    read = decode_item(json.dumps(item).encode())
    assert isinstance(read, FunctionCall)
    assert read.extra == {"acme:cost": {"eur": 0.25}}
    assert json.loads(encode_item(read)) == item


def test_unknown_fields_of_a_part_survive():
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a", "acme:lang": "en"}]}
    assert json.loads(encode_item(decode_item(json.dumps(item).encode()))) == item


def test_annotations_are_never_null():
    body = b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":null}]}'
    message = decode_item(body)
    assert message == Message(role="assistant", content=[OutputText(text="a", annotations=[])])
    assert b'"annotations":[]' in encode_item(message)


def test_annotations_may_be_left_out():
    body = b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]}'
    assert b'"annotations":[]' in encode_item(decode_item(body))


def test_the_status_of_a_function_call_is_optional():
    call = decode_item(b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}')
    assert b"status" not in encode_item(call)


def test_what_a_function_gave_is_text_or_parts():
    assert decode_item(b'{"type":"function_call_output","output":"4"}') == FunctionCallOutput(output="4")
    assert decode_item(b'{"type":"function_call_output","output":[]}') == FunctionCallOutput(output=[])


def test_the_path_of_a_mistake_begins_where_the_item_stands():
    with pytest.raises(ClientError) as caught:
        decode_item(b'{"type":"function_call"}', "items[3]")
    assert caught.value.param == "items[3].arguments"


def test_an_item_that_says_nothing_is_a_message_without_content():
    with pytest.raises(ClientError, match=r"^Missing required parameter: 'item\.content'\.$"):
        decode_item(b"{}")
