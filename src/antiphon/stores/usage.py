"""The contract of what was used, hour by hour, and its plainest form."""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Literal, Protocol

from msgspec import structs

from antiphon.records import UsageRecord

HOUR_S = 3600

UsageGroup = Literal["key_id", "model", "protocol"]
"""What usage can be grouped by."""

USAGE_GROUPS: tuple[UsageGroup, ...] = ("key_id", "model", "protocol")

USAGE_COUNTS = (
    "requests",
    "errors",
    "refusals",
    "input_tokens",
    "input_cached_tokens",
    "output_tokens",
    "input_audio_ms",
    "output_audio_ms",
)
"""The numbers of a `UsageRecord`, which are added up."""


class UsageStore(Protocol):
    """What all tenants used, by hour, key, model and protocol. It only ever grows, until it is too old."""

    async def add(self, records: Collection[UsageRecord]) -> None:
        """Add to what is stored, all or nothing; each record has a different hour, key, model or protocol."""

    async def total(self, start: int, end: int, width_s: int, groups: Collection[UsageGroup], limit: int) -> Sequence[UsageRecord]:
        """
        What was used from `start` to before `end`, added up.

        Args:
            start: Unix seconds, a multiple of `width_s`.
            width_s: of the buckets of time, a multiple of an hour.
            groups: the fields to group by; the others are empty.
            limit: the most records to return.

        Returns:
            Records in the order of their time, and then of the groups.
        """

    async def expire(self, before: int) -> None:
        """Forget the hours before a time."""


def add_up(one: UsageRecord, other: UsageRecord) -> UsageRecord:
    """The first, with the numbers of both."""
    return structs.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in USAGE_COUNTS})


class MemoryUsageStore:
    """A `UsageStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, str, str, str], UsageRecord] = {}

    async def add(self, records: Collection[UsageRecord]) -> None:
        for record in records:
            _add_to(self._records, record)

    async def total(self, start: int, end: int, width_s: int, groups: Collection[UsageGroup], limit: int) -> Sequence[UsageRecord]:
        totals: dict[tuple[int, str, str, str], UsageRecord] = {}
        others = {name: "" for name in USAGE_GROUPS if name not in groups}
        for record in self._records.values():
            if start <= record.start < end:
                _add_to(totals, structs.replace(record, start=record.start - record.start % width_s, **others))
        return [record for _, record in islice(sorted(totals.items()), limit)]

    async def expire(self, before: int) -> None:
        self._records = {key: record for key, record in self._records.items() if record.start >= before}


def _add_to(records: dict[tuple[int, str, str, str], UsageRecord], record: UsageRecord) -> None:
    key = (record.start, record.key_id, record.model, record.protocol)
    former = records.get(key)
    records[key] = record if former is None else add_up(former, record)
