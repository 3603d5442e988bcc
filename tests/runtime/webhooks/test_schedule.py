"""When a delivery is tried again."""

import itertools

import pytest
from msgspec.structs import replace

from antiphon.records import WebhookDelivery
from antiphon.runtime.webhooks.schedule import RETRY_DELAYS_S, AttemptOutcome, advance

HOUR_S = 3600
NEW = WebhookDelivery(
    id="wh_1",
    endpoint="hook",
    event="response.completed",
    tenant="",
    response_id="resp_1",
    body=b"{}",
    created_at=0,
    expires_at=72 * HOUR_S,
)
FAILED = AttemptOutcome("it answered with status 500")


def test_what_was_taken_is_delivered():
    assert advance(replace(NEW, error="earlier"), AttemptOutcome(None), 7.5, 0) == replace(NEW, status="delivered", attempts=1, ended_at=7)


def test_an_endpoint_that_always_fails_is_tried_with_growing_delays_for_three_days():
    delivery, now, delays_s = NEW, 0.0, []
    while delivery.status == "pending":
        delivery = advance(delivery, FAILED, now, 0)
        if delivery.status == "pending":
            delays_s.append(delivery.due_at_ms / 1000 - now)
            now = delivery.due_at_ms / 1000
    assert delays_s[:8] == list(RETRY_DELAYS_S[:8])
    assert now == 72 * HOUR_S
    assert (delivery.status, delivery.attempts, delivery.ended_at, delivery.error) == ("failed", 10, 72 * HOUR_S, FAILED.error)


@pytest.mark.parametrize("attempts", range(9))
def test_chance_makes_a_delay_longer_by_a_fifth_at_most(attempts):
    dues = [advance(replace(NEW, attempts=attempts), FAILED, 0, chance).due_at_ms for chance in (0, 0.5, 1)]
    delay_ms = 1000 * RETRY_DELAYS_S[attempts]
    assert dues == [delay_ms, pytest.approx(1.1 * delay_ms, abs=1), pytest.approx(1.2 * delay_ms, abs=1)]
    assert all(earlier < later for earlier, later in itertools.pairwise(dues))


def test_an_endpoint_may_ask_for_a_longer_delay_but_not_for_ever():
    assert advance(NEW, busy(60), 0, 0).due_at_ms == 60_000
    assert advance(NEW, busy(1), 0, 0).due_at_ms == 5_000
    assert advance(NEW, busy(10**8), 0, 0).due_at_ms == 3_600_000


def busy(seconds):
    return AttemptOutcome("it answered with status 429", retry_after_s=seconds)


def test_one_that_expired_before_it_was_tried_has_one_attempt():
    assert advance(NEW, FAILED, 73 * HOUR_S, 0).status == "failed"
    assert advance(NEW, AttemptOutcome(None), 73 * HOUR_S, 0).status == "delivered"


def test_an_endpoint_that_is_gone_is_not_tried_again():
    assert advance(NEW, AttemptOutcome("gone", is_gone=True), 0, 0).status == "failed"
