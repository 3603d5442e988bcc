"""API keys in a SQL database."""

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict
from sqlalchemy import BigInteger, Executable, RowMapping, bindparam, case, func, insert, select, update

from antiphon.records import KeyRecord
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import keys

_HAS_ANY = str(select(select(keys.c.id).exists()))
_ALL = select(keys).order_by(keys.c.created_at, keys.c.id)
_ADD = insert(keys)
_REVOKE = update(keys).where(keys.c.id == bindparam("key_id"), keys.c.revoked_at.is_(None)).values(revoked_at=bindparam("at"))

_at = bindparam("at", type_=BigInteger)
_stored_last_used_at = func.coalesce(keys.c.last_used_at, 0)
_MARK_USED = (
    update(keys)
    .where(keys.c.id == bindparam("key_id"))
    .values(last_used_at=case((_stored_last_used_at < _at, _at), else_=_stored_last_used_at))
)


class SqlKeyStore:
    """A `KeyStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: KeyRecord) -> None:
        await self._write(_ADD, asdict(key) | {"scopes": " ".join(key.scopes)})

    async def all(self) -> Sequence[KeyRecord]:
        async with self._database.read_connection() as connection:
            return [_key(row) for row in (await connection.execute(_ALL)).mappings()]

    def is_empty_now(self) -> bool:
        return self._database.backend.peek(_HAS_ANY) == 0

    async def revoke(self, key_id: str, at: int) -> bool:
        return await self._write(_REVOKE, {"key_id": key_id, "at": at}) > 0

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        # Sorted: servers that mark the same keys in different orders would wait for each other.
        if last_used_at:
            await self._write(_MARK_USED, [{"key_id": key_id, "at": at} for key_id, at in sorted(last_used_at.items())])

    async def _write(self, statement: Executable, values: Mapping[str, object] | Sequence[Mapping[str, object]]) -> int:
        """Execute a statement; returns how many rows it changed."""
        async with self._database.write() as connection:
            return (await connection.execute(statement, values)).rowcount


def _key(row: RowMapping) -> KeyRecord:
    return KeyRecord(**{**row, "scopes": tuple(row["scopes"].split())})
