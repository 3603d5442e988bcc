"""What a store in PostgreSQL does beyond the contract: several servers share it, and it outlives a restart of the database."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ServerError, StoreError
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.sql.store import SqlStore
from contracts import test_vector_stores as index_stores, test_webhook_stores as webhook_stores
from support.stores.responses import response

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def opened(url: str) -> SqlStore:
    store = SqlStore(url)
    await store.open()
    return store


async def orphans(store: SqlStore) -> list[str]:
    return [record.id for record in await store.orphans()]


# Several servers


async def test_a_server_leaves_what_another_works_on_until_that_one_is_gone(postgres: Any) -> None:
    url = postgres.new_store()
    one, other = await opened(url), await opened(url)
    await one.put(response("resp_1", "in_progress"))
    assert await orphans(other) == []
    await one.close()
    assert await orphans(other) == ["resp_1"]
    assert await other.write_off(response("resp_1", "failed"))
    assert await orphans(other) == []
    await other.close()


_WORKS_UNTIL_KILLED = """
import asyncio, sys
from antiphon.stores.database.connection import TimedConnection
from antiphon.stores.sql.store import SqlStore
sys.path.insert(0, sys.argv[2])
from support.stores.responses import response

async def main():
    store = SqlStore(sys.argv[1])
    await store.open()
    await store.put(response("resp_1", "in_progress"))
    await store.put(response("resp_2", "completed"))
    print("kept", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_server_s_responses_are_nobody_s(postgres: Any) -> None:
    url = postgres.new_store()
    command = [sys.executable, "-c", _WORKS_UNTIL_KILLED, url, str(Path(__file__).parents[2])]
    survivor = await opened(url)
    worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert worker.stdout and await worker.stdout.readline() == b"kept\n"
    assert await orphans(survivor) == []
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    while not await orphans(survivor):  # the database takes a moment to see that the connection has ended
        pass
    assert await orphans(survivor) == ["resp_1"]
    assert await survivor.get("ada", "resp_2") == response("resp_2")
    await survivor.close()


async def test_a_server_that_closes_says_so_itself(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL may notice the end of its connection only after the next server's start."""
    url = postgres.new_store()
    first = await opened(url)
    await first.put(response("resp_1", "in_progress"))

    still_connected: list[TimedConnection] = []
    with monkeypatch.context() as patch:

        async def stay_connected(connection: TimedConnection) -> None:
            still_connected.append(connection)

        patch.setattr(TimedConnection, "discard", stay_connected)
        await first.close()
    second = await opened(url)
    try:
        assert await orphans(second) == ["resp_1"]
    finally:
        for connection in still_connected:
            await connection.discard()
        await second.close()


async def test_what_was_written_off_stays_failed_when_its_server_wakes_up(postgres: Any) -> None:
    """A server that slept lost its lock, and another one failed its response; then it wakes and has finished."""
    url = postgres.new_store()
    sleeper, other = await opened(url), await opened(url)
    await sleeper.put(response("resp_1", "in_progress"))
    database = url.removeprefix("postgresql://antiphon@/").partition("?")[0]
    number = sleeper._database.server_number
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = {number}", database)
    while not await orphans(other):  # the connection ends a moment later
        pass
    assert await other.write_off(response("resp_1", "failed"))
    assert await sleeper.finish(response("resp_1")) is False
    await sleeper.check()
    assert await sleeper.finish(response("resp_1")) is False
    failed = await other.get("ada", "resp_1")
    assert failed is not None and failed.status == "failed"
    for store in (sleeper, other):
        await store.close()


async def test_a_server_that_is_back_in_time_is_not_written_off(postgres: Any) -> None:
    url = postgres.new_store()
    one, other = await opened(url), await opened(url)
    await one.put(response("resp_1", "in_progress"))
    postgres.stop()
    postgres.start()
    assert await orphans(other) == ["resp_1"], "the first look"
    await one.check()
    assert await other.write_off(response("resp_1", "failed")) is False
    assert await one.finish(response("resp_1")) is True
    for store in (one, other):
        await store.close()


async def test_servers_that_write_the_same_responses_do_not_get_in_each_others_way(postgres: Any) -> None:
    url = postgres.new_store()
    stores = [await opened(url), await opened(url)]
    ids = [f"resp_{number}" for number in range(20)]
    for id in ids:
        await stores[0].put(response(id, "in_progress"))

    async def finish(store: SqlStore, order: list[str]) -> set[bool]:
        results = set()
        for _ in range(10):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(store.finish(response(id, "in_progress"))) for id in order]
            results |= {task.result() for task in tasks}
        return results

    async with asyncio.TaskGroup() as group:
        owner, other = group.create_task(finish(stores[0], ids)), group.create_task(finish(stores[1], ids[::-1]))
    assert (owner.result(), other.result()) == ({True}, {False})
    assert [await stores[0].get("ada", id) for id in ids] == [response(id, "in_progress") for id in ids]
    for store in stores:
        await store.close()


async def test_a_reader_never_sees_half_of_a_replacement(postgres: Any) -> None:
    store = await opened(postgres.new_store())
    await store.put(response("resp_1", body=b"0"))

    async def replace() -> None:
        for number in range(100):
            await store.put(response("resp_1", body=str(number).encode()))

    async with asyncio.TaskGroup() as group:
        replacing = group.create_task(replace())
        while not replacing.done():
            seen = await store.get("ada", "resp_1")
            assert seen and {item.body for item in seen.items} == {seen.body}
    await store.close()


async def test_a_claim_takes_no_more_than_its_limit_whatever_the_plan(postgres: Any) -> None:
    """That of a table which the planner thinks small: it compares row by row, and may run the query in an `IN` for each."""
    url = postgres.new_store()
    slow_joins = {f"enable_{way}": "off" for way in ("hashjoin", "mergejoin", "hashagg", "material", "sort")}
    with postgres.plans(url, **slow_joins):
        store = await opened(url)
        await index_stores.create(store, "file-1", "file-2", "file-3")
        assert [(await index_stores.claim(store)).file.file_id for _ in range(3)] == ["file-1", "file-2", "file-3"]
        await webhook_stores.end(store, "resp_1", "resp_2", "resp_3", "resp_4", "resp_5")
        assert [len(await webhook_stores.claim(store, limit=2)) for _ in range(3)] == [2, 2, 1]
        await store.close()


# Trouble


async def test_a_restart_of_the_database_is_survived(postgres: Any) -> None:
    store = await opened(postgres.new_store())
    await store.put(response("resp_1", "in_progress"))
    postgres.stop()
    with pytest.raises(StoreError) as away:
        await store.get("ada", "resp_1")
    assert away.value.operator_message.startswith("The store at postgresql://") and "can't be" in away.value.operator_message
    with pytest.raises(ServerError):
        await store.put(response("resp_2"))
    with pytest.raises(ServerError):
        await store.orphans()
    postgres.start()
    assert await orphans(store) == []  # still ours
    await store.put(response("resp_2"))
    assert await store.get("ada", "resp_2") == response("resp_2")
    await store.close()


async def fault_of_opening(url: str) -> str:
    with pytest.raises(ServerError) as fault:
        await opened(url)
    return fault.value.message


async def test_a_database_that_is_not_there_is_told(postgres: Any) -> None:
    assert "has no database of that name. Make it with `createdb`" in await fault_of_opening(postgres.url("atlantis"))


async def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    told = await fault_of_opening("postgresql://ada:secret@127.0.0.1:1/store")
    assert "can't be opened: " in told and "secret" not in told


async def test_a_user_without_rights_is_told(postgres: Any) -> None:
    url = postgres.new_database()
    postgres.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN", "postgres")
    assert "permission denied. Grant this user" in await fault_of_opening(url.replace("//antiphon@", "//guest@"))


async def test_a_newer_schema_is_left_alone(postgres: Any) -> None:
    url = postgres.new_database()
    await (await opened(url)).close()
    newer = "UPDATE alembic_version SET version_num = '9999'; UPDATE schema_compatibility SET oldest_server = '9998'"
    postgres.execute(newer, url.rpartition("/@/")[2].split("?")[0].rpartition("/")[2] or "x")
    assert "newer version of antiphon (schema 9999)" in await fault_of_opening(url)
