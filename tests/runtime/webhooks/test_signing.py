"""Signatures that the official client accepts."""

import base64
import time

import openai
import pytest

from antiphon.config.webhooks import InvalidSecret, parse_secrets
from antiphon.runtime.webhooks.signing import new_secret, signed_headers

BODY = b'{"id":"evt_1","object":"event","created_at":1,"type":"response.completed","data":{"id":"resp_1"}}'


def test_a_signature_is_that_of_the_standards_example():
    # From the specification's reference libraries.
    headers = signed_headers(
        parse_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


def test_receivers_with_the_old_and_the_new_secret_accept_an_event():
    old, new, other = new_secret(), new_secret(), new_secret()
    client = openai.OpenAI(api_key="none")
    headers = signed_headers(parse_secrets(f"{new} {old}"), "wh_1", int(time.time()), BODY)
    for secret in (old, new):
        event = client.webhooks.unwrap(BODY, headers, secret=secret)
        assert event.type == "response.completed" and event.data.id == "resp_1"
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(BODY, headers, secret=other)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(BODY + b" ", headers, secret=new)


def secret_of(size):
    return "whsec_" + base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_!", base64.b64encode(bytes(32)).decode(), secret_of(23), secret_of(65), "whsec_ä"])
def test_what_is_no_secret_is_refused_without_showing_it(text):
    with pytest.raises(InvalidSecret) as error:
        parse_secrets(text)
    assert not text or text not in str(error.value) or text == "whsec_"


def test_secrets_are_separated_by_spaces_or_commas():
    assert parse_secrets(f" {secret_of(24)}, {secret_of(64)}\n{secret_of(32)} ") == (bytes(24), bytes(64), bytes(32))
