"""The size of JSON, measured before it is decoded."""

import json
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.wire.codec import structure
from antiphon.wire.codec.structure import DEPTH_LIMIT, EXACT_LIMIT_BYTES, check_depth, check_event_structure, check_structure

AWKWARD_TEXT = st.text('[]{}",\\a')
JSON_VALUES = st.recursive(
    AWKWARD_TEXT | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(AWKWARD_TEXT, inner), max_leaves=60
)


def nested(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


def children(value):
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def depth(value):
    return 1 + max(map(depth, children(value)), default=0) if isinstance(value, dict | list) else 0


def value_count(value):
    """The values in all objects and arrays together, an empty one counted as if it had one."""
    if not isinstance(value, dict | list):
        return 0
    return max(1, len(value)) + sum(map(value_count, children(value)))


def test_sixty_four_levels_are_as_deep_as_it_goes():
    check_depth(nested(64))
    for body in (nested(65), nested(65, "[", "]"), nested(33, '[{"a":', "}]"), nested(65, '{"}":[1],"a":', ',"b":"{"}')):
        with pytest.raises(ClientError, match="nested more than 64 levels deep"):
            check_depth(body)


def test_a_wide_body_is_not_a_deep_one():
    check_depth(json.dumps([{"a": [{}, [], {"b": []}]}] * 1000).encode())
    check_depth(json.dumps(["{" * 100, '\\"[' * 100, "]" * 100]).encode())


@given(JSON_VALUES, st.integers(50, 70), st.integers(1, 40))
def test_depth_is_counted_as_it_is(value, more, chunk_bytes):
    for _ in range(more):
        value = [value]
    body = json.dumps(value).encode()
    with mock.patch.object(structure, "CHUNK_BYTES", chunk_bytes):
        if depth(value) <= DEPTH_LIMIT:
            check_depth(body)
        else:
            with pytest.raises(ClientError):
                check_depth(body)


@given(JSON_VALUES, st.integers(1, 40))
def test_values_are_counted_as_they_are_wherever_the_chunks_end(value, chunk_bytes):
    body = json.dumps(value, ensure_ascii=False).encode()
    with mock.patch.object(structure, "CHUNK_BYTES", chunk_bytes):
        check_structure(body, value_count(value))
        if value_count(value):
            with pytest.raises(ClientError) as refusal:
                check_structure(body, value_count(value) - 1)
            assert (refusal.value.status, refusal.value.code) == (413, "request_too_large")


@given(st.binary() | st.text('[]{}"\\,:1', max_size=300).map(str.encode))
def test_anything_can_be_checked(body):
    for text in (body, body * 70):
        try:
            check_structure(text, 100)
        except ClientError as error:
            assert error.code in (None, "request_too_large")


def test_text_is_no_value_however_long():
    check_structure(json.dumps({"a": "{[,]}" * 100_000, "b": '\\",' * 100_000}).encode(), 2)


def test_text_that_is_nothing_but_quotes_is_not_read_to_its_end():
    with pytest.raises(ClientError, match="too many JSON values: the limit is 1,000"):
        check_structure(b'"' * 1_000_000, 1000)


def test_an_event_may_have_twenty_thousand_values():
    check_event_structure(json.dumps(list(range(20_000))).encode())
    with pytest.raises(ClientError, match="the limit is 20,000"):
        check_event_structure(json.dumps(list(range(20_001))).encode())


def test_commas_in_an_events_text_count_only_where_it_is_very_long():
    check_event_structure(json.dumps({"text": "," * 100_000}).encode())
    with pytest.raises(ClientError):
        check_event_structure(json.dumps({"text": "," * EXACT_LIMIT_BYTES}).encode())
    check_event_structure(json.dumps({"audio": "A" * (8 << 20)}).encode())
