"""What each failure means for the next try: a table, against what servers say."""

import pytest

from antiphon.engine_api.events import ResponseFailed
from antiphon.engines.upstream.faults import error_from_response, error_from_stream
from antiphon.errors import UpstreamError, shutting_down
from antiphon.runtime.balancing.failures import CONSEQUENCES, FailureKind, classify, is_temporary, rest_s


def failure(status, headers=None, body=b"{}"):
    error = error_from_response(status, headers or {}, body)
    error.cause = str(status)
    return ResponseFailed.from_error("resp_1", error)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, b"", FailureKind.BREAKDOWN),
        (502, b"", FailureKind.BREAKDOWN),
        (503, b"", FailureKind.BREAKDOWN),
        (504, b"", FailureKind.BREAKDOWN),
        (529, b"", FailureKind.BREAKDOWN),
        (408, b"", FailureKind.BREAKDOWN),
        (301, b"", FailureKind.BREAKDOWN),
        (429, b"", FailureKind.RATE_LIMIT),
        (401, b"", FailureKind.CREDENTIALS),
        (403, b"", FailureKind.CREDENTIALS),
        (404, b'{"error": {"message": "The model `x` does not exist."}}', FailureKind.MODEL),
        (400, b'{"error": {"message": "maximum context length is 4096 tokens"}}', FailureKind.CONTEXT),
        (500, b'{"error": {"message": "the request exceeds the available context size"}}', FailureKind.CONTEXT),
        (400, b'{"error": {"message": "No.", "code": "unsupported_parameter"}}', FailureKind.FEATURE),
        (422, b'{"error": {"message": "image input is not supported", "param": "messages"}}', FailureKind.FEATURE),
        (400, b'{"error": {"message": "why is this not supported?"}}', FailureKind.REQUEST),
        (400, b'{"error": {"message": "tools[0] is wrong", "param": "tools[0]"}}', FailureKind.REQUEST),
        (413, b"", FailureKind.REQUEST),
    ],
)
def test_a_status_and_a_code_say_who_is_to_blame(status, body, kind):
    assert classify(failure(status, body=body)) is kind


def test_an_error_as_first_event_says_the_same_as_a_status():
    for error, kind in (({"code": 429}, FailureKind.RATE_LIMIT), ({"code": 401}, FailureKind.CREDENTIALS), ("Oh.", FailureKind.BREAKDOWN)):
        assert classify(ResponseFailed.from_error("resp_1", error_from_stream(error))) is kind


def test_a_server_that_stops_asks_nobody_else():
    assert classify(ResponseFailed.from_error("resp_1", shutting_down())) is FailureKind.SHUTDOWN
    assert not CONSEQUENCES[FailureKind.SHUTDOWN].tries_next


def test_the_client_s_own_mistake_is_told_at_once():
    assert CONSEQUENCES[FailureKind.REQUEST].fallback is None
    assert not CONSEQUENCES[FailureKind.REQUEST].tries_next


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [(429, {"retry-after": "17"}, 17), (429, {}, 5), (503, {"retry-after": "900"}, 60), (503, {}, 0), (500, {"retry-after": "9"}, 0)],
)
def test_an_upstream_rests_for_as_long_as_it_said(status, headers, seconds):
    one = failure(status, headers)
    assert rest_s(one, classify(one)) == seconds


def test_only_what_answers_though_badly_is_there():
    def by(cause):
        error = UpstreamError("Oh.")
        error.cause = cause
        return is_temporary(ResponseFailed.from_error("resp_1", error))

    assert [cause for cause in ("500", "503", "timeout", "stalled", "unreachable", "broke_off", "malformed", "401") if by(cause)] == [
        "500",
        "503",
        "timeout",
        "stalled",
    ]
