"""What every store does with deliveries of webhooks."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.records import BackgroundRecord, DisabledEndpoint, EndedResponse, EventRun, ResponseRecord, WebhookDelivery
from antiphon.stores.base import Store
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from antiphon.stores.webhooks import MAX_HISTORY
from contracts.test_stores import anyio_backend as anyio_backend, response
from support.stores.tables import sqlite_store

pytestmark = pytest.mark.anyio


class Subscriber:
    """Wants a delivery to `hook` of every response, and to others on request."""

    def __init__(self, *endpoints: str, limit: int = 10_000) -> None:
        self.endpoints = endpoints or ("hook",)
        self.limit = limit
        self.heard: list[EndedResponse] = []
        self.calls = 0
        self.too_many: list[WebhookDelivery] = []

    def deliveries(self, response: EndedResponse) -> Sequence[WebhookDelivery]:
        self.heard.append(response)
        return [delivery(f"wh_{response.id}_{name}", endpoint=name, response_id=response.id) for name in self.endpoints]

    def max_pending(self, endpoint: str) -> int:
        return self.limit

    def on_deliveries(self, dropped_ones: Sequence[WebhookDelivery]) -> None:
        self.calls += 1
        self.too_many += dropped_ones


def delivery(id: str, endpoint: str = "hook", response_id: str = "resp_1", due_at_ms: int = 1000) -> WebhookDelivery:
    return WebhookDelivery(
        id=id,
        endpoint=endpoint,
        event="response.completed",
        tenant="ada",
        response_id=response_id,
        body=b'{"type":"x"}',
        created_at=1,
        expires_at=100,
        due_at_ms=due_at_ms,
    )


def as_(id: str, status: str) -> ResponseRecord:
    return response(id, status=status)


async def begin(store: Store, id: str = "resp_1", key_id: str | None = "key_1") -> None:
    await store.background.add(as_(id, "queued"), BackgroundRecord(key_id=key_id, request=b"{}", is_streamed=False), None)


async def end(store: Store, *ids: str) -> Subscriber:
    subscriber = Subscriber()
    store.webhooks.subscribe(subscriber)
    for id in ids or ("resp_1",):
        await begin(store, id)
        assert await store.background.finish(as_(id, "completed"), None)
    return subscriber


async def claim(store: Store, now_ms: int = 1000, limit: int = 10, lease_until_ms: int = 60_000, endpoint: str = "hook") -> list[str]:
    return [each.id for each in await store.webhooks.claim(endpoint, now_ms, lease_until_ms, limit)]


async def test_the_end_of_a_background_response_stores_what_is_to_be_sent(store: Store) -> None:
    subscriber = await end(store)
    assert subscriber.heard == [EndedResponse(id="resp_1", tenant="ada", status="completed", key_id="key_1")]
    assert (subscriber.calls, subscriber.too_many) == (1, [])
    assert list(await store.webhooks.latest(None, None, 10)) == [delivery("wh_resp_1_hook")]
    assert await store.webhooks.count_pending() == {"hook": 1}


async def test_an_end_from_outside_does_so_as_well(store: Store) -> None:
    subscriber = Subscriber()
    store.webhooks.subscribe(subscriber)
    for id, status in (("resp_1", "cancelled"), ("resp_2", "failed")):
        await begin(store, id, None)
        assert await store.background.end(as_(id, status), lambda first: EventRun(first, 1, b""))
        assert not await store.background.end(as_(id, status), lambda first: EventRun(first, 1, b""))
    assert [(each.id, each.status, each.key_id) for each in subscriber.heard] == [("resp_1", "cancelled", None), ("resp_2", "failed", None)]
    assert await store.webhooks.count_pending() == {"hook": 2}


async def test_what_has_not_ended_or_is_no_background_response_sends_nothing(store: Store) -> None:
    subscriber = Subscriber()
    store.webhooks.subscribe(subscriber)
    await store.put(as_("resp_0", "in_progress"))
    assert await store.finish(as_("resp_0", "completed"))
    await begin(store)
    assert await store.background.finish(as_("resp_1", "in_progress"), None)
    assert subscriber.heard == []
    assert await store.background.finish(as_("resp_1", "incomplete"), None)
    assert not await store.background.finish(as_("resp_1", "completed"), None)
    assert [each.status for each in subscriber.heard] == ["incomplete"]


async def test_without_a_subscriber_nothing_is_stored(store: Store) -> None:
    await begin(store)
    assert await store.background.finish(as_("resp_1", "completed"), None)
    assert len(await store.webhooks.latest(None, None, 10)) == 0


async def test_a_delivery_outlives_its_response(store: Store) -> None:
    await end(store)
    assert await store.delete("ada", "resp_1")
    assert await claim(store) == ["wh_resp_1_hook"]


async def test_what_is_beyond_the_limit_is_dropped_for_that_endpoint_alone(store: Store) -> None:
    subscriber = Subscriber("hook", "other", limit=2)
    store.webhooks.subscribe(subscriber)
    for number in range(3):
        await begin(store, f"resp_{number}")
        assert await store.background.finish(as_(f"resp_{number}", "completed"), None)
    assert [each.id for each in subscriber.too_many] == ["wh_resp_2_hook", "wh_resp_2_other"]
    assert await store.webhooks.count_pending() == {"hook": 2, "other": 2}


async def test_a_claim_is_given_once_until_its_lease_ends(store: Store) -> None:
    await end(store)
    assert await claim(store, now_ms=999) == []
    assert set(await store.webhooks.find_due(999)) == set()
    assert set(await store.webhooks.find_due(1000)) == {"hook"}
    assert await claim(store, endpoint="other") == []
    assert await claim(store) == ["wh_resp_1_hook"]
    assert await claim(store, now_ms=59_999) == []
    assert set(await store.webhooks.find_due(59_999)) == set()
    assert await claim(store, now_ms=60_000, lease_until_ms=90_000) == ["wh_resp_1_hook"]


async def test_the_oldest_are_claimed_first_and_no_more_than_asked_for(store: Store) -> None:
    await end(store, "resp_1", "resp_2", "resp_3")
    claims = await store.webhooks.claim("hook", 1000, 60_000, 3)
    for each, due_at_ms in zip(claims, (3000, 2000, 1500), strict=True):
        assert await store.webhooks.settle(replace(each, attempts=1, due_at_ms=due_at_ms, error="no"))
    late = await store.webhooks.claim("hook", 4000, 60_000, 2)
    assert sorted(each.attempts for each in late) == [1, 1]
    assert sorted(each.id for each in late) == sorted(each.id for each in claims[1:])


async def test_the_outcome_of_an_attempt_is_stored_once(store: Store) -> None:
    await end(store)
    [first] = await store.webhooks.claim("hook", 1000, 60_000, 1)
    again = replace(first, attempts=1, due_at_ms=5000, error="no answer")
    assert await store.webhooks.settle(again)
    assert not await store.webhooks.settle(again)
    assert await store.webhooks.count_pending() == {"hook": 1}
    [second] = await store.webhooks.claim("hook", 5000, 60_000, 1)
    assert (second.attempts, second.error, second.body) == (1, "no answer", b'{"type":"x"}')
    sent = replace(second, attempts=2, status="delivered", ended_at=6, error=None)
    assert await store.webhooks.settle(sent)
    assert list(await store.webhooks.latest("hook", "delivered", 10)) == [sent]
    assert await store.webhooks.count_pending() == {}
    assert await claim(store, now_ms=10**9) == []


async def test_the_newest_are_listed_first_by_endpoint_and_status(store: Store) -> None:
    await end(store, "resp_1", "resp_2")
    assert [each.response_id for each in await store.webhooks.latest(None, None, 10)] == ["resp_2", "resp_1"]
    assert [each.response_id for each in await store.webhooks.latest("hook", "pending", 1)] == ["resp_2"]
    assert len(await store.webhooks.latest("hook", "failed", 10)) == 0
    assert len(await store.webhooks.latest("other", None, 10)) == 0


async def test_one_that_has_ended_is_sent_again(store: Store) -> None:
    await end(store)
    assert not await store.webhooks.resend("wh_resp_1_hook", 9000, 200)
    assert not await store.webhooks.resend("wh_none", 9000, 200)
    assert not await store.webhooks.resend("wh_\0", 9000, 200)
    [first] = await store.webhooks.claim("hook", 1000, 60_000, 1)
    assert await store.webhooks.settle(replace(first, attempts=3, status="failed", ended_at=6, error="no"))
    assert await store.webhooks.resend("wh_resp_1_hook", 9000, 200)
    assert await claim(store, now_ms=8999) == []
    [again] = await store.webhooks.claim("hook", 9000, 60_000, 1)
    assert (again.id, again.status, again.attempts, again.expires_at, again.ended_at) == ("wh_resp_1_hook", "pending", 0, 200, None)


async def test_old_ones_are_deleted(store: Store) -> None:
    await end(store, "resp_1", "resp_2", "resp_3")
    claims = await store.webhooks.claim("hook", 1000, 60_000, 2)
    for each, ended_at in zip(claims, (50, 60), strict=True):
        assert await store.webhooks.settle(replace(each, status="delivered", attempts=1, ended_at=ended_at))
    assert await store.webhooks.expire(60) == 1
    assert len(await store.webhooks.latest(None, None, 10)) == 2
    assert await store.webhooks.expire(100) == 1
    assert await store.webhooks.expire(101) == 1  # nobody has sent it, and it has expired
    assert len(await store.webhooks.latest(None, None, 10)) == 0


async def test_an_endpoint_is_disabled_with_what_waits_for_it(store: Store) -> None:
    await end(store, "resp_1", "resp_2")
    [claimed_one] = await store.webhooks.claim("hook", 1000, 60_000, 1)
    endpoint = DisabledEndpoint(name="hook", url_hash=b"\x00\xff", disabled_at=70)
    await store.webhooks.disable(endpoint, "gone")
    await store.webhooks.disable(endpoint, "gone")
    assert list(await store.webhooks.list_disabled()) == [endpoint]
    assert {(each.status, each.error, each.ended_at) for each in await store.webhooks.latest(None, None, 10)} == {("failed", "gone", 70)}
    assert not await store.webhooks.settle(replace(claimed_one, status="delivered"))
    assert await store.webhooks.enable("hook")
    assert not await store.webhooks.enable("hook")
    assert len(await store.webhooks.list_disabled()) == 0


async def test_what_a_living_server_has_stays_its_own(store: Store) -> None:
    await end(store, "resp_1", "resp_2")
    assert len(await claim(store, limit=1)) == 1
    assert await store.webhooks.release_orphans(2000) == 0
    assert len(await claim(store, now_ms=2000)) == 1


async def test_what_was_claimed_before_a_store_in_memory_was_opened_anew_can_be_claimed() -> None:
    store = MemoryStore()
    await end(store)
    assert len(await claim(store)) == 1
    await store.open()
    assert len(await claim(store)) == 1


async def test_a_store_in_memory_forgets_the_oldest_that_have_ended() -> None:
    store = MemoryStore()
    await end(store, *(f"resp_{number}" for number in range(MAX_HISTORY)), "resp_next", "resp_last")
    for each in await store.webhooks.claim("hook", 1000, 60_000, MAX_HISTORY + 1):
        assert await store.webhooks.settle(replace(each, status="delivered", ended_at=5))
    rest = await store.webhooks.latest(None, None, MAX_HISTORY + 9)
    assert len(rest) == MAX_HISTORY + 1 and rest[0].status == "pending" and rest[-1].response_id == "resp_1"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_servers_that_claim_at_the_same_time_get_different_ones(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue("postgres").new_store() if kind == "postgresql" else sqlite_store(tmp_path / "store.sqlite3")
    stores = (SqlStore(url, (1, 2)), SqlStore(url, (2, 1)))
    for store in stores:
        await store.open()
    await end(stores[0], *(f"resp_{number}" for number in range(40)))
    async with asyncio.TaskGroup() as tasks:
        claims = [tasks.create_task(claim(stores[number % 2], limit=5)) for number in range(8)]
    ids = [id for each in claims for id in each.result()]
    ids += await claim(stores[0], limit=40)  # PostgreSQL gives fewer where it skips what another has locked
    assert len(ids) == len(set(ids)) == 40
    for store in stores:
        await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_another_server_takes_over_from_a_dead_one(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue("postgres").new_store() if kind == "postgresql" else sqlite_store(tmp_path / "store.sqlite3")
    first, second = SqlStore(url), SqlStore(url)
    await first.open()
    await end(first, "resp_1", "resp_2")
    [lost_claim] = await first.webhooks.claim("hook", 1000, 60_000, 1)
    await first.close()
    await second.open()
    try:
        assert await claim(second) == [f"wh_resp_{3 - int(lost_claim.response_id[-1])}_hook"]
        assert await second.webhooks.release_orphans(2000) == 1
        assert await claim(second, now_ms=2000) == [lost_claim.id]
    finally:
        await second.close()
