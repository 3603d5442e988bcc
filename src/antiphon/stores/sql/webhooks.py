"""Deliveries of webhooks in a SQL database."""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import asdict
from sqlalchemy import Executable, RowMapping, and_, bindparam, delete, null, select, text, update

from antiphon.records import DeliveryStatus, DisabledEndpoint, WebhookDelivery
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import disabled_webhooks, has_nul, is_pending, lock_rows, webhook_deliveries
from antiphon.stores.sql.webhook_outbox import COUNT_PENDING, WebhookOutbox
from antiphon.stores.webhooks import MAX_EXPIRED, WebhookSubscriber

_columns = webhook_deliveries.c
_FIELDS = [column for column in _columns if column.name not in ("number", "owner")]

_is_due = _columns.due_at_ms <= bindparam("now_ms")
_DUE = select(_columns.endpoint).where(is_pending, _is_due).distinct()
_LONGEST_DUE = (
    select(_columns.number)
    .where(is_pending, _columns.endpoint == bindparam("of_endpoint"), _is_due)
    .order_by(_columns.due_at_ms)
    .limit(bindparam("limit"))
)
# At the end of its lease a delivery is due again: its server may live, and yet have failed to store the outcome.
_CLAIM = (
    update(webhook_deliveries)
    .where(_columns.number.in_(lock_rows(_LONGEST_DUE)))
    .values(due_at_ms=bindparam("lease_until_ms"), owner=bindparam("new_owner"))
    .returning(*_FIELDS)
)
_SETTLE = (
    update(webhook_deliveries)
    .where(_columns.id == bindparam("of_id"), _columns.owner == bindparam("of_owner"), is_pending)
    .values(
        status=bindparam("new_status"),
        attempts=bindparam("new_attempts"),
        due_at_ms=bindparam("new_due_at_ms"),
        ended_at=bindparam("new_ended_at"),
        error=bindparam("new_error"),
        owner=null(),
    )
)
_RESEND = (
    update(webhook_deliveries)
    .where(_columns.id == bindparam("of_id"), ~is_pending)
    .values(status="pending", attempts=0, due_at_ms=bindparam("now_ms"), expires_at=bindparam("new_expires_at"), ended_at=null())
)
_ENDED_BEFORE = select(_columns.number).where(_columns.ended_at < bindparam("ended_before")).order_by(_columns.ended_at).limit(MAX_EXPIRED)
_EXPIRE = delete(webhook_deliveries).where(_columns.number.in_(lock_rows(_ENDED_BEFORE)))
_EXPIRED = select(_columns.number).where(is_pending, _columns.expires_at < bindparam("ended_before"))
_EXPIRE_PENDING = delete(webhook_deliveries).where(_columns.number.in_(lock_rows(_EXPIRED)))
_PENDING = select(_columns.number).where(is_pending, _columns.endpoint == bindparam("of_endpoint")).order_by(_columns.number)
_FAIL_PENDING = (
    update(webhook_deliveries)
    .where(_columns.number.in_(lock_rows(_PENDING, skips_locked=False)))
    .values(status="failed", error=bindparam("new_error"), ended_at=bindparam("now"), owner=null())
)
_FORGET_DISABLED = delete(disabled_webhooks).where(disabled_webhooks.c.name == bindparam("of_name"))
_DISABLE = text(  # several servers may learn at once that an endpoint is gone
    "INSERT INTO disabled_webhooks (name, url_hash, disabled_at) VALUES (:name, :url_hash, :disabled_at) "
    "ON CONFLICT (name) DO UPDATE SET url_hash = excluded.url_hash, disabled_at = excluded.disabled_at"
)
_DISABLED = select(disabled_webhooks).order_by(disabled_webhooks.c.name)


class SqlWebhookStore:
    """A `WebhookStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscriber: WebhookSubscriber | None = None
        # Unlike a response, which is not failed before it was found twice: a server that was wrongly taken for dead only
        # sends the delivery a second time, with the same id (docs/decisions/0031).
        is_orphaned = and_(is_pending, _columns.owner.is_not(None), database.backend.is_dead(_columns.owner))
        self._release = (
            update(webhook_deliveries)
            .where(_columns.number.in_(lock_rows(select(_columns.number).where(is_orphaned))))
            .values(due_at_ms=bindparam("now_ms"), owner=null())
        )

    def subscribe(self, subscriber: WebhookSubscriber) -> None:
        self._subscriber = subscriber

    def new_outbox(self) -> WebhookOutbox:
        """An outbox for one transaction; to be announced after its commit."""
        return WebhookOutbox(self._subscriber)

    async def claim(self, endpoint: str, now_ms: int, lease_until_ms: int, limit: int) -> Sequence[WebhookDelivery]:
        values = {"of_endpoint": endpoint, "now_ms": now_ms, "lease_until_ms": lease_until_ms, "limit": limit}
        async with self._database.write() as connection:
            rows = await connection.execute(_CLAIM, values | {"new_owner": self._database.server_number})
            return [_delivery(row) for row in rows.mappings()]

    async def settle(self, delivery: WebhookDelivery) -> bool:
        values = {f"new_{name}": getattr(delivery, name) for name in ("status", "attempts", "due_at_ms", "ended_at", "error")}
        return await self._write(_SETTLE, values | {"of_id": delivery.id, "of_owner": self._database.server_number}) > 0

    async def find_due(self, now_ms: int) -> Collection[str]:
        async with self._database.read_connection() as connection:
            return [row.endpoint for row in await connection.execute(_DUE, {"now_ms": now_ms})]

    async def release_orphans(self, now_ms: int) -> int:
        return await self._write(self._release, {"now_ms": now_ms, "living": self._database.backend.live_servers})

    async def count_pending(self) -> Mapping[str, int]:
        async with self._database.read_connection() as connection:
            return {row.endpoint: row.pending for row in await connection.execute(COUNT_PENDING)}

    async def latest(self, endpoint: str | None, status: DeliveryStatus | None, limit: int) -> Sequence[WebhookDelivery]:
        query = select(*_FIELDS).order_by(_columns.number.desc()).limit(limit)
        query = query if endpoint is None else query.where(_columns.endpoint == endpoint)
        query = query if status is None else query.where(_columns.status == status)
        async with self._database.read_connection() as connection:
            return [_delivery(row) for row in (await connection.execute(query)).mappings()]

    async def resend(self, delivery_id: str, now_ms: int, expires_at: int) -> bool:
        if has_nul(delivery_id):
            return False
        return await self._write(_RESEND, {"of_id": delivery_id, "now_ms": now_ms, "new_expires_at": expires_at}) > 0

    async def expire(self, ended_before: int) -> int:
        values = {"ended_before": ended_before}
        async with self._database.write() as connection:
            return sum([(await connection.execute(statement, values)).rowcount for statement in (_EXPIRE, _EXPIRE_PENDING)])

    async def disable(self, endpoint: DisabledEndpoint, error: str) -> None:
        async with self._database.write() as connection:
            await connection.execute(_DISABLE, asdict(endpoint))
            await connection.execute(_FAIL_PENDING, {"of_endpoint": endpoint.name, "new_error": error, "now": endpoint.disabled_at})

    async def enable(self, name: str) -> bool:
        return await self._write(_FORGET_DISABLED, {"of_name": name}) > 0

    async def list_disabled(self) -> Sequence[DisabledEndpoint]:
        async with self._database.read_connection() as connection:
            return [DisabledEndpoint(**row) for row in (await connection.execute(_DISABLED)).mappings()]

    async def _write(self, statement: Executable, values: Mapping[str, object]) -> int:
        """Execute a statement; returns how many rows it changed."""
        async with self._database.write() as connection:
            return (await connection.execute(statement, values)).rowcount


def _delivery(row: RowMapping) -> WebhookDelivery:
    return WebhookDelivery(**row)
