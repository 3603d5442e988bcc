"""
A store that was made by an older version opens in this one, and everything is still there; and many may open it first.
"""

import sys
from typing import Any

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from msgspec.structs import replace
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from antiphon.records import ItemRecord, ResponseRecord
from antiphon.runtime.access.keys import make_key
from antiphon.stores.database.migrations import v0001_responses
from antiphon.stores.database.schema import migrate
from antiphon.stores.database.upgrade import upgrade
from antiphon.stores.response_list import ResponseQuery
from antiphon.stores.sql.store import SqlStore
from support.programs import forks
from support.stores.responses import response

pytestmark = pytest.mark.anyio

RESPONSE = """
INSERT INTO responses (number, id, tenant, created_at, status, model, previous_response_id, body)
VALUES (:number, :id, 'ada', 1, :status, 'parrot', :after, :body)
"""
ITEM = "INSERT INTO items VALUES (:number, :position, 'ada', :id, :direction, :body)"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(empty_url: str) -> str:
    return empty_url


def make_0001(connection: Connection) -> None:
    """The tables as the first version made them, with two responses of which one was being worked on."""
    with Operations.context(MigrationContext.configure(connection)):
        v0001_responses.upgrade()
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES ('0001')"))
    connection.execute(text(RESPONSE), {"number": 7, "id": "resp_1", "status": "completed", "after": None, "body": b'{"a":1}'})
    connection.execute(text(RESPONSE), {"number": 8, "id": "resp_2", "status": "in_progress", "after": "resp_1", "body": b"\x00"})
    connection.execute(text(ITEM), {"number": 7, "position": 0, "id": "msg_1", "direction": "input", "body": b"in"})
    connection.execute(text(ITEM), {"number": 7, "position": 1, "id": "msg_2", "direction": "output", "body": b"out"})


async def test_a_store_of_the_first_version_opens_with_all_that_it_has(url: str) -> None:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.run_sync(make_0001)
        if url.startswith("postgresql"):
            await connection.execute(text("SELECT setval('responses_number_seq', 8)"))
    await engine.dispose()
    store = SqlStore(url)
    await store.open()
    theirs = (ItemRecord(id="msg_1", direction="input", body=b"in"), ItemRecord(id="msg_2", direction="output", body=b"out"))
    first = ResponseRecord(
        id="resp_1",
        tenant="ada",
        created_at=1,
        status="completed",
        model="parrot",
        previous_response_id=None,
        body=b'{"a":1}',
        items=theirs,
    )
    second = ResponseRecord(
        id="resp_2", tenant="ada", created_at=1, status="in_progress", model="parrot", previous_response_id="resp_1", body=b"\x00"
    )
    assert list(await store.chain("ada", "resp_2")) == [first, second]
    assert await store.items("ada", ["msg_2"]) == {"msg_2": theirs[1]}
    assert list(await store.orphans()) == [second]
    assert list(await store.keys.all()) == []
    page = await store.lists.page("ada", ResponseQuery(limit=9))
    assert [(row.id, row.root_id, row.key_id) for row in page.rows] == [("resp_2", "resp_1", None), ("resp_1", "resp_1", None)]
    (waiting,) = await store.lists.to_index(None, 9)
    assert waiting.items == (b"in", b"out")
    await store.lists.index({waiting.number: ["fugue"]})
    assert len((await store.lists.roots("ada", after=None, limit=9, words=("fug",))).rows) == 1
    await store.put(second)
    assert await store.orphans() == [] and await store.get("ada", "resp_2") == second
    await store.close()


_OPENS_TWELVE_TIMES = """
import asyncio, os, sys
from antiphon.stores.database.schema import migrate
from antiphon.stores.database.upgrade import upgrade
from antiphon.stores.sql.store import SqlStore

async def open():
    store = SqlStore(sys.argv[1])
    await store.open()
    await store.keys.all()
    await store.close()

start, go = os.pipe()
for _ in range(12):
    if not os.fork():
        os.close(go)
        os.read(start, 1)  # returns in all of them at once, when the last writer closes the pipe
        asyncio.run(open())
        os._exit(0)
os.close(go)
sys.exit(sum(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(12)))
"""


def test_twelve_first_starts_at_once_all_succeed(url: str) -> None:
    done = forks.run([sys.executable, "-c", _OPENS_TWELVE_TIMES, url], capture_output=True, text=True)
    assert (done.returncode, done.stderr[-1000:]) == (0, "")


async def test_a_server_goes_on_beside_a_newer_one_that_only_added_to_the_tables(url: str) -> None:
    """A later version adds a column and says that this version's servers may go on; one of them starts after that."""
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    before = SqlStore(url)
    await before.open()
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE responses ADD COLUMN note TEXT"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()
    after = SqlStore(url)
    await after.open()
    for number, store in enumerate((before, after)):
        record = response(f"resp_{number}")
        await store.put(record)
        assert await before.get("ada", record.id) == await after.get("ada", record.id) == record
    await before.close()
    await after.close()


OLDER_RESPONSE = """
INSERT INTO responses (id, tenant, created_at, status, model, body, owner)
VALUES ('resp_1', 'ada', 1, 'completed', 'm', :body, NULL)
"""


async def test_a_response_that_an_older_server_made_or_ended_is_read(url: str) -> None:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    store = SqlStore(url)
    await store.open()
    ours = replace(response("resp_2", "in_progress"), notes=b'{"routing":1}')
    await store.put(ours)
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.execute(text(OLDER_RESPONSE), {"body": b"{}"})
        await connection.execute(text("UPDATE responses SET status = 'completed', owner = NULL WHERE id = 'resp_2'"))
    await engine.dispose()
    theirs = await store.get("ada", "resp_1")
    assert theirs is not None and theirs.notes is None
    assert await store.get("ada", "resp_2") == replace(ours, status="completed")
    await store.close()


OLDER_KEY = """
INSERT INTO keys (id, hash, prefix, name, tenant, scopes, created_at)
VALUES ('key_1', :hash, 'ak-0000', 'laptop', 'ada', 'models:read', 1)
"""


async def test_a_response_that_an_older_server_stores_beside_this_one_is_listed(url: str) -> None:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    store = SqlStore(url)
    await store.open()
    await store.put(response("resp_0"))
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.execute(text(OLDER_RESPONSE), {"body": b"{}"})
        await connection.execute(text("UPDATE responses SET previous_response_id = 'resp_0' WHERE id = 'resp_1'"))
    await engine.dispose()
    assert [row.id for row in (await store.lists.page("ada", ResponseQuery(limit=9))).rows] == ["resp_1", "resp_0"]
    await store.lists.index({each.number: [] for each in await store.lists.to_index(None, 9)})
    (tree,) = (await store.lists.roots("ada", after=None, limit=9)).rows
    assert (tree.id, tree.latest.id, tree.count) == ("resp_0", "resp_1", 2)
    await store.close()


OLD_TREES = """
INSERT INTO responses (number, id, tenant, created_at, status, model, previous_response_id, body) VALUES
    (1, 'resp_a', 'ada', 1, 'completed', 'm', NULL, :body), (2, 'resp_b', 'ada', 1, 'completed', 'm', 'resp_a', :body),
    (3, 'resp_c', 'ada', 1, 'completed', 'm', 'resp_b', :body), (4, 'resp_d', 'ada', 1, 'completed', 'm', 'resp_a', :body),
    (5, 'resp_e', 'ada', 1, 'completed', 'm', 'resp_gone', :body), (6, 'resp_f', 'ada', 1, 'completed', 'm', 'resp_gone', :body),
    (7, 'resp_g', 'eve', 1, 'completed', 'm', 'resp_a', :body), (8, 'resp_h', 'ada', 1, 'completed', 'm', 'resp_f', :body)
"""


async def test_old_responses_get_the_roots_of_their_trees(url: str) -> None:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.run_sync(make_0001)
        await connection.execute(text("DELETE FROM items"))
        await connection.execute(text("DELETE FROM responses"))
        await connection.execute(text(OLD_TREES), {"body": b"{}"})
    await engine.dispose()
    store = SqlStore(url)
    await store.open()
    for tenant, expected in {"ada": {"resp_a": 4, "resp_gone": 3}, "eve": {"resp_a": 1}}.items():
        assert {row.id: row.count for row in (await store.lists.roots(tenant, after=None, limit=9)).rows} == expected
    await store.close()


async def test_a_key_that_an_older_server_made_has_no_profile(url: str) -> None:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    store = SqlStore(url)
    await store.open()
    engine = create_async_engine(make_url(url).set(drivername=driver[make_url(url).drivername]))
    async with engine.begin() as connection:
        await connection.execute(text(OLDER_KEY), {"hash": b"1"})
    await engine.dispose()
    record, _ = make_key("app", now=2, profile="eugpt")
    await store.keys.add(record)
    assert [key.profile for key in await store.keys.all()] == [None, "eugpt"]
    await store.close()


LAYOUT = """
SELECT 'column', table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
    WHERE table_schema = 'public'
UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '' FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
"""


async def test_postgresql_gets_the_same_tables_at_once_and_by_migrations(postgres: Any) -> None:
    layouts = []
    for make in (migrate, upgrade):
        engine = create_async_engine(make_url(postgres.new_database()).set(drivername="postgresql+asyncpg"))
        async with engine.begin() as connection:
            await connection.run_sync(make)
            layouts.append({*(await connection.execute(text(LAYOUT))).all()})
        await engine.dispose()
    assert layouts[0] == layouts[1]
