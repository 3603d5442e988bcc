"""Which way a chat reaches its engine."""

import json

import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.server.chat.prepare import choose_way
from antiphon.wire.chat.request import decode_chat_request

RELAYING = Capabilities(relays=("chat/completions", "embeddings"))
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "wav"}}


def request(**fields):
    return decode_chat_request(json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode())


@pytest.mark.parametrize(
    ("capabilities", "fields", "way"),
    [
        (Capabilities(), {}, "mapped"),
        (Capabilities(relays=("embeddings",)), {}, "mapped"),
        (RELAYING, {}, "relayed"),
        (RELAYING, {"n": 20, "stream": True, "tools": [], "top_k": 3}, "relayed"),
        (RELAYING, SPOKEN, "mapped"),
        (Capabilities(relays=RELAYING.relays, audio_out=True), SPOKEN, "relayed"),
    ],
)
def test_a_chat_goes_on_as_it_came_where_the_engine_takes_it_so_and_nothing_is_added(capabilities, fields, way):
    assert choose_way(capabilities, request(**fields)) == way
