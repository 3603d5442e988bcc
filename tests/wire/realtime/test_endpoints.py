"""What the endpoints for client secrets take and give."""

import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.realtime.endpoints import (
    decode_beta_session_request,
    decode_beta_transcription_request,
    decode_secret_request,
    encode_beta_session,
    encode_secret,
)
from antiphon.wire.realtime.session import Session, TranscriptionSession

ALL = (decode_secret_request, decode_beta_session_request, decode_beta_transcription_request)


@pytest.mark.parametrize("decode", ALL)
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"null", b'{"a":' * 100])
def test_what_is_no_request_is_refused(decode, body):
    with pytest.raises(ClientError):
        decode(body)


def test_what_is_left_out_is_as_usual():
    assert [decode(b"{}").lasts_s for decode in ALL] == [600, 60, 60]
    assert isinstance(decode_secret_request(b"{}").session, Session)
    assert isinstance(decode_beta_transcription_request(b"{}").session, TranscriptionSession)
    assert decode_secret_request(b'{"session": null, "expires_after": {"seconds": null}}').lasts_s == 600


def test_a_session_of_the_beta_is_the_same_as_one_of_today():
    today = b'{"session": {"type": "realtime", "output_modalities": ["text"], "audio": {"output": {"voice": "alloy"}}}}'
    then = b'{"modalities": ["text"], "voice": "alloy", "client_secret": {"expires_after": {"seconds": 600}}}'
    assert decode_secret_request(today) == decode_beta_session_request(then)


def test_a_secret_is_told_beside_its_session_and_in_the_beta_within_it():
    session = Session(model="parrot", output_modalities=["text"])
    assert json.loads(encode_secret("ek_1", 7, session)) == {
        "value": "ek_1",
        "expires_at": 7,
        "session": {"type": "realtime", "model": "parrot", "output_modalities": ["text"]},
    }
    told = json.loads(encode_beta_session("ek_1", 7, session))
    assert told == {"model": "parrot", "modalities": ["text"], "client_secret": {"value": "ek_1", "expires_at": 7}}
