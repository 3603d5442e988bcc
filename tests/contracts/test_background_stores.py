"""What every store does with background responses and their events."""

from pathlib import Path

import pytest
from msgspec import structs

from antiphon.records import BackgroundRecord, EventRun, ResponseRecord
from antiphon.stores.base import PAGE_BYTES, Store
from contracts.test_stores import anyio_backend as anyio_backend, item, response
from support.contracts.stores import made

pytestmark = pytest.mark.anyio

STREAMED = BackgroundRecord(key_id="key_1", request=b'{"input":"x"}', is_streamed=True)
QUEUED = response("resp_1", item("msg_1"), status="queued")


def run(first: int, count: int = 1) -> EventRun:
    return EventRun(first, count, b"".join(b"event %d\n\n" % number for number in range(first, first + count)))


def as_(status: str, body: bytes = b"{}") -> ResponseRecord:
    return response("resp_1", item("msg_1"), status=status, body=body)


async def numbers(store: Store, after: int = -1, limit: int = 100) -> list[int]:
    """The numbers of all events in a page."""
    page = await store.background.events("ada", "resp_1", after, limit)
    assert page is not None
    return [number for run in page.runs for number in range(run.first, run.first + run.count)]


async def add(store: Store) -> None:
    await store.background.add(QUEUED, STREAMED, run(0, 2))


async def test_a_new_response_is_there_with_its_first_events(store: Store) -> None:
    await add(store)
    assert await store.get("ada", "resp_1") == QUEUED
    assert await store.background.get("ada", "resp_1") == STREAMED
    page = await store.background.events("ada", "resp_1", -1, 10)
    assert page is not None and page.is_unfinished and not page.is_expired
    assert page.runs == (run(0, 2),)


async def test_another_tenant_finds_nothing(store: Store) -> None:
    await add(store)
    assert await store.background.get("bob", "resp_1") is None
    assert await store.background.events("bob", "resp_1", -1, 10) is None


async def test_what_is_not_a_background_response_has_no_events(store: Store) -> None:
    await store.put(response("resp_1"))
    assert await store.background.get("ada", "resp_1") is None
    assert await store.background.events("ada", "resp_1", -1, 10) is None


async def test_one_that_is_not_streamed_has_no_events(store: Store) -> None:
    await store.background.add(QUEUED, BackgroundRecord(key_id=None, request=None, is_streamed=False), None)
    assert await store.background.events("ada", "resp_1", -1, 10) is None
    assert await store.background.end(as_("cancelled"), run)
    assert await store.background.events("ada", "resp_1", -1, 10) is None


async def test_events_are_read_in_pages_after_a_number(store: Store) -> None:
    await add(store)
    assert await store.background.append(QUEUED, run(2, 3))
    assert await store.background.append(QUEUED, run(5))
    assert await numbers(store) == [0, 1, 2, 3, 4, 5]
    assert await numbers(store, after=3) == [2, 3, 4, 5]  # a run is returned whole
    assert await numbers(store, after=4) == [5]
    assert await numbers(store, after=2**62) == []
    assert await numbers(store, limit=1) == [0, 1]


async def test_a_page_of_large_events_is_short(store: Store) -> None:
    """A client that reads slowly has a page in memory, and there may be many such clients."""
    await add(store)
    for number in range(2, 6):
        assert await store.background.append(QUEUED, EventRun(number, 1, b"x" * (PAGE_BYTES - 100)))
    assert await numbers(store) == [0, 1, 2, 3]
    assert await numbers(store, after=2) == [3, 4]
    assert await numbers(store, after=4) == [5]


async def test_events_that_are_written_again_are_there_once(store: Store) -> None:
    await add(store)
    assert await store.background.append(QUEUED, run(2, 3))
    assert await store.background.append(QUEUED, run(2, 3), is_repeated=True)
    assert await numbers(store) == [0, 1, 2, 3, 4]


async def test_the_end_is_stored_with_the_last_events(store: Store) -> None:
    await add(store)
    assert await store.background.finish(as_("in_progress"), run(2))
    begun = await store.background.get("ada", "resp_1")
    assert begun is not None and begun.request is None
    assert await store.background.finish(as_("completed", b"done"), run(3))
    page = await store.background.events("ada", "resp_1", 2, 10)
    assert page is not None and page.status == "completed" and page.runs == (run(3),)
    record = await store.get("ada", "resp_1")
    assert record is not None and (record.status, record.body) == ("completed", b"done")


async def test_an_end_from_outside_is_final(store: Store) -> None:
    await add(store)
    assert await store.background.append(QUEUED, run(2, 3))
    assert await store.background.end(as_("cancelled", b"end"), run)
    assert await numbers(store) == [0, 1, 2, 3, 4, 5]
    assert not await store.background.append(QUEUED, run(6))
    assert not await store.background.finish(as_("completed"), run(6))
    assert not await store.background.end(as_("failed"), run)
    record = await store.get("ada", "resp_1")
    assert record is not None and (record.status, record.body) == ("cancelled", b"end")
    assert await numbers(store) == [0, 1, 2, 3, 4, 5]
    assert await store.background.find_lost(["resp_1"]) == {"resp_1"}


async def test_an_end_from_outside_adds_the_notes_and_the_items_that_are_new(store: Store) -> None:
    await add(store)
    ended = response("resp_1", item("msg_1"), item("msg_2", "output"), status="cancelled")
    ended = structs.replace(ended, notes=b'{"failure":1}')
    assert await store.background.end(ended, run)
    assert await store.get("ada", "resp_1") == ended


class NotYetError(Exception):
    """The events of a test can't be told."""


async def test_an_end_whose_events_can_not_be_told_changes_nothing(store: Store) -> None:
    await add(store)

    def refuse(first: int) -> EventRun:
        raise NotYetError

    with pytest.raises(NotYetError):
        await store.background.end(as_("cancelled"), refuse)
    assert await store.get("ada", "resp_1") == QUEUED
    assert await store.background.append(QUEUED, run(2))
    assert await numbers(store) == [0, 1, 2]


async def test_what_is_worked_on_is_not_lost_and_no_orphan(store: Store) -> None:
    await add(store)
    assert await store.background.find_lost(["resp_1", "resp_2"]) == {"resp_2"}
    assert not await store.background.end(as_("failed"), run, is_orphan=True)
    assert not await store.background.take_over(QUEUED)


async def test_a_deleted_response_takes_its_events_along(store: Store) -> None:
    await add(store)
    assert await store.delete("ada", "resp_1")
    assert await store.background.events("ada", "resp_1", -1, 10) is None
    assert not await store.background.append(QUEUED, run(2))
    assert not await store.background.end(as_("failed"), run)
    assert await store.background.find_lost(["resp_1"]) == {"resp_1"}


async def test_old_events_are_deleted_and_the_response_stays(store: Store) -> None:
    await add(store)
    assert await store.background.expire(2**40, 0) == 0  # it has not ended
    assert await store.background.finish(as_("completed"), run(2))
    assert await store.background.expire(0, 10**9) == 0
    assert await store.background.expire(2**40, 10**9) == 1
    page = await store.background.events("ada", "resp_1", -1, 10)
    assert page is not None and page.is_expired and page.runs == ()
    assert await store.get("ada", "resp_1") is not None
    assert await store.background.expire(2**40, 0) == 0


async def test_the_oldest_events_go_when_there_are_too_many(store: Store) -> None:
    for id in ("resp_1", "resp_2"):
        record = response(id, status="queued")
        await store.background.add(record, STREAMED, run(0))
        assert await store.background.finish(response(id), run(1))
    assert await store.background.expire(0, len(run(0, 2).body)) == 1
    expired = [page.is_expired for id in ("resp_1", "resp_2") if (page := await store.background.events("ada", id, -1, 10))]
    assert expired == [True, False]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_a_dead_server_left_is_taken_over_or_ended(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "sqlite":
        first, second = made(kind, request, tmp_path), made(kind, request, tmp_path)
    else:
        url = request.getfixturevalue("postgres").new_store()
        first, second = type(made(kind, request, tmp_path))(url), type(made(kind, request, tmp_path))(url)
    await first.open()
    await add(first)
    await first.background.add(response("resp_2", status="queued"), STREAMED, run(0, 2))
    assert await first.background.finish(response("resp_2", status="in_progress"), run(2))
    await first.close()
    await second.open()
    try:
        waiting, begun = await second.orphans()
        assert not await second.background.take_over(begun)
        assert await second.background.take_over(waiting)
        assert not await second.background.take_over(waiting)
        assert await second.background.append(waiting, run(2))
        assert not await second.background.append(begun, run(3))
        assert await second.background.end(response("resp_2", status="failed"), run, is_orphan=True)
        page = await second.background.events("ada", "resp_2", 2, 10)
        assert page is not None and page.status == "failed" and page.runs == (run(3),)
    finally:
        await second.close()
