"""The words between protocols and engines, as far as they look after themselves."""

import pytest
from msgspec import msgpack, structs

from antiphon.engine_api import events

MOST = events.MAX_TOKENS


@pytest.mark.parametrize(("claimed", "counted"), [(-1, 0), (-(10**18), 0), (0, 0), (7, 7), (MOST, MOST), (MOST + 1, MOST), (10**400, MOST)])
def test_tokens_that_no_answer_has_are_not_counted(claimed, counted):
    """Lying upstreams: claimed to be negative, the tokens of an answer gave a key back what it had used."""
    used = events.Usage(id="r", input_tokens=claimed, output_tokens=claimed, cached_tokens=claimed)
    assert (used.input_tokens, used.output_tokens, used.cached_tokens, used.reasoning_tokens) == (counted, counted, counted, 0)
    assert structs.replace(used, input_audio_tokens=claimed).input_audio_tokens == counted
    heard = events.InputTranscriptDone(id="t", transcript="", input_tokens=claimed, output_tokens=claimed)
    assert (heard.input_tokens, heard.output_tokens) == (counted, counted)


def test_tokens_that_come_over_a_link_are_looked_at_too():
    packed = msgpack.encode({"word": "Usage", "id": "r", "input_tokens": -5, "output_tokens": 2**63})
    assert msgpack.decode(packed, type=events.Usage) == events.Usage(id="r", input_tokens=0, output_tokens=MOST)
