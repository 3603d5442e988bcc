"""What was used is counted once, whatever becomes of the store meanwhile."""

import asyncio

import pytest
from structlog.testing import capture_logs

from antiphon.errors import StoreError
from antiphon.runtime.statistics.usage import KEEP_S, MAX_WAITING, UsageCounter, UsageMeter
from antiphon.stores.usage import HOUR_S, USAGE_GROUPS, MemoryUsageStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Clock:
    now = 10.0 * HOUR_S

    def __call__(self):
        return self.now


class AwayStore(MemoryUsageStore):
    """A store that can be away."""

    is_away = False

    async def add(self, records):
        if self.is_away:
            raise StoreError("It is away.", is_temporary=True)
        await super().add(records)


async def totals(counter):
    return [(one.start, one.key_id, one.requests, one.input_tokens) for one in await counter.total(0, 10**9, HOUR_S, USAGE_GROUPS, 10**6)]


async def test_answers_are_counted_in_the_hour_in_which_they_end():
    clock = Clock()
    counter = UsageCounter(MemoryUsageStore(), clock)
    counter.count_answer("key_a", "m", "chat", input_tokens=3)
    counter.count_answer("key_a", "m", "chat", input_tokens=4, has_failed=True)
    clock.now += HOUR_S
    counter.count_answer(None, "m", "chat")
    counter.count_refusal("key_a")
    assert await totals(counter) == [(10 * HOUR_S, "key_a", 2, 7), (11 * HOUR_S, "", 1, 0), (11 * HOUR_S, "key_a", 0, 0)]


async def test_nothing_is_lost_or_counted_twice_while_the_store_is_away():
    store = AwayStore()
    counter = UsageCounter(store, Clock())
    store.is_away = True
    for _ in range(3):
        counter.count_answer("key_a", "m", "chat", input_tokens=1)
        await counter.write()
    store.is_away = False
    assert await totals(counter) == [(10 * HOUR_S, "key_a", 3, 3)]
    assert await totals(counter) == [(10 * HOUR_S, "key_a", 3, 3)]


class HeldStore(MemoryUsageStore):
    """A store that writes nothing before it may."""

    def __init__(self):
        super().__init__()
        self.has_begun, self.may_write = asyncio.Event(), asyncio.Event()

    async def add(self, records):
        self.has_begun.set()
        await self.may_write.wait()
        await super().add(records)


async def test_a_request_that_is_cancelled_while_it_asks_for_the_usage_loses_none():
    store = HeldStore()
    counter = UsageCounter(store, Clock())
    counter.count_answer("key_a", "m", "chat", input_tokens=1)
    async with asyncio.TaskGroup() as group:
        request = group.create_task(totals(counter))
        await store.has_begun.wait()
        request.cancel()
    store.may_write.set()
    assert await totals(counter) == [(10 * HOUR_S, "key_a", 1, 1)]


class DefectiveStore(MemoryUsageStore):
    """A store that has a defect, once."""

    has_failed = False

    async def add(self, records):
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        await super().add(records)


async def test_a_defect_of_the_store_loses_nothing_and_is_logged():
    counter = UsageCounter(DefectiveStore(), Clock())
    counter.count_answer("key_a", "m", "chat", input_tokens=1)
    with capture_logs() as log:
        await counter.write()
    assert [entry["log_level"] for entry in log] == ["error"]
    assert await totals(counter) == [(10 * HOUR_S, "key_a", 1, 1)]


async def test_what_waits_for_a_store_is_bounded():
    store, clock = AwayStore(), Clock()
    counter = UsageCounter(store, clock)
    store.is_away = True
    counter.count_answer("old", "m", "chat")
    clock.now += HOUR_S
    for number in range(MAX_WAITING):
        counter.count_answer(f"key_{number}", "m", "chat")
    await counter.write()
    store.is_away = False
    kept = await totals(counter)
    assert len(kept) == MAX_WAITING and "old" not in {key_id for _, key_id, _, _ in kept}


async def test_a_session_is_counted_while_it_lasts_to_the_millisecond():
    counter = UsageCounter(MemoryUsageStore(), Clock())
    meter = UsageMeter("key_a", "m", "realtime")
    with counter.track(meter):
        for _ in range(7):
            meter.input_audio_s += 0.0005
            await counter.write()
        meter.requests += 1
        (one,) = await counter.total(0, 10**9, HOUR_S, USAGE_GROUPS, 9)
        assert (one.input_audio_ms, one.requests, one.protocol) == (3, 1, "realtime")
        meter.output_audio_s += 1
    (one,) = await counter.total(0, 10**9, HOUR_S, USAGE_GROUPS, 9)
    assert (one.input_audio_ms, one.output_audio_ms, one.requests) == (3, 1000, 1)


async def test_it_is_written_at_the_end_and_what_is_too_old_goes_at_the_start():
    store, clock = MemoryUsageStore(), Clock()
    clock.now = float(KEEP_S + 5 * HOUR_S)
    counter = UsageCounter(store, clock)
    await store.add([])
    counter.count_answer("key_a", "m", "chat")
    await counter.write()
    clock.now += KEEP_S + HOUR_S
    counter.start()
    counter.count_answer("key_b", "m", "chat")
    await counter.close()
    assert [one.key_id for one in await store.total(0, 10**10, HOUR_S, ["key_id"], 9)] == ["key_b"]
