"""Whatever comes in a frame, it is read or refused; and what was read is written so that it reads the same. In both dialects."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.wire.realtime.client_events import ClientEvent, find_event_id
from antiphon.wire.realtime.dialects import DIALECTS
from antiphon.wire.realtime.server_events import ServerEvent
from support.wire.our_samples import alternatives, samples

TYPES = [
    "message",
    "function_call",
    "input_text",
    "text",
    "audio",
    "realtime",
    "server_vad",
    "audio/pcm",
    "session.update",
    "response.create",
]
NAMES = st.sampled_from(
    ["type", "session", "item", "response", "audio", "content", "role", "id", "text", "tools", "input", "event_id", "a"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(TYPES)
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)
FORGED = JSON | st.dictionaries(st.sampled_from(["\x7fextra", "type"]), st.sampled_from([0, "\x7funknown", None]))


def own(union: Any, encode: Any) -> list[Any]:
    """JSON of our own events: one of each kind with little in it, one with all."""
    written = [encode(event) for kind in alternatives(union) for event in samples(kind)[:2]]
    return [json.loads(each) for each in written if each is not None]


SIDES = {
    f"{dialect.name} {side}": (decode, encode, own(union, encode))
    for dialect in DIALECTS.values()
    for side, decode, encode, union in (
        ("client", dialect.decode_client, dialect.encode_client, ClientEvent),
        ("server", dialect.decode_server, dialect.encode_server, ServerEvent),
    )
}
each_side = pytest.mark.parametrize("side", SIDES)


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


def read_or_refuse(side: str, frame: bytes) -> None:
    decode, encode, _ = SIDES[side]
    find_event_id(frame)
    try:
        event = decode(frame)
    except ClientError as mistake:
        assert (mistake.status, mistake.type) == (400, "invalid_request_error")
        assert len(mistake.message) < 4000
        return
    written = encode(event)
    json.loads(written)
    assert b"\n" not in written
    assert encode(decode(written)) == written


@each_side
@given(frame=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_frame_is_read_or_refused(side, frame):
    read_or_refuse(side, frame)


@each_side
@given(draw=st.data(), by=FORGED)
def test_an_event_with_anything_somewhere_in_it_is_read_or_refused(side, draw, by):
    event = draw.draw(st.sampled_from(SIDES[side][2]))
    place = draw.draw(st.sampled_from(places(event)))
    read_or_refuse(side, json.dumps(changed(event, place, by)).encode())


@each_side
@given(draw=st.data(), cut=st.integers(min_value=0), by=st.binary(max_size=3))
def test_an_event_with_some_bytes_lost_or_changed_is_read_or_refused(side, draw, cut, by):
    frame = json.dumps(draw.draw(st.sampled_from(SIDES[side][2]))).encode()
    at = cut % len(frame)
    read_or_refuse(side, frame[:at] + by + frame[at + 1 :])
