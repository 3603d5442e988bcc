"""
Sends what the store holds for webhook endpoints (docs/decisions/0031-webhooks.md).

A delivery is claimed before it is sent, so that several processes and servers with one store send each once. A claim
ends with the life of its server, or after its lease. So an attempt whose outcome was lost is made again, with the same
id.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Coroutine, Sequence

import structlog

from antiphon.errors import StoreError
from antiphon.records import DisabledEndpoint, EndedResponse, WebhookDelivery
from antiphon.runtime.core import lazy
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.upkeep import one_round
from antiphon.runtime.webhooks.endpoint import WebhookEndpoint, new_deliveries
from antiphon.runtime.webhooks.schedule import RETRY_DELAYS_S, AttemptOutcome, advance
from antiphon.stores.base import Store

MAX_ATTEMPTS_AT_ONCE = 8
"""The most that a process sends to an endpoint at the same time; a slow one holds up only itself."""

POLL_S = 2.0
"""How often the store is searched for what is due; what this process stores itself is sent at once."""

UPKEEP_S = 10.0
"""How often claims of dead servers are lifted, pending deliveries are counted, and disabled endpoints are read."""

LEASE_S = 60.0
"""How much longer than an attempt a claim lasts."""

RETRY_STORE_S = 1.0
CLOSE_S = 1.0
"""How long attempts may go on when the server stops."""

HISTORY_S = 72 * 3600
"""How long deliveries are listed after their end."""


class WebhookDispatcher:
    """
    Sends the deliveries of a process.

    Args:
        endpoints: none of them has the name of another.
        delays_s: as in `advance`.
    """

    def __init__(
        self,
        endpoints: Sequence[WebhookEndpoint],
        store: Store,
        metrics: Metrics,
        *,
        delays_s: Sequence[float] = RETRY_DELAYS_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._store = store
        self._metrics = metrics
        self._delays_s = delays_s
        self._poll_s = poll_s
        self._disabled_names: set[str] = set()
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._running: Counter[str] = Counter()  # attempts, by endpoint
        self._attempt_tasks: set[asyncio.Task[None]] = set()

    # What the store asks and reports

    def deliveries(self, response: EndedResponse) -> Sequence[WebhookDelivery]:
        endpoints = [endpoint for name, endpoint in self._endpoints.items() if name not in self._disabled_names]
        return new_deliveries(endpoints, response, time.time())

    def max_pending(self, endpoint: str) -> int:
        return self._endpoints[endpoint].entry.pending

    def on_deliveries(self, dropped_ones: Sequence[WebhookDelivery]) -> None:
        for delivery in dropped_ones:
            self._count(delivery, "dropped")
            limit = self.max_pending(delivery.endpoint)
            message = f"The limit `webhooks.pending` of {limit} deliveries is reached, so this event is not sent."
            self._log(delivery).error("webhook_dropped", message=message)
        self._wake.set()

    # The loop

    async def start(self) -> None:
        """
        Begin; does nothing without endpoints.

        Raises:
            StoreError: the store failed.
        """
        if not self._endpoints:
            return
        await asyncio.to_thread(lambda: lazy.post)  # loading it takes longer than the event loop may be held
        await self._keep_up()
        # Only after the disabled endpoints are known, for which nothing may be stored.
        self._store.webhooks.subscribe(self)
        self._loop_task = _spawn(self._run(), "webhooks")

    async def close(self) -> None:
        """Send once what is due, and stop; idempotent. What is not sent by then stays in the store."""
        task, self._loop_task = self._loop_task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        with contextlib.suppress(StoreError):
            await self._send_due()
        if self._attempt_tasks:
            await asyncio.wait(self._attempt_tasks, timeout=CLOSE_S)
        for attempt in (rest := [*self._attempt_tasks]):
            attempt.cancel()
        if rest:
            await asyncio.wait(rest)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        upkeep_at = clock() + UPKEEP_S
        while True:
            with one_round("webhooks"):
                await self._send_due()
                if clock() >= upkeep_at:
                    await self._keep_up()
                    upkeep_at = clock() + UPKEEP_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _keep_up(self) -> None:
        webhooks, now = self._store.webhooks, time.time()
        disabled_endpoints = {each.name: each for each in await webhooks.list_disabled()}
        self._disabled_names = {
            name
            for name, endpoint in self._endpoints.items()
            if name in disabled_endpoints and disabled_endpoints[name].url_hash == endpoint.url_hash
        }
        await webhooks.release_orphans(int(1000 * now))
        counts = await webhooks.count_pending()
        self._metrics.webhooks_pending = {name: counts.get(name, 0) for name in self._endpoints}
        for name in self._disabled_names:
            if counts.get(name):  # a process stored them that did not know yet
                await webhooks.disable(disabled_endpoints[name], "the endpoint is disabled")
        await webhooks.expire(int(now - HISTORY_S))

    async def _send_due(self) -> None:
        now_ms = int(1000 * time.time())
        for name in await self._store.webhooks.find_due(now_ms):
            endpoint, room = self._endpoints.get(name), MAX_ATTEMPTS_AT_ONCE - self._running[name]
            if endpoint is None or room <= 0 or name in self._disabled_names:
                continue
            lease_until_ms = now_ms + int(1000 * (endpoint.entry.timeout_s + LEASE_S))
            for delivery in await self._store.webhooks.claim(name, now_ms, lease_until_ms, room):
                self._running[name] += 1
                task = _spawn(self._deliver(endpoint, delivery), "webhook attempt")
                self._attempt_tasks.add(task)
                task.add_done_callback(self._attempt_tasks.discard)

    # One attempt

    async def _deliver(self, endpoint: WebhookEndpoint, delivery: WebhookDelivery) -> None:
        try:
            try:
                outcome = await endpoint.attempt(delivery)
            except Exception as error:  # a defect must not end the sending of all others
                self._log(delivery).error("defect", exc_info=error)
                outcome = AttemptOutcome("the server had an error")
            next_state = advance(delivery, outcome, time.time(), random.random(), self._delays_s)
            self._report(next_state)
            await self._settle(delivery, next_state)
            if outcome.is_gone:
                await self._disable(endpoint)
        finally:
            self._running[endpoint.name] -= 1
            self._wake.set()  # there is room for another one

    async def _settle(self, claim: WebhookDelivery, delivery: WebhookDelivery) -> None:
        while 1000 * time.time() < claim.due_at_ms:  # then it is sent again anyway
            try:
                await self._store.webhooks.settle(delivery)
                return
            except StoreError:
                await asyncio.sleep(RETRY_STORE_S)

    async def _disable(self, endpoint: WebhookEndpoint) -> None:
        self._disabled_names.add(endpoint.name)
        structlog.get_logger().error(
            "webhook_disabled",
            endpoint=endpoint.name,
            message="It answered that it is gone (410), so it gets no more events. `antiphon webhooks enable` reverses this.",
        )
        with contextlib.suppress(StoreError):  # then it is asked once more after a restart
            disabled_endpoint = DisabledEndpoint(name=endpoint.name, url_hash=endpoint.url_hash, disabled_at=int(time.time()))
            await self._store.webhooks.disable(disabled_endpoint, "the endpoint is gone")

    def _report(self, delivery: WebhookDelivery) -> None:
        self._count(delivery, "retried" if delivery.status == "pending" else delivery.status)
        if delivery.error is None:
            return
        log = self._log(delivery).bind(attempts=delivery.attempts, error=delivery.error)
        if delivery.status == "pending":
            log.warning("webhook_failed", retry_in_s=round(delivery.due_at_ms / 1000 - time.time(), 1))
        else:
            log.error("webhook_given_up")

    def _count(self, delivery: WebhookDelivery, outcome: str) -> None:
        self._metrics.webhook_attempts[delivery.endpoint, outcome] += 1

    def _log(self, delivery: WebhookDelivery) -> structlog.typing.FilteringBoundLogger:
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(
            endpoint=delivery.endpoint, webhook_id=delivery.id, event_type=delivery.event, response_id=delivery.response_id
        )
        return log


def _spawn(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    # It lives from `start` to `close`, longer than what woke it.
    return asyncio.create_task(work, name=name)  # noqa: TID251
