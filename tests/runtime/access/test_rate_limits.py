"""Limits hold to the unit, by a clock that the test turns."""

import pytest

from antiphon.errors import ClientError
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import LimitState, Meter, format_duration


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def meter(clock: Clock, requests: int | None = None, tokens: int | None = None, streams: int | None = None) -> Meter:
    limits = {"requests_per_minute": requests, "tokens_per_minute": tokens, "streams": streams}
    return Meter(KeyRecord(id="key_1", hash=b"", prefix="", name="", tenant="", scopes=(), created_at=0, **limits), clock)


def refused(work, *arguments) -> ClientError:
    with pytest.raises(ClientError) as mistake:
        work(*arguments)
    assert (mistake.value.status, mistake.value.code) == (429, "rate_limit_exceeded")
    return mistake.value


def test_a_minutes_requests_may_come_at_once_and_no_more(clock):
    limited = meter(clock, requests=3)
    for _ in range(3):
        limited.begin_request()
    mistake = refused(limited.begin_request)
    assert mistake.message == "Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s."
    assert (mistake.type, mistake.retry_after_s) == ("rate_limit_error", 20)


def test_requests_come_back_one_by_one(clock):
    limited = meter(clock, requests=3)
    for _ in range(3):
        limited.begin_request()
    clock.now += 19.999
    refused(limited.begin_request)
    clock.now += 0.001
    limited.begin_request()
    refused(limited.begin_request)


def test_a_refused_request_costs_nothing(clock):
    limited = meter(clock, requests=1)
    limited.begin_request()
    for _ in range(100):
        refused(limited.begin_request)
    clock.now += 60
    limited.begin_request()


def test_over_an_hour_no_more_than_the_limit_is_let_through(clock):
    limited, through = meter(clock, requests=7), 0
    for _ in range(36_000):
        clock.now += 0.1
        try:
            limited.begin_request()
            through += 1
        except ClientError:
            pass
    assert 7 * 60 <= through <= 7 * 60 + 7


def test_tokens_are_counted_when_they_are_known_and_owed_when_too_many(clock):
    limited = meter(clock, tokens=600)
    limited.begin_request()
    limited.begin_stream()
    limited.end_stream(900)
    mistake = refused(limited.begin_request)
    assert mistake.type == "tokens" and "tokens per min (TPM): Limit 600, Used 600" in mistake.message
    assert mistake.retry_after_s == 31  # 300 are owed, and one is needed
    clock.now += 30
    refused(limited.begin_request)
    clock.now += 0.1
    limited.begin_request()


def test_a_request_refused_for_its_tokens_is_not_counted_as_one(clock):
    limited = meter(clock, requests=2, tokens=60)
    limited.begin_request()
    limited.begin_stream()
    limited.end_stream(100)
    refused(limited.begin_request)
    assert limited.states()["requests"].remaining == 1


def test_so_many_streams_and_no_more_are_under_way(clock):
    limited = meter(clock, streams=2)
    limited.begin_stream()
    limited.begin_stream()
    assert "on concurrent streams: Limit 2, Used 2" in refused(limited.begin_stream).message
    limited.end_stream(5)
    limited.begin_stream()
    refused(limited.begin_stream)


def test_what_is_left_is_told(clock):
    limited = meter(clock, requests=60, tokens=6000)
    assert limited.states() == {"requests": LimitState(60, 60, 0.0), "tokens": LimitState(6000, 6000, 0.0)}
    limited.begin_request()
    limited.begin_stream()
    limited.end_stream(7000)
    assert limited.states() == {"requests": LimitState(60, 59, 1.0), "tokens": LimitState(6000, 0, 70.0)}
    clock.now += 1
    assert limited.states()["requests"] == LimitState(60, 60, 0.0)


def test_without_limits_nothing_is_refused_or_told(clock):
    free = meter(clock)
    for _ in range(1000):
        free.begin_request()
        free.begin_stream()
    assert free.states() == {}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0ms"),
        (0.0115, "12ms"),
        (0.999, "999ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (20, "20s"),
        (86.4, "1m26.4s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
    ],
)
def test_times_are_written_as_the_original_does(seconds, told):
    assert format_duration(seconds) == told
