"""
A response with very many items is written in small steps, and its items only once.

SQLAlchemy prepares the parameters of a statement on the event loop, so the rows of one statement bound how long others
wait.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import event

from antiphon.errors import ClientError
from antiphon.records import ItemRecord, ResponseRecord
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.sql.writes import MAX_ROWS
from support.stores.responses import response
from support.stores.tables import sqlite_store

pytestmark = pytest.mark.anyio

ITEMS = 8_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    url = sqlite_store(tmp_path / "store.sqlite3") if request.param == "sqlite" else request.getfixturevalue("postgres").new_store()
    store = SqlStore(url)
    await store.open()
    yield store
    await store.close()


class Statements:
    """The statements that a store executes, and how many rows of values each brings."""

    def __init__(self, store: SqlStore) -> None:
        self.rows: list[tuple[str, int]] = []
        event.listen(store._database._engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, is_many: bool) -> None:
        # PostgreSQL's driver is given many rows in one statement with many values.
        rows = len(values) if is_many else statement.count("(", statement.upper().find("VALUES")) if "INSERT" in statement else 0
        if statement != "BEGIN":  # PostgreSQL's driver sends it itself
            self.rows.append((" ".join(statement.split()[:3]), rows))

    def inserted(self, table: str) -> list[int]:
        return [rows for statement, rows in self.rows if statement == f"INSERT INTO {table}"]

    def deletions(self) -> list[str]:
        return [statement for statement, _ in self.rows if statement.startswith("DELETE")]


def large(status: str, *output: ItemRecord) -> ResponseRecord:
    items = tuple(ItemRecord(id=f"msg_{number}", direction="input", body=b"{}") for number in range(ITEMS))
    return replace(response("resp_1", status), items=(*items, *output))


async def test_many_items_are_written_in_small_statements_and_only_once(store: SqlStore) -> None:
    statements = Statements(store)
    await store.put(large("in_progress"))
    assert sum(statements.inserted("items")) == ITEMS
    assert max(statements.inserted("items")) <= MAX_ROWS
    statements.rows.clear()
    answer = ItemRecord(id="msg_answer", direction="output", body=b"{}")
    await store.finish(large("completed", answer))
    assert statements.inserted("items") == [1]
    assert statements.inserted("responses") == statements.deletions() == []
    assert await store.get("ada", "resp_1") == large("completed", answer)


async def test_a_conversation_that_is_too_large_is_refused_before_any_body_is_read(store: SqlStore) -> None:
    for number in range(3):
        items = (ItemRecord(id=f"msg_{number}", direction="input", body=bytes(24 << 20)),)
        previous = f"resp_{number - 1}" if number else None
        await store.put(replace(response(f"resp_{number}"), items=items, previous_response_id=previous))
    statements = Statements(store)
    assert len(await store.chain("ada", "resp_1")) == 2
    assert len(statements.rows) == 3, "how large it is, the responses, and the items"
    statements.rows.clear()
    with pytest.raises(ClientError, match="more than 64 MiB"):
        await store.chain("ada", "resp_2")
    assert len(statements.rows) == 1, "only how large it is"
