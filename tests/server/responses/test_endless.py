"""An upstream whose answer never ends."""

import json
import urllib.request

import pytest
from openai.types.responses import Response as TheirResponse

from antiphon.server.processes.run import background_server
from support.engines.upstreams import STREAM_HEAD, chunk, event
from support.server.plain_http import events_in, post
from support.server.raw_upstream import playing, until_left
from support.server.scripted_server import configured


def said(event):
    return b"data: " + json.dumps(event).encode() + b"\n\n"


ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
BEGUN = said({"type": "response.output_item.added", "output_index": 0, "item": ITEM})
DELTA = said({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "a"})


def endless(begun, data):
    async def play(writer):
        writer.write(STREAM_HEAD + chunk(begun or b":\n\n"))
        while True:
            writer.write(chunk(data * 50))
            await writer.drain()

    return play


@pytest.mark.parametrize(
    ("engine", "begun", "data", "limit", "words"),
    [
        ("chat", b"", event("a"), {"max_response_events": 700}, 700),
        ("chat", b"", event("a" * 1000), {"max_response_bytes": 300_000}, None),
        ("responses", BEGUN, DELTA, {"max_response_events": 701}, 700),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_endless_answer_is_incomplete_as_at_the_token_limit(tmp_path, engine, begun, data, limit, words, stream):
    with playing(endless(begun, data)) as (upstream, server):
        options = {"engine": engine, "base_url": upstream, "retries": 0, **limit}
        with background_server(configured(tmp_path, {"m": options | ({"quirks": "generic"} if engine == "chat" else {})})) as base_url:
            status, _, body = post(base_url, {"model": "m", "input": "Hi", "stream": stream})
            assert status == 200
            response = events_in(body)[-1]["response"] if stream else json.loads(body)
            stored = json.loads(urllib.request.urlopen(f"{base_url}/v1/responses/{response['id']}").read())
            until_left(server)
    assert stored == response
    read = TheirResponse.model_validate(response)
    assert (read.status, read.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert read.output[0].status == "incomplete"
    assert set(read.output_text) == {"a"}
    assert words in (None, len(read.output_text))
    assert server.left == 1, "the upstream was hung up on"
