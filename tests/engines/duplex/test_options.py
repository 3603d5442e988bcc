"""What a client of full duplex asks for."""

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import Sampling
from antiphon.engines.duplex.options import DuplexOptions, parse_options

ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=3)
NAMES = ("temperature", "top_p", "top_k", "max_tokens", "force_listen_count", "generate_audio", "tts_enabled", "length_penalty", "x")


def test_what_is_known_is_honoured():
    asked = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_tokens": 64, "force_listen_count": 3, "generate_audio": True}
    assert parse_options(asked, Capabilities()) == DuplexOptions(
        sampling=Sampling(temperature=0.7, top_p=0.8, max_tokens=64, extra={"top_k": 20}), force_listen_count=3
    )


@pytest.mark.parametrize("name", ["generate_audio", "tts_enabled"])
def test_speech_can_be_declined(name):
    assert parse_options({name: False}, Capabilities()).is_text_only


def test_what_the_engine_cannot_do_is_named():
    assert parse_options({"temperature": 0.7, "ls_mode": "explicit"}, Capabilities(temperature=False)).unknown == ("ls_mode", "temperature")


@given(st.dictionaries(st.sampled_from(NAMES), ANY))
def test_whatever_is_asked_is_honoured_or_named(asked):
    wished = parse_options(asked, Capabilities())
    assert set(wished.unknown) <= set(asked)
    assert {"length_penalty", "x"} & set(asked) <= set(wished.unknown)
    assert 0 <= wished.force_listen_count <= 3600
    assert wished.sampling.temperature is None or 0 <= wished.sampling.temperature <= 2
