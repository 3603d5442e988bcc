"""Counting tokens, and cancelling, which is refused."""

import openai
import pytest
from openai._models import FinalRequestOptions


def test_the_tokens_of_an_input_are_those_that_an_answer_to_it_claims(client):
    asked = {"model": "parrot", "input": [{"role": "user", "content": "one two three"}], "instructions": "Be brief."}
    counted = client.responses.input_tokens.count(**asked)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == client.responses.create(**asked).usage.input_tokens == 3


def test_what_was_said_before_counts(client):
    first = client.responses.create(model="parrot", input="Hello")
    counted = client.responses.input_tokens.count(model="parrot", input="again", previous_response_id=first.id)
    assert counted.input_tokens == len("Hello You said: Hello again".split())


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "plain", "input": "x"}, "unsupported_model", "model"),
        ({"model": "parrot", "input": "x", "personality": "kind"}, "unsupported_parameter", "personality"),
        ({"model": "parrot"}, "missing_required_parameter", "input"),
        ({"model": "parrot", "input": "x", "previous_response_id": "resp_none"}, "previous_response_not_found", "previous_response_id"),
        ({"model": "parrot", "input": "x", "truncation": "sometimes"}, "invalid_value", "truncation"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(client, fields, code, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.input_tokens.count(**fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)


def test_a_response_that_its_client_waited_for_cannot_be_cancelled(client):
    response = client.responses.create(model="parrot", input="Hi")
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.cancel(response.id)
    assert refusal.value.body["message"] == "Cannot cancel a synchronous response."
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


@pytest.mark.parametrize("path", ["input_tokens", "compact"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_the_path_takes_post_only(client, method, path):
    with pytest.raises(openai.APIStatusError) as refusal:
        client.request(cast_to=object, options=FinalRequestOptions(method=method, url=f"/responses/{path}"))
    assert (refusal.value.status_code, refusal.value.response.headers["allow"]) == (405, "POST")
