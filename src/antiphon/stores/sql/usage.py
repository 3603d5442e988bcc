"""What was used, hour by hour, in a SQL database."""

from collections.abc import Collection, Sequence

from msgspec import convert
from msgspec.structs import asdict
from sqlalchemy import bindparam, delete, func, literal, select, text

from antiphon.records import UsageRecord
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import usage_hours
from antiphon.stores.usage import USAGE_COUNTS, USAGE_GROUPS, UsageGroup

_COLUMNS = ("start", *USAGE_GROUPS, *USAGE_COUNTS)
_ADD = text(
    f"INSERT INTO usage_hours ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
    f"ON CONFLICT (start, {', '.join(USAGE_GROUPS)}) DO UPDATE SET "
    + ", ".join(f"{name} = usage_hours.{name} + excluded.{name}" for name in USAGE_COUNTS)
)
_EXPIRE = delete(usage_hours).where(usage_hours.c.start < bindparam("before"))


class SqlUsageStore:
    """A `UsageStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, records: Collection[UsageRecord]) -> None:
        if not records:
            return
        # In one order everywhere: two servers that lock the same rows in different orders would wait for each other.
        rows = sorted(map(asdict, records), key=lambda row: tuple(row[name] for name in _COLUMNS))
        async with self._database.write() as connection:
            await connection.execute(_ADD, rows)

    async def total(self, start: int, end: int, width_s: int, groups: Collection[UsageGroup], limit: int) -> Sequence[UsageRecord]:
        columns = usage_hours.c
        bucket = (columns.start - columns.start % literal(width_s)).label("bucket")
        names = [name for name in USAGE_GROUPS if name in groups]
        selection = [columns[name] for name in names]
        sums = [func.sum(columns[name]).label(name) for name in USAGE_COUNTS]
        query = (
            select(bucket, *selection, *sums)
            .where(columns.start >= start, columns.start < end)
            .group_by(text("bucket"), *selection)
            .order_by(text("bucket"), *selection)
            .limit(limit)
        )
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(query)).mappings().all()
        # A sum of integers is a decimal in PostgreSQL.
        numbers = [{"start": row["bucket"], **{name: int(row[name]) for name in USAGE_COUNTS}} for row in rows]
        return [convert(one | {name: row[name] for name in names}, UsageRecord) for one, row in zip(numbers, rows, strict=True)]

    async def expire(self, before: int) -> None:
        async with self._database.write() as connection:
            await connection.execute(_EXPIRE, {"before": before})
