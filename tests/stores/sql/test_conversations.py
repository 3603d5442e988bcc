"""Conversations in databases: locks of servers that die or fail, and what a look-up costs in a long conversation."""

import asyncio
import contextlib
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from antiphon.errors import StoreError
from antiphon.records import ConversationRecord, ItemRecord
from antiphon.stores.sql import conversation_writes, conversations
from antiphon.stores.sql.store import SqlStore
from support.programs import forks
from support.stores.responses import response

pytestmark = pytest.mark.anyio

CONVERSATION = ConversationRecord(id="conv_1", tenant="ada", created_at=1, metadata=b"{}")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def opened(url: str, numbers: Sequence[int] = ()) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, numbers)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def is_free(store: SqlStore, response_id: str = "resp_9") -> bool:
    return await store.conversations.lock("ada", "conv_1", response_id)


async def test_a_lock_ends_with_the_server_that_had_it(url: str) -> None:
    async with opened(url) as store:
        await store.conversations.create(CONVERSATION, [])
        assert await store.conversations.lock("ada", "conv_1", "resp_1")
    async with opened(url) as store:
        await store.conversations.add_items("ada", "conv_1", [ItemRecord(id="msg_1", direction="input", body=b"{}")])
        assert await is_free(store)


_LOCKS_AND_DIES = """
import asyncio, os, signal, sys
from antiphon.records import ConversationRecord
from antiphon.stores.sql.store import SqlStore

async def main():
    store = SqlStore(sys.argv[1])
    await store.open()
    await store.conversations.create(ConversationRecord(id="conv_1", tenant="ada", created_at=1, metadata=b"{}"), [])
    assert await store.conversations.lock("ada", "conv_1", "resp_1")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_lock_of_a_server_that_was_killed_counts_for_nothing(url: str) -> None:
    async with opened(url) as store:
        done = await asyncio.to_thread(forks.run, [sys.executable, "-c", _LOCKS_AND_DIES, url], capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        async with asyncio.timeout(20):  # PostgreSQL notices a moment later that the connection is gone
            while not await is_free(store):
                await store.conversations.unlock("resp_9")


async def test_a_lock_of_another_server_that_lives_counts(url: str) -> None:
    async with opened(url, (1, 2)) as one, opened(url, (2, 1)) as other:
        await one.conversations.create(CONVERSATION, [])
        assert await one.conversations.lock("ada", "conv_1", "resp_1")
        assert not await is_free(other)
        await one.conversations.unlock("resp_1")
        assert await is_free(other)


async def test_a_process_that_took_the_place_of_another_counts_as_living_to_its_siblings(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    numbers = [1, 2]
    async with opened(url, numbers) as sibling, opened(url, (3, 1)) as heir:
        numbers[:] = [1, 3]
        await heir.conversations.create(CONVERSATION, [])
        assert await heir.conversations.lock("ada", "conv_1", "resp_1")
        await heir.put(response("resp_1", status="in_progress"))
        assert not await is_free(sibling)
        assert await sibling.orphans() == []


async def test_what_cant_be_given_back_in_an_outage_is_given_back_after_it(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with opened(f"sqlite:///{file}?timeout=0.05", (1, 2)) as one, opened(f"sqlite:///{file}", (2, 1)) as other:
        await one.conversations.create(CONVERSATION, [])
        assert await one.conversations.lock("ada", "conv_1", "resp_1")
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as program:
            program.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError):
                await one.conversations.unlock("resp_1")
            with pytest.raises(StoreError):
                await one.check()
        assert not await is_free(other)
        await one.check()
        assert await is_free(other)


async def test_a_lock_whose_answer_was_lost_does_not_stand_in_its_servers_own_way(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with opened(f"sqlite:///{file}?timeout=0.05") as store:
        await store.conversations.create(CONVERSATION, [])
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as program:
            program.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError):
                await store.conversations.lock("ada", "conv_1", "resp_1")
            program.execute("ROLLBACK")
            # As if the commit had gone through.
            program.execute("UPDATE conversations SET response_id = 'resp_1', owner = ?", (store._database.server_number,))
        assert await is_free(store)


async def test_a_caller_that_is_cancelled_while_it_takes_a_conversation_leaves_no_lock(url: str) -> None:
    async with opened(url) as store:
        await store.conversations.create(CONVERSATION, [])
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(store.conversations.lock("ada", "conv_1", "resp_1"))
            await asyncio.sleep(0)
            taking.cancel()
        await store.check()
        assert await is_free(store)


STATEMENTS: dict[str, Any] = {
    "the end": conversation_writes._NEXT_POSITION,
    "ids that are there": conversation_writes._SELECT_KNOWN_ID.params(ids=["msg_1", "msg_2"], of_number=1),
    "rows to lock": conversation_writes._SELECT_ROWS.params(ids=["conv_1", "conv_2"]),
    "an item": conversations._ONE_ITEM,
    "items of any": conversations._ITEMS_BY_ID._items.params(tenant="ada", ids=["msg_1", "msg_2"]),
    "size of items of any": conversations._ITEMS_BY_ID._sizes.params(tenant="ada", ids=["msg_1", "msg_2"]),
    "newest": conversations._PAGE_QUERIES["desc"][0],
    "oldest": conversations._PAGE_QUERIES["asc"][0],
    "newest compaction": conversations._NEWEST_COMPACTION,
    "size": conversations._EXTENT,
    "items from a place on": conversations._ITEMS_FROM,
    "all ids": conversations._ALL_IDS,
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
async def test_no_query_reads_more_of_the_tables_than_it_needs(tmp_path: Path, statement: Any) -> None:
    """So an item costs the same at the end of a long conversation as at its beginning."""
    file = tmp_path / "store.sqlite3"
    async with opened(f"sqlite:///{file}"):
        pass
    compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    with contextlib.closing(sqlite3.connect(file)) as database:
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {compiled}", [1] * len(compiled.positiontup or ()))]
    # Of each id the newest item is found among those that the inner query has found.
    steps = [step for step in plan if not re.match(r"CO-ROUTINE|MATERIALIZE|USE TEMP B-TREE|SCAN anon_|SCAN \(subquery", step)]
    assert steps and all(step.startswith("SEARCH") and "USING" in step for step in steps), plan
