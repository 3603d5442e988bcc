"""Stored events and responses with items that are not quite the original's, as model servers send them."""

import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.codec.types import Extra, Unknown
from antiphon.wire.responses import events
from antiphon.wire.responses.items import Message
from antiphon.wire.responses.profiles import ENCODERS, JournalEncoder, read_journal
from antiphon.wire.responses.response import read_response

BARE = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}  # without `action`, as the original's own are added
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
RESPONSE = {"id": "resp_1", "created_at": 1, "model": "m", "output": [BARE, MESSAGE], "parallel_tool_calls": True}
RESPONSE |= {"tool_choice": "auto", "tools": [], "object": "response", "status": "completed"}


def read_event(**fields):
    (event,) = read_journal(b"data: %b\n\n" % json.dumps(fields).encode())
    return event


def test_an_item_that_lacks_a_field_stays_as_it_is():
    added = read_event(type="response.output_item.added", sequence_number=2, output_index=0, item=BARE)
    assert isinstance(added, events.OutputItemAdded) and isinstance(added.item, Unknown) and dict(added.item.extra) == BARE
    done = read_event(type="response.completed", sequence_number=3, response=RESPONSE)
    assert isinstance(done, events.ResponseCompleted) and done.sequence_number == 3
    for response in (done.response, read_response(json.dumps(RESPONSE).encode())):
        bare, message = response.output
        assert isinstance(bare, Unknown) and bare.type == "web_search_call" and isinstance(message, Message)


def test_an_event_that_can_not_be_read_at_all_is_unknown():
    body = {"type": "response.web_search_call.searching", "output_index": 0}
    event = read_event(**body)
    assert isinstance(event, Unknown) and dict(event.extra) == body


def test_a_response_that_lacks_more_is_refused():
    with pytest.raises(ClientError):
        read_response(json.dumps({"id": "resp_1", "output": []}).encode())


@pytest.mark.parametrize("name", ENCODERS)
def test_every_profile_shows_a_stored_response_with_such_an_item(name):
    ENCODERS[name].encode_body(json.dumps(RESPONSE).encode())
    body = bytearray()
    added = events.OutputItemAdded(sequence_number=0, output_index=0, item=Unknown(extra=Extra(BARE)))
    JournalEncoder().encode_sse_into([added], body)
    shown = bytearray()
    ENCODERS[name].stream().encode_sse_into(read_journal(bytes(body)), shown)
    assert (b"web_search_call" in shown) == (name != "eugpt")
