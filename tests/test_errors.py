"""Faults: what is said of them, whoever said it first."""

from math import inf, nan

import pytest

from antiphon.errors import (
    MAX_RETRY_AFTER_S,
    ApiError,
    ClientError,
    ServerError,
    UpstreamError,
    invalid_tool_call,
    is_or_are,
    not_found,
    shutting_down,
    tool_choice_not_found,
)


@pytest.mark.parametrize("status", [-1, 0, 1, 99, 101, 200, 204, 304, 399, 600, 999, 10**9, None])
@pytest.mark.parametrize("kind", [ApiError, ClientError, UpstreamError, ServerError])
def test_a_status_that_is_no_errors_is_not_taken(kind, status):
    """Response splitting: a worker's 101 or 204 went to the client as it was, with a body that belongs to neither."""
    assert kind("x", status=status).status == kind.status


@pytest.mark.parametrize("status", [400, 418, 429, 500, 599])
def test_the_status_of_an_error_is_taken(status):
    assert ApiError("x", status=status).status == status


@pytest.mark.parametrize(
    ("claimed", "taken"),
    [(None, None), (nan, None), (inf, MAX_RETRY_AFTER_S), (1e300, MAX_RETRY_AFTER_S), (-inf, 0), (-5, 0), (0, 0), (1.5, 1.5)],
)
def test_seconds_that_no_header_can_say_are_not_taken(claimed, taken):
    assert ApiError("x", retry_after_s=claimed).retry_after_s == taken


@pytest.mark.parametrize(
    ("error", "kind", "status", "code", "retry_after_s"),
    [
        (shutting_down(), ServerError, 503, "server_shutting_down", 5),
        (invalid_tool_call("it has no name"), UpstreamError, 502, "server_error", None),
        (not_found("The voice 'x'"), ClientError, 404, "not_found", None),
    ],
)
def test_an_error_is_the_fault_of_who_caused_it(error, kind, status, code, retry_after_s):
    assert (type(error), error.status, error.code, error.retry_after_s) == (kind, status, code, retry_after_s)


def test_a_tool_choice_that_misses_its_tools_is_told_shortly():
    assert tool_choice_not_found("response.tool_choice", "f").message == "Tool choice 'f' not found in 'tools' parameter."
    assert tool_choice_not_found("tool_choice", "f", "g").message == "Tool choice 'f' or 'g' not found in 'tools' parameter."
    assert len(tool_choice_not_found("tool_choice", *["f" * 64] * 1000).message) < 200


def test_one_is_there_and_several_are():
    assert [is_or_are(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["is 'a'", "are 'a' and 'b'", "are 'a', 'b', and 'c'"]
