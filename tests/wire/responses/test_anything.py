"""Whatever comes, it is read or refused; and what was read is written so that it reads the same."""

import json
from typing import Any

import openai.types.responses as original
import pytest
from hypothesis import given, strategies as st
from openai.types.responses.responses_client_event import ResponsesClientEvent

from antiphon.errors import ClientError
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.events import decode_event
from antiphon.wire.responses.items import decode_item
from antiphon.wire.responses.request import decode_request
from antiphon.wire.responses.response import decode_response
from antiphon.wire.responses.tools import decode_tool
from support.wire.openai_samples import samples

REQUESTS = [{name: value for name, value in sample.items() if name != "type"} for sample in samples(ResponsesClientEvent, False)[:60]]
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "request": (decode_request, REQUESTS),
    "item": (decode_item, list(samples(original.ResponseInputItem, True))),
    "tool": (decode_tool, list(samples(original.Tool, True))),
    "event": (decode_event, list(samples(original.ResponseStreamEvent, True))),
    "response": (decode_response, list(samples(original.Response, True))),
}
NAMES = st.sampled_from(["type", "role", "content", "id", "text", "tools", "input", "output", "a"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["message", "function"])
)


def values(names: Any, leaves: Any) -> Any:
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12)


JSON = values(NAMES, LEAVES)
FORGED = values(NAMES | st.just("\x7fextra"), LEAVES | st.just("\x7funknown") | st.just(0))
each_kind = pytest.mark.parametrize("kind", KINDS)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that stands within a value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, member in members for place in places(member, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """A value with something else at `path`."""
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], by)
    return copy


def read_or_refuse(decode: Any, body: bytes) -> None:
    try:
        message = decode(body)
    except ClientError as mistake:
        assert mistake.status == 400
        return
    written = encode(message)
    assert b"\n" not in written
    assert decode(written) == message


@each_kind
@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_is_read_or_refused(kind, body):
    read_or_refuse(KINDS[kind][0], body)


@each_kind
@given(draw=st.data(), by=JSON)
def test_a_message_with_anything_somewhere_in_it_is_read_or_refused(kind, draw, by):
    decode, messages = KINDS[kind]
    message = draw.draw(st.sampled_from(messages))
    place = draw.draw(st.sampled_from(places(message)))
    read_or_refuse(decode, json.dumps(changed(message, place, by)).encode())


@each_kind
@given(draw=st.data(), by=FORGED)
def test_forged_markers_leave_valid_json(kind, draw, by):
    decode, messages = KINDS[kind]
    message = draw.draw(st.sampled_from(messages))
    place = draw.draw(st.sampled_from(places(message)))
    try:
        json.loads(encode(decode(json.dumps(changed(message, place, by)).encode())))
    except ClientError as mistake:
        assert mistake.status == 400
