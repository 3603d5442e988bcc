"""Deliveries of webhooks: the contract of a store for them, and one in memory."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from antiphon.records import DeliveryStatus, DisabledEndpoint, EndedResponse, WebhookDelivery

MAX_EXPIRED = 1000
"""The most deliveries that `WebhookStore.expire` deletes at once."""

MAX_HISTORY = 1000
"""The most deliveries that a store in memory remembers after their end."""


class WebhookSubscriber(Protocol):
    """Decides which events are sent where; the server's dispatcher."""

    def deliveries(self, response: EndedResponse) -> Sequence[WebhookDelivery]:
        """What is to be sent now that a background response has ended."""

    def max_pending(self, endpoint: str) -> int:
        """How many deliveries to an endpoint may be pending at once."""

    def on_deliveries(self, dropped_ones: Sequence[WebhookDelivery]) -> None:
        """New deliveries are stored, and some were not, as too many are pending."""


class WebhookStore(Protocol):
    """
    Deliveries, which are stored in the transaction that ends their response.

    A server that has claimed a delivery sends it until it calls `settle`, until the end of its lease, or until it dies.
    """

    def subscribe(self, subscriber: WebhookSubscriber) -> None:
        """Have deliveries stored from now on, of the responses that this server ends."""

    async def claim(self, endpoint: str, now_ms: int, lease_until_ms: int, limit: int) -> Sequence[WebhookDelivery]:
        """Claim at most `limit` deliveries to an endpoint that are due and that no other server has, the oldest first."""

    async def settle(self, delivery: WebhookDelivery) -> bool:
        """
        Store the outcome of an attempt, and give up the claim.

        Returns:
            False, and changes nothing, where it is no longer pending, or no longer this server's.
        """

    async def find_due(self, now_ms: int) -> Collection[str]:
        """The endpoints with deliveries that can be claimed."""

    async def release_orphans(self, now_ms: int) -> int:
        """Let those be claimed that a server had when it died; returns how many there were."""

    async def count_pending(self) -> Mapping[str, int]:
        """The number of pending deliveries by endpoint."""

    async def latest(self, endpoint: str | None, status: DeliveryStatus | None, limit: int) -> Sequence[WebhookDelivery]:
        """The newest deliveries, to all endpoints or one, of all statuses or one; the newest first."""

    async def resend(self, delivery_id: str, now_ms: int, expires_at: int) -> bool:
        """Make a delivery that has ended pending again; returns whether there is such a delivery."""

    async def expire(self, ended_before: int) -> int:
        """
        Delete deliveries that ended before a time, at most `MAX_EXPIRED`, and pending ones that expired before it: they were
        never sent, as their endpoint is no longer configured. Returns how many.
        """

    async def disable(self, endpoint: DisabledEndpoint, error: str) -> None:
        """Remember that an endpoint is disabled; its pending deliveries fail with `error`."""

    async def enable(self, name: str) -> bool:
        """Forget that an endpoint is disabled; returns whether it was."""

    async def list_disabled(self) -> Sequence[DisabledEndpoint]:
        """The disabled endpoints, by name."""


class MemoryWebhookStore:
    """A `WebhookStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._subscriber: WebhookSubscriber | None = None
        self._deliveries: dict[str, WebhookDelivery] = {}  # the oldest first
        self._claimed_ids: set[str] = set()
        self._history: dict[str, None] = {}  # the ids of those that have ended, in the order of their ends
        self._disabled_endpoints: dict[str, DisabledEndpoint] = {}

    def subscribe(self, subscriber: WebhookSubscriber) -> None:
        self._subscriber = subscriber

    def release_all(self) -> None:
        """Let all be claimed: those that were claimed before belong to an earlier opening of the store."""
        for delivery_id in self._claimed_ids:
            self._deliveries[delivery_id] = replace(self._deliveries[delivery_id], due_at_ms=0)
        self._claimed_ids.clear()

    def add(self, response: EndedResponse) -> None:
        """Store what is to be sent for a response that has ended."""
        if self._subscriber is None or not (deliveries := self._subscriber.deliveries(response)):
            return
        counts = self._pending_counts()
        dropped_ones = [each for each in deliveries if counts[each.endpoint] >= self._subscriber.max_pending(each.endpoint)]
        self._deliveries.update({delivery.id: delivery for delivery in deliveries if delivery not in dropped_ones})
        self._subscriber.on_deliveries(dropped_ones)

    async def claim(self, endpoint: str, now_ms: int, lease_until_ms: int, limit: int) -> Sequence[WebhookDelivery]:
        due = [each for each in self._deliveries.values() if each.endpoint == endpoint and _is_due(each, now_ms)]
        # At the end of its lease it is due again: its server may live, and yet have failed to store the outcome.
        claims = [replace(each, due_at_ms=lease_until_ms) for each in sorted(due, key=lambda each: each.due_at_ms)[:limit]]
        for delivery in claims:
            self._deliveries[delivery.id] = delivery
            self._claimed_ids.add(delivery.id)
        return claims

    async def settle(self, delivery: WebhookDelivery) -> bool:
        old = self._deliveries.get(delivery.id)
        if old is None or old.status != "pending" or delivery.id not in self._claimed_ids:
            return False
        self._change(delivery)
        return True

    def _change(self, delivery: WebhookDelivery) -> None:
        self._claimed_ids.discard(delivery.id)
        self._deliveries[delivery.id] = delivery
        if delivery.status != "pending":
            self._history[delivery.id] = None
            if len(self._history) > MAX_HISTORY:
                self._forget(next(iter(self._history)))

    def _forget(self, delivery_id: str) -> None:
        self._claimed_ids.discard(delivery_id)
        self._history.pop(delivery_id, None)
        del self._deliveries[delivery_id]

    async def find_due(self, now_ms: int) -> Collection[str]:
        return {each.endpoint for each in self._deliveries.values() if _is_due(each, now_ms)}

    async def release_orphans(self, now_ms: int) -> int:
        return 0  # there is no other server

    async def count_pending(self) -> Mapping[str, int]:
        return self._pending_counts()

    def _pending_counts(self) -> Counter[str]:
        return Counter(delivery.endpoint for delivery in self._deliveries.values() if delivery.status == "pending")

    async def latest(self, endpoint: str | None, status: DeliveryStatus | None, limit: int) -> Sequence[WebhookDelivery]:
        matches = [each for each in self._deliveries.values() if endpoint in (None, each.endpoint) and status in (None, each.status)]
        return matches[::-1][:limit]

    async def resend(self, delivery_id: str, now_ms: int, expires_at: int) -> bool:
        old = self._deliveries.get(delivery_id)
        if old is None or old.status == "pending":
            return False
        changes = {"status": "pending", "attempts": 0, "due_at_ms": now_ms, "expires_at": expires_at, "ended_at": None}
        self._deliveries[delivery_id] = replace(old, **changes)
        del self._history[delivery_id]
        return True

    async def expire(self, ended_before: int) -> int:
        ends = {id: each.expires_at if each.ended_at is None else each.ended_at for id, each in self._deliveries.items()}
        old_ids = [id for id, ended_at in ends.items() if ended_at < ended_before]
        for delivery_id in old_ids[:MAX_EXPIRED]:
            self._forget(delivery_id)
        return len(old_ids[:MAX_EXPIRED])

    async def disable(self, endpoint: DisabledEndpoint, error: str) -> None:
        self._disabled_endpoints[endpoint.name] = endpoint
        for delivery in [*self._deliveries.values()]:
            if delivery.endpoint == endpoint.name and delivery.status == "pending":
                self._change(replace(delivery, status="failed", error=error, ended_at=endpoint.disabled_at))

    async def enable(self, name: str) -> bool:
        return self._disabled_endpoints.pop(name, None) is not None

    async def list_disabled(self) -> Sequence[DisabledEndpoint]:
        return sorted(self._disabled_endpoints.values(), key=lambda endpoint: endpoint.name)


def _is_due(delivery: WebhookDelivery, now_ms: int) -> bool:
    return delivery.status == "pending" and delivery.due_at_ms <= now_ms
