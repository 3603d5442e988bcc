"""Stores what is to be sent when a background response ends, in the transaction that ends it."""

from collections.abc import Sequence

from msgspec.structs import asdict
from sqlalchemy import bindparam, func, insert, select

from antiphon.records import EndedResponse, WebhookDelivery
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.database.schema import background_responses, is_pending, responses, webhook_deliveries
from antiphon.stores.webhooks import WebhookSubscriber

_ENDED = (
    select(responses.c.id, responses.c.tenant, responses.c.status, background_responses.c.key_id)
    .join(background_responses, background_responses.c.response_number == responses.c.number)
    .where(responses.c.number.in_(bindparam("numbers", expanding=True)))
    .order_by(responses.c.number)
)
_ADD = insert(webhook_deliveries)

COUNT_PENDING = (
    select(webhook_deliveries.c.endpoint, func.count().label("pending")).where(is_pending).group_by(webhook_deliveries.c.endpoint)
)


class WebhookOutbox:
    """
    The deliveries of one transaction.

    Args:
        subscriber: decides what is sent where; None where nothing is.
    """

    def __init__(self, subscriber: WebhookSubscriber | None) -> None:
        self._subscriber = subscriber
        self._dropped_deliveries: list[WebhookDelivery] = []
        self._has_deliveries = False

    async def add(self, connection: TimedConnection, numbers: Sequence[int]) -> None:
        """Store what is to be sent for background responses that end in this transaction, by number."""
        if self._subscriber is None or not numbers:
            return
        rows = await connection.execute(_ENDED, {"numbers": [*numbers]})
        deliveries = [each for row in rows for each in self._subscriber.deliveries(EndedResponse(**row._mapping))]
        if not deliveries:
            return
        self._has_deliveries = True
        counts = {row.endpoint: row.pending for row in await connection.execute(COUNT_PENDING)}
        values: list[dict[str, object]] = []
        for delivery in deliveries:
            count = counts.get(delivery.endpoint, 0)
            if count >= self._subscriber.max_pending(delivery.endpoint):
                self._dropped_deliveries.append(delivery)
                continue
            counts[delivery.endpoint] = count + 1
            values.append(asdict(delivery) | {"owner": None})
        if values:
            await connection.execute(_ADD, values)

    def announce(self) -> None:
        """Tell the subscriber, now that the transaction is committed."""
        if self._subscriber is not None and self._has_deliveries:
            self._subscriber.on_deliveries(self._dropped_deliveries)
