"""A client that sends first and reads later, over one small socket."""

import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_socket import PING, TEXT, Client, frame
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted"}})) as base_url:
        yield base_url


def say(**event):
    return frame(TEXT, json.dumps(event).encode())


def item(id, text):
    return {"id": id, "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def told(client, kind):
    """The next event of that kind."""
    while True:
        frame_kind, text = client.next()
        if frame_kind != PING and (event := json.loads(text))["type"] == kind:
            return event


@pytest.mark.parametrize(("count", "size"), [(2000, 300), (20, 100_000)])
def test_many_items_at_once_are_all_acknowledged_in_their_order(url, count, size):
    with Client(url, "/v1/realtime?model=parrot", receive_buffer_bytes=4096) as client:
        client.send(*[say(type="conversation.item.create", item=item(f"i{number}", "x" * size)) for number in range(count)])
        assert [told(client, "conversation.item.done")["item"]["id"] for _ in range(count)] == [f"i{number}" for number in range(count)]
        client.close()


def test_a_flood_of_requests_for_a_long_item_is_answered_in_full(url):
    with Client(url, "/v1/realtime?model=parrot", receive_buffer_bytes=4096) as client:
        client.send(say(type="conversation.item.create", item=item("long", "x" * 500_000)))
        client.send(*[say(type="conversation.item.retrieve", item_id="long")] * 30)
        for _ in range(30):
            assert told(client, "conversation.item.retrieved")["item"]["id"] == "long"
        client.close()
