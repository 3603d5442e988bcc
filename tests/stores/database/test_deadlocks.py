"""
Servers that share a database and change the same rows wait for each other in one order, whatever PostgreSQL plans.

In each test another transaction has locked the middle one of three rows. Two uses come up to it, from both ends if they
lock rows in different orders, and have each other's rows when it lets go.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from antiphon.errors import StoreError
from antiphon.records import BackgroundRecord, ClientSecretRecord, DisabledEndpoint, EventRun, FileBatchRecord
from antiphon.stores.sql.store import SqlStore
from contracts.test_vector_stores import new_file, new_store
from contracts.test_webhook_stores import claim, end
from support.stores.responses import response

pytestmark = pytest.mark.anyio

PLANS: Sequence[dict[str, str]] = (
    {},
    {"enable_seqscan": "off", "enable_bitmapscan": "off"},
    {"enable_indexscan": "off", "enable_bitmapscan": "off", "enable_indexonlyscan": "off"},
)

TIMEOUT_S = 120  # each wait is for programs that a busy machine starts

Use = Callable[[SqlStore], Awaitable[object]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Crossing:
    """Two stores of one database."""

    def __init__(self, postgres: Any, url: str) -> None:
        self._postgres = postgres
        self._database = urlsplit(url).path.removeprefix("/")
        self.one, self.other, self._between = (SqlStore(url, timeout_s=TIMEOUT_S) for _ in range(3))

    async def __aenter__(self) -> "Crossing":
        for store in (self.one, self.other, self._between):
            await store.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for store in (self.one, self.other, self._between):
            await store.close()

    async def execute(self, *statements: str) -> None:
        for statement in statements:
            async with self._between._database.write() as connection:
                await connection.execute(text(statement))

    async def meet(self, table: str, middle: str, one_use: Use, other_use: Use) -> tuple[object, object]:
        """What both uses return, which come up to the row in the middle, or leave it out."""
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            async with self._between._database.write() as connection:
                locked = (await connection.execute(text(f"SELECT 1 FROM {table} WHERE {middle} FOR UPDATE"))).all()
                assert len(locked) == 1
                one = group.create_task(_result(one_use(self.one)))
                while not one.done() and await self.count_waiting() < 1:
                    pass
                other = group.create_task(_result(other_use(self.other)))
                while not other.done() and await self.count_waiting() < 2 - one.done():
                    pass
        return one.result(), other.result()

    async def count_waiting(self) -> int:
        """How many transactions of the database wait for another one."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{self._database}'"
        [count] = await asyncio.to_thread(self._postgres.execute, query, "postgres")
        return int(count)


async def _result(use: Awaitable[object]) -> object:
    return await use


def new_batch() -> FileBatchRecord:
    return FileBatchRecord(id="batch", store_id="vs_1", created_at=1)


async def delete_all(store: SqlStore) -> list[bool]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.delete("ada", f"resp_{letter}")) for letter in "abc"]
    return [task.result() for task in tasks]


@pytest.fixture(
    params=[PLANS[0], *(pytest.param(plans, marks=pytest.mark.long) for plans in PLANS[1:])],
    ids=["default", "index scans", "sequential scans"],
)
def crossing(postgres: Any, request: pytest.FixtureRequest) -> Any:
    url = postgres.new_store()
    with postgres.plans(url, **request.param):
        yield Crossing(postgres, url)


async def test_noting_words_and_deleting_responses(crossing: Crossing) -> None:
    async with crossing:
        for letter in "cba":
            await crossing.one.put(response(f"resp_{letter}"))
        numbers = [each.number for each in await crossing.one.lists.to_index(None, 10)]
        noted, deleted = await crossing.meet(
            "responses", "id = 'resp_b'", lambda store: store.lists.index({number: ["owl"] for number in numbers}), delete_all
        )
        assert (noted, deleted) == (None, [True, True, True])


async def test_expiring_events_and_deleting_responses(crossing: Crossing) -> None:
    async with crossing:
        for letter in "cba":
            background = BackgroundRecord(key_id=None, request=b"{}", is_streamed=True)
            await crossing.one.background.add(response(f"resp_{letter}", "queued"), background, EventRun(0, 1, b"x"))
        for letter in "cba":
            await crossing.one.background.finish(response(f"resp_{letter}"), EventRun(1, 1, b"y"))
        number = "(SELECT number FROM responses WHERE id = 'resp_b')"
        expired, deleted = await crossing.meet(
            "response_events", f"response_number = {number} AND first = 0", lambda store: store.background.expire(2**40, 0), delete_all
        )
        assert (expired, deleted) == (3, [True, True, True])


FILE_USES: dict[str, Use] = {
    "release": lambda store: store.indexes.release(),
    "cancel": lambda store: store.vector_stores.cancel_batch("ada", "vs_1", "batch"),
    "add again": lambda store: store.vector_stores.add_files("ada", "vs_1", [new_file(f"f{number}") for number in (1, 2, 3)], now=100),
    "erase": lambda store: store.vector_stores.erase(100),
}


@pytest.mark.parametrize(
    ("one_use", "other_use"),
    [("release", "add again"), ("cancel", "add again"), ("erase", "release"), ("erase", "cancel"), ("release", "cancel")],
)
async def test_files_of_a_vector_store(crossing: Crossing, one_use: str, other_use: str) -> None:
    async with crossing:
        await crossing.one.vector_stores.create(new_store(), [])
        files = [new_file(f"f{number}", batch_id="batch") for number in (3, 2, 1)]
        assert await crossing.one.vector_stores.add_files("ada", "vs_1", files, now=100, batch=new_batch())
        server_number = crossing.one._database.server_number
        await crossing.execute(
            f"UPDATE vector_store_files SET owner = {server_number}",
            # Their places in the table are 1, 2, 3.
            *(f"UPDATE vector_store_files SET filename = 'x' WHERE file_id = 'f{number}'" for number in (2, 3)),
        )
        if one_use == "erase":
            await crossing.execute("UPDATE vector_stores SET state = 'expired'")
        await crossing.meet("vector_store_files", "file_id = 'f2'", FILE_USES[one_use], FILE_USES[other_use])
        page = await crossing.other.indexes.claim()
        assert (page is not None) is (other_use == "add again")


async def test_deliveries_that_are_released_failed_and_expired(crossing: Crossing) -> None:
    """Those who tidy up leave what another transaction is at, which may be doing the same."""
    async with crossing:
        await end(crossing.one, "resp_1", "resp_2", "resp_3")
        assert len(await claim(crossing.one)) == 3
        await crossing.execute("UPDATE webhook_deliveries SET owner = 1, expires_at = 5")
        endpoint = DisabledEndpoint(name="hook", url_hash=b"1", disabled_at=1)
        released, _ = await crossing.meet(
            "webhook_deliveries",
            "response_id = 'resp_2'",
            lambda store: store.webhooks.release_orphans(1000),
            lambda store: store.webhooks.disable(endpoint, "gone"),
        )
        assert released == 2
        assert {each.status for each in await crossing.one.webhooks.latest(None, None, 10)} == {"failed"}
        counts = await crossing.meet(
            "webhook_deliveries",
            "response_id = 'resp_2'",
            lambda store: store.webhooks.expire(5),
            lambda store: store.webhooks.expire(5),
        )
        assert counts == (2, 0)


async def test_client_secrets_that_expire_keep_nobody_waiting(crossing: Crossing) -> None:
    def add(id: str) -> Use:
        secret = ClientSecretRecord(hash=id.encode(), key_id=None, session=b"{}", created_at=100, expires_at=200)
        return lambda store: store.client_secrets.add(secret)

    async with crossing:
        values = ", ".join(f"('{id}', '', 1, {expiry})" for id, expiry in (("a", 3), ("b", 2), ("c", 1)))
        await crossing.execute(f"INSERT INTO client_secrets (hash, session, created_at, expires_at) VALUES {values}")
        await crossing.meet("client_secrets", "hash = 'b'", add("d"), add("e"))
        assert [await crossing.one.client_secrets.find(id) is not None for id in (b"a", b"b", b"c", b"d", b"e")] == [
            *(False, True, False),
            *(True, True),
        ]


async def test_two_servers_that_are_told_at_once_that_an_endpoint_is_gone(postgres: Any) -> None:
    crossing = Crossing(postgres, postgres.new_store())
    endpoint = DisabledEndpoint(name="hook", url_hash=b"1", disabled_at=5)
    async with crossing:
        await end(crossing.one, "resp_1")
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            async with crossing.one._database.write() as connection:
                await connection.execute(text("INSERT INTO disabled_webhooks (name, url_hash, disabled_at) VALUES ('hook', '', 1)"))
                disabling = group.create_task(crossing.other.webhooks.disable(endpoint, "gone"))
                while not await crossing.count_waiting():
                    pass
        assert disabling.done()
        assert await crossing.one.webhooks.list_disabled() == [endpoint]
        assert [each.status for each in await crossing.one.webhooks.latest(None, None, 10)] == ["failed"]


async def test_a_client_whose_request_was_ended_to_let_another_go_on_may_try_again(postgres: Any) -> None:
    """No use of a store does this, but the operator's own programs may lock rows too."""
    crossing = Crossing(postgres, postgres.new_store())

    async def lock(store: SqlStore, ids: Sequence[str], barrier: asyncio.Barrier) -> StoreError | None:
        try:
            async with store._database.write() as connection:
                await connection.execute(text(f"SELECT 1 FROM responses WHERE id = '{ids[0]}' FOR UPDATE"))
                await barrier.wait()
                await connection.execute(text(f"SELECT 1 FROM responses WHERE id = '{ids[1]}' FOR UPDATE"))
        except StoreError as error:
            return error
        return None

    async with crossing:
        for id in ("resp_1", "resp_2"):
            await crossing.one.put(response(id))
        barrier = asyncio.Barrier(2)
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(lock(crossing.one, ("resp_1", "resp_2"), barrier)),
                group.create_task(lock(crossing.other, ("resp_2", "resp_1"), barrier)),
            ]
        [error] = [error for task in tasks if (error := task.result()) is not None]
        assert (error.status, error.code) == (503, "store_unavailable")
        assert "at the same time" in error.operator_message
        assert not any(store.availability.is_out for store in (crossing.one, crossing.other))
