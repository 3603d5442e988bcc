import json

import msgspec
import pytest
from msgspec import UNSET

from antiphon.wire.codec.types import Extra, Unknown, encode
from antiphon.wire.responses.parts import InputText, SummaryText


def test_extra_fields_are_written_into_their_object():
    part = InputText(text="Hello", extra=Extra({"tone": "warm", "weight": 2}))
    assert encode(part) == b'{"type":"input_text","tone":"warm","weight":2,"text":"Hello"}'


def test_extra_fields_of_nested_objects_are_written_into_theirs():
    parts = [InputText(text="a", extra=Extra({"x": 1})), InputText(text="b"), {"c": SummaryText(text="c", extra=Extra({"x": []}))}]
    assert json.loads(encode(parts)) == [
        {"type": "input_text", "text": "a", "x": 1},
        {"type": "input_text", "text": "b"},
        {"c": {"type": "summary_text", "text": "c", "x": []}},
    ]


def test_no_extra_fields_leave_no_trace():
    assert encode(InputText(text="Hello", extra=Extra({}))) == b'{"type":"input_text","text":"Hello"}'


def test_extra_fields_keep_their_digits_and_lose_their_line_breaks():
    extra = Extra(
        {"big": msgspec.Raw(b"123456789012345678901234567890"), "precise": msgspec.Raw(b"1.50"), "spread": msgspec.Raw(b"[1,\n 2]")}
    )
    assert extra.json == b'{"big":123456789012345678901234567890,"precise":1.50,"spread":[1,2]}'
    assert dict(extra) == {"big": 123456789012345678901234567890, "precise": 1.5, "spread": [1, 2]}


def test_extra_fields_compare_as_mappings_do():
    assert Extra({"a": 1}) == Extra({"a": 1}) == {"a": 1}
    assert Extra({"a": 1}) != Extra({"a": 2})
    assert repr(Extra({"a": 1})) == "Extra({'a': 1})"


def test_an_unknown_object_is_written_as_it_came():
    thing = Unknown(extra=Extra({"id": "t_1", "type": "acme:thing", "parts": [{"type": "x"}]}))
    assert thing.type == "acme:thing"
    assert encode(thing) == thing.json == b'{"id":"t_1","type":"acme:thing","parts":[{"type":"x"}]}'


def test_a_type_tells_its_tag():
    assert InputText(text="Hello").type == "input_text"
    assert InputText(text="Hello").extra is UNSET


@pytest.mark.parametrize("text", ['"\x7fextra":0,', '{"type":"\x7funknown","\x7fextra":0}', "\x7f", '\\"\x7fextra\\":0,'])
def test_text_that_looks_like_a_marker_stays_text(text):
    part = InputText(text=text, extra=Extra({"also": text}))
    assert json.loads(encode(part)) == {"type": "input_text", "text": text, "also": text}


@pytest.mark.parametrize(
    "hostile", [{"\x7fextra": 0}, {"a": 1, "\x7fextra": 0}, {"\x7fextra": 0, "a": 1}, {"type": "\x7funknown", "\x7fextra": 0}]
)
def test_fields_named_like_a_marker_leave_valid_json(hostile):
    part = InputText(text="Hello", extra=Extra({"x": hostile} | hostile))
    assert json.loads(encode(part))["text"] == "Hello"


def test_what_is_not_of_the_wire_is_refused():
    with pytest.raises(NotImplementedError, match="object has no place on the wire"):
        encode(object())
