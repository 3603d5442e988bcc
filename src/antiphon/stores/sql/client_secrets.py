"""Client secrets in a SQL database."""

from typing import Any

from msgspec.structs import asdict
from sqlalchemy import bindparam, delete, insert, select

from antiphon.records import ClientSecretRecord
from antiphon.stores.sql.database import Database
from antiphon.stores.sql.schema import client_secrets

_FIND = select(client_secrets).where(client_secrets.c.hash == bindparam("wanted"))
_ADD = insert(client_secrets)
_DELETE_EXPIRED = delete(client_secrets).where(client_secrets.c.expires_at <= bindparam("now"))


class SqlClientSecretStore:
    """The client secrets that are kept beside the keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, secret: ClientSecretRecord) -> None:
        """Keep a new secret, and forget those that had expired when it was made."""
        values: dict[str, Any] = asdict(secret)
        with self._database.translate_errors():
            async with self._database.write_transaction() as connection:
                await connection.execute(_DELETE_EXPIRED, {"now": secret.created_at})
                await connection.execute(_ADD, values)

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        """The secret with that hash, expired or not; None where there is none."""
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_FIND, {"wanted": hash})).first()
        return ClientSecretRecord(**row._mapping) if row else None
