"""A response that fails, read by openai-python's types as strictly as they can be."""

import json
import urllib.request
from typing import get_args

import pytest
from openai.types.responses import Response as TheirResponse, ResponseError, ResponseStreamEvent

from antiphon.server.processes.run import background_server
from antiphon.wire.responses.response import RESPONSE_ERROR_CODES, UNDOCUMENTED_ERROR_CODES
from support.engines.upstreams import CUT, STREAM_HEAD, chunk, closing, event, resetting, whole
from support.server.plain_http import events_in, post
from support.server.raw_upstream import playing
from support.server.scripted_server import configured
from support.wire.adapters import adapter


def said(event):
    return b"data: " + json.dumps(event).encode() + b"\n\n"


CHAT_HALF = STREAM_HEAD + chunk(event("half"))
ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
RESPONSES_HALF = STREAM_HEAD + chunk(
    said({"type": "response.output_item.added", "output_index": 0, "item": ITEM})
    + said({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "half"})
)


def chat_error(**error):
    return CHAT_HALF + chunk(said({"error": {"message": "Oh.", **error}}))


def failed(**error):
    return RESPONSES_HALF + chunk(said({"type": "response.failed", "response": {"status": "failed", "error": {"message": "Oh.", **error}}}))


async def silent(writer):
    writer.write(CHAT_HALF)


@pytest.mark.parametrize(
    ("engine", "play", "code", "own_code"),
    [
        ("chat", closing(CHAT_HALF), "server_error", "upstream_broke_off"),
        ("chat", resetting(CHAT_HALF), "server_error", "upstream_broke_off"),
        ("chat", silent, "server_error", "upstream_timeout"),
        ("chat", CHAT_HALF + chunk(b"data: {]\n\n"), "server_error", "upstream_malformed"),
        ("chat", chat_error(code=503), "server_error", "server_is_overloaded"),
        ("chat", chat_error(code=429), "rate_limit_exceeded", "rate_limit_exceeded"),
        ("chat", chat_error(code=401), "server_error", "upstream_credentials"),
        ("chat", chat_error(code="of_its_own"), "server_error", "of_its_own"),
        ("chat", chat_error(code="context_length_exceeded"), "context_length_exceeded", "context_length_exceeded"),
        ("chat", chat_error(), "server_error", "server_error"),
        ("responses", closing(RESPONSES_HALF), "server_error", "upstream_broke_off"),
        ("responses", failed(code="insufficient_quota"), "insufficient_quota", "insufficient_quota"),
        ("responses", failed(code="context_length_exceeded"), "context_length_exceeded", "context_length_exceeded"),
        ("responses", failed(code="image_too_large"), "image_too_large", "image_too_large"),
        ("responses", failed(code="vector_store_timeout"), "vector_store_timeout", "vector_store_timeout"),
        ("responses", failed(code="server_error"), "server_error", "server_error"),
    ],
)
def test_a_failed_response_has_a_code_of_the_api_and_the_error_event_has_our_own(tmp_path, engine, play, code, own_code):
    with playing(play) as (upstream, _):
        options = {"engine": engine, "base_url": upstream, "retries": 0, "timeout_idle_s": 0.3}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            status, _, body = post(base_url, {"model": "m", "input": "Hi", "stream": True})
            *_, error, last = events_in(body)
            assert (status, error["type"], last["type"]) == (200, "error", "response.failed")
            stored = json.loads(urllib.request.urlopen(f"{base_url}/v1/responses/{last['response']['id']}").read())
    assert error["error"]["code"] == own_code
    for response in (last["response"], stored):
        assert response["error"]["code"] == code
        if code in UNDOCUMENTED_ERROR_CODES:  # openai-python lacks them
            response["error"]["code"] = "server_error"
        TheirResponse.model_validate(response)
        assert error["error"]["message"] in response["error"]["message"]
        assert own_code == code or own_code in response["error"]["message"]
    adapter(ResponseStreamEvent).validate_python(last)


@pytest.mark.parametrize(
    ("play", "status", "code"),
    [
        (CUT, 502, "upstream_broke_off"),
        (whole("503 No", {"error": "down"}, retry_after=9), 503, "server_is_overloaded"),
        (STREAM_HEAD + chunk(b"data: {]\n\n"), 502, "upstream_malformed"),
    ],
)
def test_an_http_error_keeps_our_own_code(tmp_path, play, status, code):
    with playing(play) as (upstream, _):
        options = {"engine": "chat", "base_url": upstream, "retries": 0}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            for stream in (False, True):
                got, _, body = post(base_url, {"model": "m", "input": "Hi", "stream": stream})
                assert (got, json.loads(body)["error"]["code"]) == (status, code)


def test_the_codes_of_a_failed_response_are_openai_pythons():
    (code,) = (field.annotation for name, field in ResponseError.model_fields.items() if name == "code")
    assert frozenset(get_args(code)) == RESPONSE_ERROR_CODES


@pytest.mark.parametrize("engine", ["chat", "responses"])
@pytest.mark.parametrize("field", ["message", "code", "param"])
def test_no_text_of_an_error_shows_what_the_upstream_is_sent_in_secret(tmp_path, engine, field):
    refusal = whole("400 Bad Request", {"error": {"message": "No.", field: "sekrit_header_77"}})
    with playing(refusal) as (upstream, _):
        options = {"engine": engine, "base_url": upstream, "headers": {"x-secret": "sekrit_header_77"}}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            status, _, body = post(base_url, {"model": "m", "input": "Hi"})
    assert (status, json.loads(body)["error"][field]) == (400, "…")
