"""The errors for unreadable JSON."""

import pytest

from antiphon.errors import ClientError
from antiphon.wire.minicpmo.client_events import decode_client as decode_minicpmo
from antiphon.wire.realtime.client_events import decode_client as decode_realtime
from antiphon.wire.responses.request import decode_request
from antiphon.wire.responses.websocket import decode_envelope

HIGH, LOW = "\\ud83d", "\\ude00"
FAULTS = {
    "a lone high surrogate": ('{"type":"@"}', HIGH, 9, f"'{HIGH}' is half of a surrogate pair"),
    "followed by a letter": ('{"type":"@abcdefghijkl"}', HIGH, 9, f"'{HIGH}' is half of a surrogate pair"),
    "followed by another": ('{"type":"@abcdefghijkl"}', HIGH + HIGH, 9, f"'{HIGH}' is half of a surrogate pair"),
    "a lone low surrogate": ('{"type":"@"}', LOW, 9, f"'{LOW}' is half of a surrogate pair"),
    "behind a pair": ('{"type":"@"}', HIGH + LOW + LOW, 21, f"'{LOW}' is half of a surrogate pair"),
    "behind a backslash": ('{"type":"@"}', "\\\\" + HIGH, 11, f"'{HIGH}' is half of a surrogate pair"),
    "in a name": ('{"@":"x"}', HIGH, 2, f"'{HIGH}' is half of a surrogate pair"),
    "in a nested value": ('{"type":"x","input":[{"role":"@"}]}', HIGH, 30, f"'{HIGH}' is half of a surrogate pair"),
}
READERS = {
    "http": decode_request,
    "websocket": decode_envelope,
    "realtime": decode_realtime,
    "minicpmo": lambda raw: decode_minicpmo(raw, "chat"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("frame", "text", "position", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_broken_character_is_named_with_its_place(read, frame, text, position, reason):
    with pytest.raises(ClientError) as refusal:
        read(frame.replace("@", text).encode())
    assert reason in refusal.value.message
    assert f"(byte {position})" in refusal.value.message


@pytest.mark.parametrize("name", ["websocket", "realtime", "minicpmo"])
def test_an_event_nested_too_deep_is_not_called_the_body_of_a_request(name):
    nested = b"[" * 70 + b"]" * 70
    with pytest.raises(ClientError) as refusal:
        READERS[name](b'{"type":"input.append","input":{"messages":%b},"session":%b}' % (nested, nested))
    assert refusal.value.code == "invalid_json"
    assert refusal.value.message == "Invalid JSON: it is nested more than 64 levels deep."


# A WebSocket is closed for it (RFC 6455 8.1).
@pytest.mark.parametrize(("body", "position"), [(b'{"model":"\xff"}', 10), (b'{"model":"x","input":[{"role":"\xc3("}]}', 31)])
def test_a_body_that_is_no_utf_8_is_told_where_it_stops_being_so(body, position):
    with pytest.raises(ClientError, match=rf"not valid UTF-8 \(byte {position}\)"):
        decode_request(body)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("frame", "reason"), [(b"", "it is empty"), (b" ", "it is empty"), (b'{"type":"\\\\ud800', "truncated")])
def test_json_without_its_end_is_not_called_anything_else(read, frame, reason):
    with pytest.raises(ClientError, match=reason):
        read(frame)
