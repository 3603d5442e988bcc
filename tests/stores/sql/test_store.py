"""What a store in a SQL database does beyond the contract: its data lasts, and its errors name the cause."""

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from antiphon.errors import ServerError, StoreError
from antiphon.records import ItemRecord, ResponseRecord
from antiphon.runtime.access.keys import make_key
from antiphon.stores.base import MissingAncestor, Store, UnknownCursor
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from support.programs import forks
from support.stores.responses import response
from support.stores.tables import sqlite_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "store.sqlite3"


async def opened(file: Path, options: str = "") -> SqlStore:
    store = SqlStore(f"sqlite:///{file}{options}")
    await store.open()
    return store


async def fault_of_opening(file: Path, options: str = "") -> str:
    with pytest.raises(ServerError) as fault:
        await opened(file, options)
    return fault.value.message


# It lasts


async def test_a_first_key_of_another_program_is_seen_without_a_wait(file: Path) -> None:
    server, program = await opened(file), await opened(file)
    for number in range(20):  # whatever else is written meanwhile
        assert server.keys.is_empty_now()
        await server.put(response(f"resp_{number}"))
    await program.keys.add(make_key("laptop", now=1)[0])
    assert not server.keys.is_empty_now()
    await program.close()
    _move_away(file)
    assert not server.keys.is_empty_now(), "it can't tell"
    await (await opened(file)).close()
    assert server.keys.is_empty_now(), "of the file that is there now"
    await server.close()
    assert not [name for name in os.listdir("/proc/self/fd") if str(file.parent) in _target(name)]


def _move_away(file: Path) -> None:
    file.rename(file.with_suffix(".away"))


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # it was that of the list
        return ""


async def test_everything_is_there_when_the_file_is_opened_again(file: Path) -> None:
    first = await opened(file)
    await first.put(response("resp_1"))
    await first.put(response("resp_2"))
    await first.delete("ada", "resp_2")
    await first.close()
    second = await opened(file)
    assert await second.get("ada", "resp_1") == response("resp_1")
    assert await second.get("ada", "resp_2") is None
    await second.close()


async def test_closing_finishes_what_was_asked(file: Path) -> None:
    store = await opened(file)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(store.put(response(f"resp_{number}"))) for number in range(50)]
        group.create_task(store.close())
    assert all(task.done() for task in asked)
    again = await opened(file)
    assert all([await again.get("ada", f"resp_{number}") for number in range(50)])
    await again.close()


_WRITES_UNTIL_KILLED = """
import asyncio, sys
from antiphon.stores.sql.store import SqlStore
sys.path.insert(0, sys.argv[2])
from support.stores.responses import response

async def write(store, worker):
    for number in range(100_000):
        await store.put(response(f"resp_{worker}_{number}"))
        print(f"resp_{worker}_{number}", flush=True)

async def main():
    store = SqlStore(f"sqlite:///{sys.argv[1]}")
    await store.open()
    async with asyncio.TaskGroup() as group:
        for worker in range(10):
            group.create_task(write(store, worker))

asyncio.run(main())
"""


def acknowledged_before_a_kill(file: Path) -> list[str]:
    """The ids that a process reported as stored before it was killed."""
    command = [sys.executable, "-c", _WRITES_UNTIL_KILLED, str(file), str(Path(__file__).parents[2])]
    with forks.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        acknowledged = [writer.stdout.readline().strip() for _ in range(300)]
        writer.send_signal(signal.SIGKILL)
        return acknowledged + [line.strip() for line in writer.stdout if line.endswith("\n")]


async def test_what_was_acknowledged_survives_a_kill(file: Path) -> None:
    acknowledged = acknowledged_before_a_kill(file)
    store = await opened(file)
    assert len(acknowledged) >= 300
    for response_id in acknowledged:
        assert await store.get("ada", response_id) == response(response_id)
    await store.close()


async def test_nobody_else_may_read_the_files(file: Path) -> None:
    store = await opened(file)
    await store.put(response("resp_1"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in [file.parent, *file.parent.iterdir()]}
    await store.close()
    assert modes == {"home": 0o700, "store.sqlite3": 0o600, "store.sqlite3-wal": 0o600, "store.sqlite3-shm": 0o600}


async def test_two_programs_may_share_a_file(file: Path) -> None:
    one, other = await opened(file), await opened(file)
    await one.put(response("resp_1"))
    await other.put(response("resp_2"))
    assert await one.get("ada", "resp_2") and await other.get("ada", "resp_1")
    await one.close()
    await other.close()


# It says what is wrong


async def test_what_a_sibling_works_on_is_left_to_it_and_what_a_dead_one_left_is_nobodys(file: Path) -> None:
    first, second, third = [SqlStore(f"sqlite:///{file}", (number, *{1, 2, 3} - {number})) for number in (1, 2, 3)]
    for store, id in ((first, "resp_1"), (second, "resp_2")):
        await store.open()
        await store.put(msgspec.structs.replace(response(id), status="in_progress"))
    await third.open()
    assert await third.orphans() == []
    await first.close()
    heir = SqlStore(f"sqlite:///{file}", (4, 2, 3))
    await heir.open()
    assert [record.id for record in await heir.orphans()] == ["resp_1"]
    for store in (second, third, heir):
        await store.close()


async def test_one_bad_record_fails_only_its_caller(url: str) -> None:
    store = SqlStore(url)
    await store.open()
    failed: list[str] = []

    async def put(record: ResponseRecord) -> None:
        try:
            await store.put(record)
        except ServerError:
            failed.append(record.id)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(put(response(f"resp_{number}", created_at=2**70 if number == 7 else 1)))
    assert failed == ["resp_7"]
    kept = [number for number in range(20) if await store.get("ada", f"resp_{number}")]
    assert kept == [number for number in range(20) if number != 7]
    await store.close()


async def test_a_disk_that_takes_no_more_fails_the_put_and_nothing_else(file: Path) -> None:
    store = await opened(file)
    await store.put(response("resp_1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StoreError) as full:
            await store.put(response("resp_2", body=bytes(1_000_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "store.sqlite3 can't be read or written: the disk reports an error. Check" in full.value.operator_message
    assert await store.get("ada", "resp_1") == response("resp_1")
    await store.put(response("resp_2"))
    assert await store.get("ada", "resp_2") == response("resp_2")
    await store.close()


async def test_a_locked_file_is_told_on_opening_and_on_putting(file: Path) -> None:
    store = await opened(file, "?timeout=0.01")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as locked:
        await store.put(response("resp_1"))
    assert "store.sqlite3 is locked by another program" in locked.value.operator_message
    empty = sqlite3.connect(file.with_name("empty"), isolation_level=None)
    empty.execute("BEGIN EXCLUSIVE")
    assert "is locked by another program" in await fault_of_opening(file.with_name("empty"), "?timeout=0.01")
    empty.close()
    other.execute("ROLLBACK")
    other.close()
    await store.put(response("resp_1"))
    await store.close()


async def test_a_file_that_is_no_database_is_told_on_opening(tmp_path: Path) -> None:
    file = tmp_path / "diary.txt"
    with file.open("w") as diary:
        diary.write("Dear diary, today I was mistaken for a database.\n" * 100)
    assert f"{file} is not a SQLite database. Move the file away" in await fault_of_opening(file)


def damage(file: Path) -> None:
    """Overwrite all pages but the first, which has the names of the tables."""
    size_bytes = file.stat().st_size
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\x55" * (size_bytes - 4096))


async def test_a_damaged_file_is_told_on_reading(file: Path) -> None:
    store = await opened(file)
    await store.put(response("resp_1"))
    await store.close()
    damage(file)
    damaged = SqlStore(f"sqlite:///{file}")
    with pytest.raises(ServerError) as fault:
        await damaged.open()
        await damaged.get("ada", "resp_1")
    assert "store.sqlite3 is damaged. Move the file away" in fault.value.operator_message
    await damaged.close()


async def test_a_newer_schema_is_left_alone(file: Path) -> None:
    await (await opened(file)).close()
    with sqlite3.connect(file) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.execute("UPDATE schema_compatibility SET oldest_server = '9998'")
    newer.close()
    assert "was last used by a newer version of antiphon (schema 9999)" in await fault_of_opening(file)


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    assert "can't be opened: " in await fault_of_opening(tmp_path / "occupied" / "store.sqlite3")


async def test_a_folder_in_the_files_place_is_told(tmp_path: Path) -> None:
    assert await fault_of_opening(tmp_path) == f"The store at {tmp_path} can't be opened: Is a directory."


async def test_a_closed_store_takes_nothing_more(file: Path) -> None:
    store = await opened(file)
    await store.close()
    with pytest.raises(ServerError, match="The store is closed"):
        await store.put(response("resp_1"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("scroll", "neither `sqlite`, `memory` nor an SQLAlchemy URL"),
        ("sqlite://", "names no file: sqlite://. For a store in memory, set it to `memory`"),
        ("sqlite:///:memory:", "names no file"),
        ("scroll://alexandria/library", "not supported: scroll. Supported are sqlite and postgresql"),
        ("postgresql://h", "names no database: postgresql://h"),
        ("postgres://u:secret@h/d?sslmode=require&colour=red", "has the parameter 'colour', which is not known. Known are 'host', "),
    ],
)
async def test_a_url_that_leads_nowhere_is_told(url: str, told: str) -> None:
    with pytest.raises(ServerError) as fault:
        SqlStore(url)
    assert told in fault.value.message


async def test_people_s_words_are_in_no_message(file: Path) -> None:
    store = await opened(file)
    with pytest.raises(ServerError) as fault:
        await store.put(response("resp_1", body=b"a secret", created_at=2**70))
    assert "secret" not in fault.value.message + fault.value.operator_message
    await store.close()


# It is the store in memory, on disk

_ids = st.sampled_from([f"resp_{number}" for number in range(5)])
_item_ids = st.sampled_from([f"msg_{number}" for number in range(6)])
_tenants = st.sampled_from(["ada", "eve"])
_directions = st.sampled_from(["input", "output"])
_items = st.lists(st.builds(ItemRecord, id=_item_ids, direction=_directions, body=st.binary(max_size=3)), max_size=4).map(tuple)
_records = st.builds(
    ResponseRecord,
    id=_ids,
    tenant=_tenants,
    created_at=st.integers(0, 3),
    status=st.sampled_from(["queued", "in_progress", "completed", "failed"]),
    model=st.just("m"),
    previous_response_id=st.none() | _ids,
    body=st.binary(max_size=3),
    items=_items,
).filter(lambda record: (record.previous_response_id or "") < record.id)  # no circles
_deletions = st.tuples(_tenants, _ids)


class SameAsMemory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.memory = MemoryStore()
        sqlite_store(Path(self.folder.name, "store.sqlite3"))
        self.sql = self.runner.run(opened(Path(self.folder.name, "store.sqlite3")))

    def teardown(self) -> None:
        self.runner.run(self.sql.close())
        self.runner.close()
        self.folder.cleanup()

    def told(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            answer = self.runner.run(work)
        except (MissingAncestor, UnknownCursor) as error:
            return type(error), error.args
        return list(answer) if isinstance(answer, tuple) else answer

    @rule(writes=st.lists(_records | _deletions, min_size=1, max_size=6))
    def write_together(self, writes: list[ResponseRecord | tuple[str, str]]) -> None:
        def write(store: Store, one: ResponseRecord | tuple[str, str]) -> Coroutine[Any, Any, Any]:
            if not isinstance(one, ResponseRecord):
                return store.delete(*one)
            return store.finish(one) if one.status == "failed" else store.put(one)

        async def in_turn() -> list[Any]:
            return [await write(self.memory, one) for one in writes]

        async def at_once() -> list[Any]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(write(self.sql, one)) for one in writes]
            return [task.result() for task in tasks]

        assert self.runner.run(at_once()) == self.runner.run(in_turn())

    @rule(tenant=_tenants, response_id=_ids)
    def look_at_a_response(self, tenant: str, response_id: str) -> None:
        assert self.told(self.sql.get(tenant, response_id)) == self.told(self.memory.get(tenant, response_id))
        assert self.told(self.sql.chain(tenant, response_id)) == self.told(self.memory.chain(tenant, response_id))

    @rule(tenant=_tenants, item_ids=st.lists(_item_ids))
    def look_at_items(self, tenant: str, item_ids: list[str]) -> None:
        assert self.told(self.sql.items(tenant, item_ids)) == self.told(self.memory.items(tenant, item_ids))

    @rule(
        tenant=_tenants,
        response_id=_ids,
        options=st.fixed_dictionaries(
            {
                "direction": _directions,
                "after": st.none() | _item_ids,
                "limit": st.integers(1, 5),
                "order": st.sampled_from(["asc", "desc"]),
            }
        ),
    )
    def list_items(self, tenant: str, response_id: str, options: Any) -> None:
        listed = self.told(self.sql.list_items(tenant, response_id, **options))
        assert listed == self.told(self.memory.list_items(tenant, response_id, **options))

    @rule()
    def look_for_orphans(self) -> None:
        assert self.told(self.sql.orphans()) == self.told(self.memory.orphans())

    @rule()
    def open_again(self) -> None:
        self.runner.run(self.sql.close())
        self.sql = self.runner.run(opened(Path(self.folder.name, "store.sqlite3")))
        self.runner.run(self.memory.open())


TestSameAsMemory = SameAsMemory.TestCase
TestSameAsMemory.settings = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=25)
