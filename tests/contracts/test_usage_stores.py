"""Every store adds up what was used in the same way."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from antiphon.records import UsageRecord
from antiphon.stores.base import Store
from antiphon.stores.usage import HOUR_S, USAGE_GROUPS, MemoryUsageStore

pytestmark = pytest.mark.anyio
DAY_S = 24 * HOUR_S


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def used(start: int, key_id: str = "", model: str = "m", protocol: str = "chat", **counts: int) -> UsageRecord:
    return UsageRecord(start=start, key_id=key_id, model=model, protocol=protocol, **counts)


async def test_what_is_added_is_summed_by_hour_key_model_and_protocol(store: Store) -> None:
    await store.usage.add([])
    await store.usage.add([used(0, requests=1, input_tokens=2**40), used(HOUR_S, "key_a", requests=5, input_audio_ms=7)])
    await store.usage.add([used(0, requests=2, input_tokens=1, errors=1), used(0, protocol="realtime", refusals=1)])
    assert await store.usage.total(0, DAY_S, HOUR_S, USAGE_GROUPS, 10) == [
        used(0, requests=3, input_tokens=2**40 + 1, errors=1),
        used(0, protocol="realtime", refusals=1),
        used(HOUR_S, "key_a", requests=5, input_audio_ms=7),
    ]


async def test_what_is_not_told_apart_is_one(store: Store) -> None:
    await store.usage.add([used(0, "a", requests=1), used(HOUR_S, "b", requests=2), used(DAY_S, "a", requests=4)])
    assert await store.usage.total(0, 2 * DAY_S, DAY_S, ["key_id"], 10) == [
        UsageRecord(start=0, key_id="a", requests=1),
        UsageRecord(start=0, key_id="b", requests=2),
        UsageRecord(start=DAY_S, key_id="a", requests=4),
    ]
    assert await store.usage.total(0, DAY_S, DAY_S, [], 10) == [UsageRecord(start=0, requests=3)]
    assert await store.usage.total(HOUR_S, DAY_S, HOUR_S, [], 10) == [UsageRecord(start=HOUR_S, requests=2)]
    assert await store.usage.total(0, 2 * DAY_S, DAY_S, ["key_id"], 1) == [UsageRecord(start=0, key_id="a", requests=1)]


async def test_old_hours_are_forgotten(store: Store) -> None:
    await store.usage.add([used(0, requests=1), used(HOUR_S, requests=2)])
    await store.usage.expire(HOUR_S)
    assert await store.usage.total(0, DAY_S, DAY_S, [], 10) == [UsageRecord(start=0, requests=2)]


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            used, st.integers(0, 50).map(lambda hour: hour * HOUR_S), st.sampled_from(["", "a"]), st.sampled_from("xy"), requests=st.just(1)
        )
    )
)
def test_no_count_is_lost_however_it_is_told_apart(records: list[UsageRecord]) -> None:
    async def count(groups: list[str]) -> int:
        usage = MemoryUsageStore()
        for record in records:
            await usage.add([record])
        return sum(record.requests for record in await usage.total(0, 99 * HOUR_S, DAY_S, groups, 10_000))  # type: ignore[arg-type]

    for groups in ([], ["key_id"], ["model", "protocol"]):
        assert asyncio.run(count(groups)) == len(records)
