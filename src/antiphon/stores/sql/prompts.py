"""Stored prompts in a SQL database."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Integer, RowMapping, bindparam, case, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from antiphon.records import PromptRecord, PromptVersionRecord
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import has_nul, prompt_versions, prompts

_MAX_VERSION = 2**31 - 1
"""The highest number that the column holds in PostgreSQL."""

_PROMPT_COLUMNS = [column for column in prompts.c if column.name != "number"]
_VERSION_COLUMNS = [column for column in prompt_versions.c if column.name != "prompt_number"]

_IS_IT = (prompts.c.tenant == bindparam("of_tenant"), prompts.c.id == bindparam("of_id"))
_ONE = select(prompts.c.number, prompts.c.latest_version).where(*_IS_IT)
_ADD = insert(prompts)
_ADD_VERSION = insert(prompt_versions)
_new_version = prompts.c.latest_version + 1
# The row's lock makes writers take turns, so no number is given twice.
_COUNT_VERSION = (
    update(prompts)
    .where(*_IS_IT)
    .values(
        latest_version=_new_version,
        default_version=case((bindparam("becomes_default", type_=Integer) == 1, _new_version), else_=prompts.c.default_version),
    )
)
_VERSIONS = (
    select(*_VERSION_COLUMNS)
    .join(prompts, prompts.c.number == prompt_versions.c.prompt_number)
    .where(*_IS_IT)
    .order_by(prompt_versions.c.version)
)
_DEFAULT_VERSION = _VERSIONS.where(prompt_versions.c.version == prompts.c.default_version)
_ONE_VERSION = _VERSIONS.where(prompt_versions.c.version == bindparam("of_version"))
_SET_DEFAULT = (
    update(prompts)
    .where(
        *_IS_IT,
        select(prompt_versions.c.version)
        .where(prompt_versions.c.prompt_number == prompts.c.number, prompt_versions.c.version == bindparam("of_version"))
        .exists(),
    )
    .values(default_version=bindparam("of_version"))
)
_DELETE = delete(prompts).where(*_IS_IT)


class SqlPromptStore:
    """A `PromptStore` in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, prompt: PromptRecord, body: bytes) -> bool:
        key = _key(prompt.tenant, prompt.id)
        values = {"id": prompt.id, "tenant": prompt.tenant, "created_at": prompt.created_at}
        async with self._database.write() as connection:
            if (await connection.execute(_ONE, key)).first() is not None:
                return False
            try:
                await connection.execute(_ADD, values | {"default_version": 1, "latest_version": 1})
            except IntegrityError:  # another process has just added it; this transaction has written nothing that is lost
                return False
            row = (await connection.execute(_ONE, key)).one()
            version = {"prompt_number": row.number, "version": 1, "created_at": prompt.created_at, "body": body}
            await connection.execute(_ADD_VERSION, version)
        return True

    async def add_version(self, tenant: str, prompt_id: str, body: bytes, *, at: int, is_default: bool) -> int | None:
        if has_nul(prompt_id):
            return None
        key = _key(tenant, prompt_id)
        async with self._database.write() as connection:
            if not (await connection.execute(_COUNT_VERSION, key | {"becomes_default": int(is_default)})).rowcount:
                return None
            row = (await connection.execute(_ONE, key)).one()
            version = {"prompt_number": row.number, "version": row.latest_version, "created_at": at, "body": body}
            await connection.execute(_ADD_VERSION, version)
        return int(row.latest_version)

    async def find(self, tenant: str | None, prompt_id: str | None = None) -> Sequence[PromptRecord]:
        if prompt_id is not None and has_nul(prompt_id):
            return ()
        conditions: list[ColumnElement[bool]] = []
        if tenant is not None:
            conditions.append(prompts.c.tenant == tenant)
        if prompt_id is not None:
            conditions.append(prompts.c.id == prompt_id)
        async with self._database.read_connection() as connection:
            rows = await connection.execute(select(*_PROMPT_COLUMNS).where(*conditions).order_by(prompts.c.number))
            return [PromptRecord(**row) for row in rows.mappings()]

    async def version(self, tenant: str, prompt_id: str, version: int | None = None) -> PromptVersionRecord | None:
        if has_nul(prompt_id) or (version is not None and not 0 < version <= _MAX_VERSION):
            return None
        query, values = (_DEFAULT_VERSION, {}) if version is None else (_ONE_VERSION, {"of_version": version})
        async with self._database.read_connection() as connection:
            row = (await connection.execute(query, _key(tenant, prompt_id) | values)).mappings().first()
        return _version(row) if row else None

    async def versions(self, tenant: str, prompt_id: str) -> Sequence[PromptVersionRecord]:
        if has_nul(prompt_id):
            return ()
        async with self._database.read_connection() as connection:
            return [_version(row) for row in (await connection.execute(_VERSIONS, _key(tenant, prompt_id))).mappings()]

    async def set_default(self, tenant: str, prompt_id: str, version: int) -> bool:
        if has_nul(prompt_id) or not 0 < version <= _MAX_VERSION:
            return False
        async with self._database.write() as connection:
            return (await connection.execute(_SET_DEFAULT, _key(tenant, prompt_id) | {"of_version": version})).rowcount > 0

    async def delete(self, tenant: str, prompt_id: str) -> bool:
        if has_nul(prompt_id):
            return False
        async with self._database.write() as connection:
            return (await connection.execute(_DELETE, _key(tenant, prompt_id))).rowcount > 0


def _key(tenant: str, prompt_id: str) -> dict[str, object]:
    return {"of_tenant": tenant, "of_id": prompt_id}


def _version(row: RowMapping) -> PromptVersionRecord:
    return PromptVersionRecord(**row)
