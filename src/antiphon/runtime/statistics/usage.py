"""
What each key used: counted as requests end, and written to the store every few seconds, so that no request waits for it.

A server that is killed loses what it counted since the latest write.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import structlog
from msgspec import Struct, structs

from antiphon.errors import ApiError
from antiphon.records import UsageRecord
from antiphon.runtime.upkeep import one_round
from antiphon.stores.usage import HOUR_S, USAGE_COUNTS, UsageGroup, UsageStore

_log = structlog.get_logger(__name__)

WRITE_S = 5.0
"""Seconds between two writes."""

KEEP_S = 400 * 24 * 3600
"""How long usage is kept: a year, and the month before it for comparison."""

EXPIRE_EVERY = 720
"""Writes between two deletions of older usage: an hour."""

MAX_WAITING = 50_000
"""The most records that wait for a store that is away; then the oldest hours are lost first."""


class _Counts(Struct):
    requests: int = 0
    errors: int = 0
    refusals: int = 0
    input_tokens: int = 0
    input_cached_tokens: int = 0
    output_tokens: int = 0
    input_audio_ms: int = 0
    output_audio_ms: int = 0


class UsageCounter:
    """
    Counts what this process serves.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, store: UsageStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[tuple[int, str, str, str], _Counts] = {}
        self._meters: set[UsageMeter] = set()
        self._write_lock = asyncio.Lock()
        self._close_event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def counts(self, key_id: str | None, model: str, protocol: str) -> _Counts:
        """The counts of the present hour that wait to be written. Add to them at once: the next write takes them away."""
        hour = int(self._clock()) // HOUR_S * HOUR_S
        return self._waiting.setdefault((hour, key_id or "", model, protocol), _Counts())

    def count_answer(
        self,
        key_id: str | None,
        model: str,
        protocol: str,
        *,
        has_failed: bool = False,
        input_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """Count a request that has ended."""
        counts = self.counts(key_id, model, protocol)
        counts.requests += 1
        counts.errors += has_failed
        counts.input_tokens += input_tokens
        counts.input_cached_tokens += cached_tokens
        counts.output_tokens += output_tokens

    def count_refusal(self, key_id: str | None) -> None:
        """Count a request that was refused, as a limit was reached or the server was full."""
        self.counts(key_id, "", "").refusals += 1

    @contextlib.contextmanager
    def track(self, meter: "UsageMeter") -> Iterator[None]:
        """Write what a session's meter counts while this is entered, and what is left of it at the end."""
        self._meters.add(meter)
        try:
            yield
        finally:
            self._meters.discard(meter)
            meter.move_to(self)

    def start(self) -> None:
        """Write every `WRITE_S`, until `close`."""
        # It lives as long as the server. It is never cancelled: of a broken write it would be unknown what is stored.
        self._task = asyncio.create_task(self._run(), name="usage")  # noqa: TID251

    async def close(self) -> None:
        """Write what is left; call it while the store is still open."""
        self._close_event.set()
        if self._task is not None:
            await self._task
        await self.write()

    async def _run(self) -> None:
        writes = 0
        while writes == 0 or not self._close_event.is_set():
            if writes % EXPIRE_EVERY == 0:
                with one_round("usage"):
                    await self._store.expire(int(self._clock()) - KEEP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_S):
                    await self._close_event.wait()
            with one_round("usage"):
                await self.write()
            writes += 1

    async def total(self, start: int, end: int, width_s: int, groups: Collection[UsageGroup], limit: int) -> Sequence[UsageRecord]:
        """What was used, as `UsageStore.total`, with what was counted here until now."""
        # Cancelled with the request, it would be unknown what is stored.
        await asyncio.shield(self.write())
        return await self._store.total(start, end, width_s, groups, limit)

    async def write(self) -> None:
        """Write what was counted; where the store is away, it waits for the next time."""
        for meter in self._meters:
            meter.move_to(self)
        async with self._write_lock:
            # Exchanged before the write: what is counted meanwhile belongs to the next one.
            waiting, self._waiting = self._waiting, {}
            records = [
                UsageRecord(start=start, key_id=key_id, model=model, protocol=protocol, **structs.asdict(counts))
                for (start, key_id, model, protocol), counts in waiting.items()
            ]
            try:
                await self._store.add(records)
            except Exception as error:
                self._put_back(waiting)
                if not isinstance(error, ApiError):  # An outage is logged elsewhere.
                    _log.exception("Writing what was used failed.")

    def _put_back(self, waiting: dict[tuple[int, str, str, str], _Counts]) -> None:
        for key, counts in self._waiting.items():
            former = waiting.setdefault(key, counts)
            if former is not counts:
                for name in USAGE_COUNTS:
                    setattr(former, name, getattr(former, name) + getattr(counts, name))
        # Keys begin with the hour, so the smallest is the oldest.
        while len(waiting) > MAX_WAITING:
            del waiting[min(waiting)]
        self._waiting = waiting


class UsageMeter:
    """
    Counts one session, whose audio comes in so many pieces that each costs an addition only.

    Attributes:
        requests: responses that ended; `errors` are those of them that failed.
        input_audio_s: seconds from the client; `output_audio_s`: to it.
    """

    def __init__(self, key_id: str | None, model: str, protocol: str) -> None:
        self._key_id = key_id
        self._model = model
        self._protocol = protocol
        self.requests = self.errors = 0
        self.input_tokens = self.input_cached_tokens = self.output_tokens = 0
        self.input_audio_s = self.output_audio_s = 0.0

    def move_to(self, counter: UsageCounter) -> None:
        """Hand over what was counted; less than a millisecond of audio stays."""
        input_ms, output_ms = int(self.input_audio_s * 1000), int(self.output_audio_s * 1000)
        if not (self.requests or self.input_tokens or self.output_tokens or input_ms or output_ms):
            return
        counts = counter.counts(self._key_id, self._model, self._protocol)
        counts.requests += self.requests
        counts.errors += self.errors
        counts.input_tokens += self.input_tokens
        counts.input_cached_tokens += self.input_cached_tokens
        counts.output_tokens += self.output_tokens
        counts.input_audio_ms += input_ms
        counts.output_audio_ms += output_ms
        self.requests = self.errors = self.input_tokens = self.input_cached_tokens = self.output_tokens = 0
        self.input_audio_s -= input_ms / 1000
        self.output_audio_s -= output_ms / 1000
