"""Background responses and their events in memory."""

import time
from collections.abc import Callable, Collection
from typing import Protocol

from msgspec.structs import replace

from antiphon.records import BackgroundRecord, ConversationTurn, EndedResponse, EventRun, ResponseRecord
from antiphon.stores.base import PAGE_BYTES, UNFINISHED_STATUSES, EventPage

_MAX_EXPIRED = 100


class _Finisher(Protocol):
    async def put(self, record: ResponseRecord) -> None: ...

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool: ...


class _Background:
    def __init__(self, record: BackgroundRecord) -> None:
        self.record = record
        self.runs: list[EventRun] = []
        self.is_expired = False
        self.ended_at: int | None = None

    @property
    def next_number(self) -> int:
        return self.runs[-1].first + self.runs[-1].count if self.runs else 0

    @property
    def event_bytes(self) -> int:
        return sum(len(run.body) for run in self.runs)


class MemoryBackgroundStore:
    """
    Background responses, until the process ends.

    Args:
        records: those of `store`, by id.
        owned_ids: the responses that this server works on, unless they have ended.
        on_end: called with each response that ends.
    """

    def __init__(
        self,
        store: _Finisher,
        records: dict[str, ResponseRecord],
        owned_ids: set[str],
        on_end: Callable[[EndedResponse], None] = lambda _response: None,
    ) -> None:
        self._store = store
        self._records = records
        self._owned_ids = owned_ids
        self._on_end = on_end
        self._backgrounds: dict[str, _Background] = {}

    def forget(self, response_id: str) -> None:
        """Delete what is stored of a background response, as its record was deleted or replaced."""
        self._backgrounds.pop(response_id, None)

    async def add(self, record: ResponseRecord, background: BackgroundRecord, events: EventRun | None) -> None:
        await self._store.put(record)
        entry = self._backgrounds[record.id] = _Background(background)
        if events is not None:
            entry.runs.append(events)

    async def append(self, record: ResponseRecord, events: EventRun, *, is_repeated: bool = False) -> bool:
        old = self._records.get(record.id)
        if old is None or old.tenant != record.tenant or old.status not in UNFINISHED_STATUSES or old.id not in self._owned_ids:
            return False
        entry = self._backgrounds[record.id]
        # A write whose answer was lost is repeated as the same run, which replaces what it left (docs/decisions/0026).
        if is_repeated:
            entry.runs = [run for run in entry.runs if run.first < events.first]
        entry.runs.append(events)
        return True

    async def finish(self, record: ResponseRecord, events: EventRun | None, turn: ConversationTurn | None = None) -> bool:
        if not await self._store.finish(record, turn):
            return False
        self._change(record, events)
        return True

    async def end(self, record: ResponseRecord, closing_events: Callable[[int], EventRun], *, is_orphan: bool = False) -> bool:
        old = self._records.get(record.id)
        if old is None or old.tenant != record.tenant or old.status not in UNFINISHED_STATUSES:
            return False
        if is_orphan and old.id in self._owned_ids:
            return False
        entry = self._backgrounds.get(record.id)
        run = None if entry is None or not entry.record.is_streamed else closing_events(entry.next_number)
        items = old.items + record.items[len(old.items) :]
        self._records[old.id] = replace(old, status=record.status, body=record.body, notes=record.notes, items=items)
        self._change(record, run)
        return True

    def _change(self, record: ResponseRecord, events: EventRun | None) -> None:
        entry = self._backgrounds.get(record.id)
        if entry is None:
            return
        if events is not None and entry.record.is_streamed:
            entry.runs.append(events)
        # The request is kept to begin again, which a response that has begun never does (docs/decisions/0026).
        if record.status != "queued":
            entry.record = replace(entry.record, request=None)
        if record.status not in UNFINISHED_STATUSES:
            entry.ended_at = int(time.time())
            self._on_end(EndedResponse(id=record.id, tenant=record.tenant, status=record.status, key_id=entry.record.key_id))

    async def take_over(self, record: ResponseRecord) -> bool:
        old = self._records.get(record.id)
        if old is None or old.status != "queued" or old.id in self._owned_ids:
            return False
        self._owned_ids.add(record.id)
        return True

    async def get(self, tenant: str, response_id: str) -> BackgroundRecord | None:
        entry = self._find(tenant, response_id)
        return None if entry is None else entry.record

    async def events(self, tenant: str, response_id: str, after: int, limit: int) -> EventPage | None:
        entry = self._find(tenant, response_id)
        if entry is None or not entry.record.is_streamed:
            return None
        runs: list[EventRun] = []
        size_bytes = 0
        for run in entry.runs:
            if len(runs) == limit or size_bytes >= PAGE_BYTES:
                break
            if run.first + run.count > after + 1:
                runs.append(run)
                size_bytes += len(run.body)
        return EventPage(self._records[response_id].status, entry.is_expired, tuple(runs))

    async def find_lost(self, response_ids: Collection[str]) -> Collection[str]:
        return {id for id in response_ids if id not in self._records or self._records[id].status not in UNFINISHED_STATUSES} | (
            {*response_ids} - self._owned_ids
        )

    async def expire(self, ended_before: int, limit_bytes: int) -> int:
        finished_entries = [entry for entry in self._backgrounds.values() if entry.ended_at is not None and entry.runs]
        total_bytes, count = sum(entry.event_bytes for entry in finished_entries), 0
        for entry in sorted(finished_entries, key=lambda entry: entry.ended_at or 0)[:_MAX_EXPIRED]:
            if (entry.ended_at or 0) >= ended_before and total_bytes <= limit_bytes:
                break
            total_bytes -= entry.event_bytes
            entry.runs, entry.is_expired = [], True
            count += 1
        return count

    def _find(self, tenant: str, response_id: str) -> _Background | None:
        record = self._records.get(response_id)
        return self._backgrounds.get(response_id) if record is not None and record.tenant == tenant else None
