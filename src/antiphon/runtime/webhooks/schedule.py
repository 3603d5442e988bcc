"""When a delivery is tried again, and when no more."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.records import WebhookDelivery

RETRY_DELAYS_S: Sequence[float] = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""Seconds from one attempt to the next. Source: Standard Webhooks, "Deliverability and reliability"."""

JITTER = 0.2
"""The most by which a delay is longer, as a share of it: what failed together does not come back together."""

MAX_RETRY_AFTER_S = 3600
"""The most that an endpoint may ask for by `Retry-After`."""


class AttemptOutcome(Struct, frozen=True):
    """
    How an attempt went.

    Attributes:
        error: why it failed, as a clause; None where it did not.
        is_gone: whether the endpoint wants no events any more.
        retry_after_s: how long it asks to be left alone.
    """

    error: str | None
    is_gone: bool = False
    retry_after_s: int = 0


def advance(
    delivery: WebhookDelivery, outcome: AttemptOutcome, now: float, chance: float, delays_s: Sequence[float] = RETRY_DELAYS_S
) -> WebhookDelivery:
    """
    A delivery after an attempt.

    The last attempt is made when the delivery expires, and so is the next one where its delay would lead beyond that.

    Args:
        now: Unix seconds.
        chance: a random number from 0 to 1.
        delays_s: the last one is used for all attempts after it.
    """
    attempts = delivery.attempts + 1
    if outcome.error is None:
        return replace(delivery, status="delivered", attempts=attempts, ended_at=int(now), error=None)
    if outcome.is_gone or now >= delivery.expires_at:
        return replace(delivery, status="failed", attempts=attempts, ended_at=int(now), error=outcome.error)
    delay_s = delays_s[min(attempts, len(delays_s)) - 1] * (1 + JITTER * chance)
    delay_s = max(delay_s, min(outcome.retry_after_s, MAX_RETRY_AFTER_S))
    due_at = min(now + delay_s, max(delivery.expires_at, now + delays_s[0]))
    return replace(delivery, attempts=attempts, due_at_ms=int(1000 * due_at), error=outcome.error)
