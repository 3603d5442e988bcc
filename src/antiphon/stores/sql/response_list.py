"""Lists of responses in a SQL database, and the search in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Select, bindparam, func, select, text, true, update

from antiphon.stores.base import UNFINISHED_STATUSES, UnknownCursor
from antiphon.stores.database.database import Database
from antiphon.stores.database.schema import has_nul, is_unindexed, items, responses
from antiphon.stores.response_list import (
    MAX_SEARCH_BYTES,
    ResponsePage,
    ResponseQuery,
    ResponseRow,
    RootPage,
    RootRow,
    UnindexedResponse,
    count_fitting,
)

_newer = responses.alias("newer")
_previous = responses.alias("previous")

_COLUMNS = [
    responses.c[name] for name in ("number", "id", "created_at", "status", "model", "previous_response_id", "root_id", "key_id", "body")
]
_OF_TENANT = responses.c.tenant == bindparam("tenant")
_HAS_ENDED = responses.c.status.not_in(UNFINISHED_STATUSES)

_CURSOR = select(responses.c.number).where(_OF_TENANT, responses.c.id == bindparam("after"))
_ROOT_CURSOR = select(func.max(responses.c.number)).where(_OF_TENANT, responses.c.root_id == bindparam("after"))
_IS_LATEST = ~(
    select(_newer.c.number)
    .where(_newer.c.tenant == responses.c.tenant, _newer.c.root_id == responses.c.root_id, _newer.c.number > responses.c.number)
    .exists()
)
_COUNTS = (
    select(responses.c.root_id, func.count().label("total"))
    .where(_OF_TENANT, responses.c.root_id.in_(bindparam("ids", expanding=True)))
    .group_by(responses.c.root_id)
)
_INPUT_SIZES = (
    select(items.c.response_number, func.sum(func.length(items.c.body)).label("bytes"))
    .where(items.c.response_number.in_(bindparam("numbers", expanding=True)), items.c.direction == "input")
    .group_by(items.c.response_number)
)
_INPUTS = (
    select(items.c.response_number, items.c.body)
    .where(items.c.response_number.in_(bindparam("numbers", expanding=True)), items.c.direction == "input")
    .order_by(items.c.response_number, items.c.position)
)
_NUMBERS = select(responses.c.number, responses.c.id).where(_OF_TENANT, responses.c.id.in_(bindparam("ids", expanding=True)))
_BY_ID = select(*_COLUMNS).where(_OF_TENANT, responses.c.id.in_(bindparam("ids", expanding=True)))
_REPLACE_BODY = (
    update(responses)
    .where(responses.c.tenant == bindparam("of_tenant"), responses.c.id == bindparam("of_id"), _HAS_ENDED)
    .values(body=bindparam("new_body"), is_indexed=None)
)
_UNINDEXED = (
    select(responses.c.number, responses.c.body)
    .where(is_unindexed, _HAS_ENDED)
    .order_by(responses.c.number.desc())
    .limit(bindparam("limit"))
)
_TEXT_ITEMS = (
    select(items.c.response_number, items.c.body)
    .where(items.c.response_number.in_(bindparam("numbers", expanding=True)), func.length(items.c.body) <= MAX_SEARCH_BYTES)
    .order_by(items.c.response_number, items.c.position)
)
# Older servers that use the same store note no root.
_ROOT_OF_PREVIOUS = (
    select(func.coalesce(_previous.c.root_id, _previous.c.id))
    .where(_previous.c.id == responses.c.previous_response_id, _previous.c.tenant == responses.c.tenant)
    .scalar_subquery()
)
_MARK_INDEXED = (
    update(responses)
    .where(responses.c.number == bindparam("of_number"))
    .values(
        is_indexed=true(),
        root_id=func.coalesce(responses.c.root_id, _ROOT_OF_PREVIOUS, responses.c.previous_response_id, responses.c.id),
    )
)
_STILL_THERE = (  # locked in the order of all who write responses, so that servers that share the database never deadlock
    select(responses.c.number, responses.c.body)
    .where(responses.c.number.in_(bindparam("numbers", expanding=True)))
    .order_by(responses.c.id)
    .with_for_update()
)

_WORD_STATEMENTS = {
    "sqlite": (
        "responses.number IN (SELECT rowid FROM response_words WHERE response_words MATCH :words)",
        "DELETE FROM response_words WHERE rowid = :number",
        "INSERT INTO response_words (rowid, words) VALUES (:number, :words)",
    ),
    "postgresql": (
        "responses.number IN (SELECT number FROM response_words WHERE words @@ CAST(:words AS tsquery))",
        "DELETE FROM response_words WHERE number = :number",
        "INSERT INTO response_words (number, words) VALUES (:number, array_to_tsvector(string_to_array(:words, ' ')))",
    ),
}
"""By dialect: the condition that a response has the words, and how those that it is found by are exchanged."""


class SqlResponseList:
    """A `ResponseList` in a SQL database."""

    def __init__(self, database: Database, dialect: str) -> None:
        self._database = database
        self._is_sqlite = dialect == "sqlite"
        has_words, forget, insert = _WORD_STATEMENTS["sqlite" if self._is_sqlite else "postgresql"]
        self._has_words = text(has_words)
        self._forget_words, self._insert_words = text(forget), text(insert)

    async def page(self, tenant: str, query: ResponseQuery) -> ResponsePage:
        number = responses.c.number
        statement = select(*_COLUMNS).where(_OF_TENANT).order_by(number if query.order == "asc" else number.desc()).limit(query.limit + 1)
        for column, value in ((responses.c.model, query.model), (responses.c.status, query.status), (responses.c.root_id, query.root)):
            if value is not None:
                if has_nul(value):
                    return ResponsePage((), has_more=False)
                statement = statement.where(column == value)
        if query.ids is not None:
            statement = statement.where(responses.c.id.in_([id for id in query.ids if not has_nul(id)]))
        values: dict[str, object] = {"tenant": tenant}
        statement = self._narrow(statement, query.words, values)
        async with self._database.read_connection() as connection:
            if query.after is not None:
                cursor = {"tenant": tenant, "after": query.after}
                start = None if has_nul(query.after) else await connection.scalar(_CURSOR, cursor)
                if start is None:
                    raise UnknownCursor(query.after)
                statement = statement.where(number > start if query.order == "asc" else number < start)
            rows = (await connection.execute(statement, values)).all()
        return ResponsePage(tuple(_row(row) for row in rows[: query.limit]), has_more=len(rows) > query.limit)

    async def inputs(self, tenant: str, rows: Sequence[ResponseRow], max_bytes: int) -> Sequence[Sequence[bytes]]:
        if not rows:
            return []
        async with self._database.read_connection() as connection:
            key = {"tenant": tenant, "ids": [row.id for row in rows]}
            numbers = {row.id: row.number for row in await connection.execute(_NUMBERS, key)}
            if not numbers:  # deleted since they were listed
                return [[] for _ in rows]
            sizes = {row.response_number: row.bytes for row in await connection.execute(_INPUT_SIZES, {"numbers": [*numbers.values()]})}
            count = count_fitting((len(row.body) + sizes.get(numbers.get(row.id), 0) for row in rows), max_bytes)
            bodies: dict[int, list[bytes]] = {numbers[row.id]: [] for row in rows[:count] if row.id in numbers}
            for row in await connection.execute(_INPUTS, {"numbers": [*bodies]}):
                bodies[row.response_number].append(row.body)
        return [bodies.get(numbers.get(row.id, 0), []) for row in rows[:count]]

    async def roots(self, tenant: str, *, after: str | None, limit: int, words: tuple[str, ...] = ()) -> RootPage:
        values: dict[str, object] = {"tenant": tenant}
        # Without a root are those that an older server stored, until they are indexed.
        statement = select(*_COLUMNS).where(_OF_TENANT, _IS_LATEST, responses.c.root_id.is_not(None))
        statement = statement.order_by(responses.c.number.desc()).limit(limit + 1)
        if words:
            matches = self._narrow(select(responses.c.root_id).where(_OF_TENANT), words, values)
            statement = statement.where(responses.c.root_id.in_(matches.correlate(None)))
        async with self._database.read_connection() as connection:
            if after is not None:
                cursor = {"tenant": tenant, "after": after}
                start = None if has_nul(after) else await connection.scalar(_ROOT_CURSOR, cursor)
                if start is None:
                    raise UnknownCursor(after)
                statement = statement.where(responses.c.number < start)
            latest = (await connection.execute(statement, values)).all()
            key = {"tenant": tenant, "ids": [row.root_id for row in latest[:limit]]}
            counts = {row.root_id: row.total for row in await connection.execute(_COUNTS, key)}
            roots = {row.id: _row(row) for row in await connection.execute(_BY_ID, key)}
        rows = [RootRow(id=row.root_id, root=roots.get(row.root_id), latest=_row(row), count=counts[row.root_id]) for row in latest[:limit]]
        return RootPage(tuple(rows), has_more=len(latest) > limit)

    async def replace_body(self, tenant: str, response_id: str, body: bytes) -> bool:
        if has_nul(response_id):
            return False
        async with self._database.write() as connection:
            values = {"of_tenant": tenant, "of_id": response_id, "new_body": body}
            return (await connection.execute(_REPLACE_BODY, values)).rowcount > 0

    async def to_index(self, tenant: str | None, limit: int) -> Sequence[UnindexedResponse]:
        statement = _UNINDEXED if tenant is None else _UNINDEXED.where(responses.c.tenant == tenant)
        async with self._database.read_connection() as connection:
            rows = (await connection.execute(statement, {"limit": limit})).all()
            texts: dict[int, list[bytes]] = {row.number: [] for row in rows}
            if rows:
                for row in await connection.execute(_TEXT_ITEMS, {"numbers": [*texts]}):
                    texts[row.response_number].append(row.body)
        return [UnindexedResponse(number=row.number, body=row.body, items=tuple(texts[row.number])) for row in rows]

    async def index(self, words: Mapping[int, Sequence[str]], bodies: Mapping[int, bytes] | None = None) -> None:
        if not words:
            return
        async with self._database.write() as connection:
            rows = (await connection.execute(_STILL_THERE, {"numbers": sorted(words)})).all()
            numbers = [row.number for row in rows if bodies is None or row.body == bodies[row.number]]
            if not numbers:
                return
            await connection.execute(_MARK_INDEXED, [{"of_number": number} for number in numbers])
            # Deleted and added: SQLite has no upsert for virtual tables (https://www.sqlite.org/lang_upsert.html).
            await connection.execute(self._forget_words, [{"number": number} for number in numbers])
            await connection.execute(self._insert_words, [{"number": number, "words": " ".join(words[number])} for number in numbers])

    def _narrow(self, statement: Select[Any], words: Sequence[str], values: dict[str, object]) -> Select[Any]:
        """The statement for responses that have these words; none of them has a quote in it."""
        if not words:
            return statement
        values["words"] = " ".join(f'"{word}"*' for word in words) if self._is_sqlite else " & ".join(f"'{word}':*" for word in words)
        return statement.where(self._has_words)


def _row(row: Row[Any]) -> ResponseRow:
    return ResponseRow(
        id=row.id,
        created_at=row.created_at,
        status=row.status,
        model=row.model,
        previous_response_id=row.previous_response_id,
        root_id=row.root_id or row.id,
        key_id=row.key_id,
        body=row.body,
    )
