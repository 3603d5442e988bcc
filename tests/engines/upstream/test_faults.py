"""The errors that clients get for upstreams' errors, whatever these contain."""

import time

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.engines.upstream.faults import error_from_response, error_from_stream, retry_after_s
from antiphon.errors import ApiError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "detail", "code", "type", "param", "status", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(st.integers(200, 599), JSON | st.binary(max_size=60), st.sampled_from([{}, {"retry-after": "3"}]))
def test_any_error_becomes_a_fault_that_can_be_told(status, told, headers):
    body = told if isinstance(told, bytes) else msgspec.json.encode(told)
    fault = error_from_response(status, headers, body)
    assert isinstance(fault, ApiError)
    assert 400 <= fault.status < 600
    assert fault.message
    msgspec.json.encode(fault.body())


def test_googles_errors_come_in_a_list():
    body = b'[{"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED"}}]'
    assert error_from_response(429, {}, body).operator_message == "Quota exceeded."


@given(JSON)
def test_any_error_in_the_middle_becomes_a_fault_that_can_be_told(told):
    fault = error_from_stream(told)
    assert 400 <= fault.status < 600
    assert fault.message
    msgspec.json.encode(fault.body())


def test_an_error_within_errors_within_errors_is_told():
    told = "deep"
    for _ in range(5000):
        told = {"error": told}
    assert error_from_stream(told).operator_message == "deep"


@pytest.mark.parametrize("code", ["9" * 5000, 2**63 - 1, "²²²", -400, 4290, True, 4.5, [], {}], ids=range(9))
def test_a_code_that_is_no_status_is_none(code):
    assert error_from_stream({"message": "no", "code": code}).status == 502


@pytest.mark.parametrize(("code", "status"), [(429, 429), ("429", 429), (400, 400), (503, 503), (500, 502), (200, 502), (401, 502)])
def test_a_code_that_is_a_status_counts_as_one(code, status):
    assert error_from_stream({"message": "no", "code": code}).status == status


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, you requested 8193 tokens (8000 in the messages).",
    "This model's maximum context length is 16384 tokens. However, you requested 8192 output tokens and your prompt has 8193.",
    "You passed 40961 input tokens and requested 0 output tokens. However, the model's context length is only 40960 tokens.",
    "The decoder prompt (length 5012) is longer than the maximum model length of 4096.",
    "request (731 tokens) exceeds the available context size (512 tokens), try increasing it",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "Context size has been exceeded.",
    "The input (150000 tokens) is longer than the model's context length (128000 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "the input length exceeds the context length",
    "exceeded max context length by 17 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= n_ctx: 4096).",
    "Trying to keep the first 13055 tokens when context the overflows. However, the model is loaded with context length of only 4096",
    "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "prompt is too long: 210000 tokens > 200000 maximum",
]


@pytest.mark.parametrize("message", TOO_LONG)
def test_an_input_too_long_is_told_as_such_whatever_the_status(message):
    for status in (400, 413, 422, 500):
        fault = error_from_response(status, {}, msgspec.json.encode({"error": {"message": message}}))
        assert (fault.status, fault.code, fault.param) == (400, "context_length_exceeded", "input")
        assert message[:40] in fault.message
    assert error_from_stream({"message": message}).code == "context_length_exceeded"


@pytest.mark.parametrize(
    "message", ["max_tokens must be at least 1", "the prompt is empty", "context_id is unknown", "exceeded your quota"]
)
def test_what_is_wrong_otherwise_is_not_told_as_too_long(message):
    assert error_from_response(400, {}, msgspec.json.encode({"error": {"message": message}})).code is None


@given(
    st.text(max_size=40)
    | st.from_regex(r"\A[0-9.eE+-]{1,500}\Z")
    | st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S +9999"))
)
def test_any_word_of_when_to_come_back_is_seconds_or_nothing(given_):
    for headers in ({"retry-after": given_}, {"retry-after-ms": given_}):
        seconds = retry_after_s(headers)
        assert seconds is None or 0 <= seconds <= 86400


def test_a_date_to_come_back_at_is_that_long_from_now():
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    assert 3000 < retry_after_s({"retry-after": at}) <= 3600


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 429, 500, 501, 502, 503, 504, 529])
def test_what_an_upstream_says_about_itself_is_told_its_operator_alone(status):
    told = "CUDA error at /opt/vllm/worker.py on host gpu-1 10.1.2.3"
    body = msgspec.json.encode({"error": {"message": told, "code": status}})
    for fault in (error_from_response(status, {}, body), error_from_stream(msgspec.json.decode(body)), error_from_stream(told)):
        assert not any(detail in repr(fault.body()) for detail in ("CUDA", "/opt", "gpu-1", "10.1.2.3"))
        assert fault.operator_message == told


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_what_an_upstream_says_about_the_request_is_told(status):
    assert error_from_response(status, {}, b'{"error": {"message": "top_p must be in (0, 1]"}}').message == "top_p must be in (0, 1]"


@pytest.mark.parametrize(
    "message",
    [
        'Traceback (most recent call last):\n  File "/srv/engine.py", line 3, in x\nKeyError: 1',
        'failed\n  File "/srv/engine.py", line 3',
        "panic\ngoroutine 7 [running]:\nmain.go",
    ],
)
def test_a_stack_trace_of_an_upstream_is_not_told(message):
    body = msgspec.json.encode({"error": {"message": message, "code": 500}})
    faults = [*(error_from_response(status, {}, body) for status in (400, 500, 503)), error_from_stream(msgspec.json.decode(body)["error"])]
    assert not any("engine" in fault.message or "main" in fault.message for fault in faults)
