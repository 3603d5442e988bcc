"""Client secrets in a SQL database."""

from msgspec.structs import asdict
from sqlalchemy import bindparam, delete, insert, select

from antiphon.records import ClientSecretRecord
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import client_secrets, lock_rows

_FIND = select(client_secrets).where(client_secrets.c.hash == bindparam("secret_hash"))
_ADD = insert(client_secrets)
_DELETE = delete(client_secrets).where(client_secrets.c.hash == bindparam("secret_hash"))
# Those that another server deletes at the same time are left to it: each would wait for the other.
_EXPIRED = select(client_secrets.c.hash).where(client_secrets.c.expires_at <= bindparam("now"))
_DELETE_EXPIRED = delete(client_secrets).where(client_secrets.c.hash.in_(lock_rows(_EXPIRED)))


class SqlClientSecretStore:
    """A `ClientSecretStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, secret: ClientSecretRecord) -> None:
        async with self._database.write() as connection:
            await connection.execute(_DELETE_EXPIRED, {"now": secret.created_at})
            await connection.execute(_ADD, asdict(secret))

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        async with self._database.read_connection() as connection:
            row = (await connection.execute(_FIND, {"secret_hash": hash})).mappings().first()
        return ClientSecretRecord(**row) if row else None

    async def delete(self, hash: bytes) -> None:
        async with self._database.write() as connection:
            await connection.execute(_DELETE, {"secret_hash": hash})
