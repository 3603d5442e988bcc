"""
How much a key may use: requests and tokens a minute, and responses in progress.

Requests and tokens come from buckets that fill steadily. The tokens of a response are known only at its end and taken
then, so that a bucket's level may be negative: until it is positive again, no request begins.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.errors import ClientError
from antiphon.records import KeyRecord

LimitKind = Literal["requests", "tokens"]

_TEXTS: dict[LimitKind, str] = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)"}
_TYPES: dict[LimitKind, str] = {"requests": "rate_limit_error", "tokens": "tokens"}


class LimitState(Struct, frozen=True):
    """A bucket as clients see it; `full_in_s` is the time until it is full again."""

    limit: int
    remaining: int
    full_in_s: float


class Bucket:
    """
    A token bucket: a number of units a minute, all of which may be used at once.

    It counts in integers, to lose nothing by rounding. A unit is `_UNIT` of them: one a nanosecond makes one unit a
    minute.

    Args:
        clock: seconds, from any origin.
    """

    _UNIT = 60_000_000_000

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.limit = per_minute
        self._clock = clock
        self._level = per_minute * self._UNIT
        self._filled_at_ns = self._now_ns()

    def _now_ns(self) -> int:
        return round(self._clock() * 1e9)

    def _fill(self) -> int:
        now_ns = self._now_ns()
        self._level = min(self.limit * self._UNIT, self._level + (now_ns - self._filled_at_ns) * self.limit)
        self._filled_at_ns = now_ns
        return self._level

    def wait_s(self, units: int) -> float:
        """Seconds until that many units are there; 0 if they are."""
        # More units than the bucket holds would never be there: a full one must do, and its level falls below zero.
        return max(0, min(units, self.limit) * self._UNIT - self._fill()) / self.limit / 1e9

    def take(self, units: int) -> None:
        """Take units, even if they are not there."""
        self._level = self._fill() - units * self._UNIT

    def state(self) -> LimitState:
        """What is left of the limit."""
        level = self._fill()
        return LimitState(self.limit, max(0, level // self._UNIT), (self.limit * self._UNIT - level) / self.limit / 1e9)


class Meter:
    """The usage of one key."""

    def __init__(self, key: KeyRecord, clock: Callable[[], float]) -> None:
        limits: dict[LimitKind, int | None] = {"requests": key.requests_per_minute, "tokens": key.tokens_per_minute}
        self._buckets = {kind: Bucket(limit, clock) for kind, limit in limits.items() if limit is not None}
        self._max_streams = key.streams
        self._streams = 0

    def begin_request(self) -> None:
        """
        Count a request.

        Raises:
            ClientError: `rate_limit_exceeded`; it was not counted.
        """
        for kind, bucket in self._buckets.items():
            if wait_s := bucket.wait_s(1):
                raise _rate_limit_error(kind, bucket, wait_s)
        # Taken only after all limits are checked: a refused request costs nothing.
        if "requests" in self._buckets:
            self._buckets["requests"].take(1)

    def begin_stream(self) -> None:
        """
        Count a response as in progress, until `end_stream`.

        Raises:
            ClientError: `rate_limit_exceeded`; it was not counted.
        """
        if self._max_streams is not None and self._streams >= self._max_streams:
            raise ClientError(
                f"Rate limit reached on concurrent streams: Limit {self._max_streams}, Used {self._streams}, Requested 1. "
                "Please try again when one of them has ended.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self._streams += 1

    def end_stream(self, tokens: int) -> None:
        """End a response that used that many tokens."""
        self._streams -= 1
        self.count_tokens(tokens)

    def count_tokens(self, tokens: int) -> None:
        """Count tokens, even beyond the limit."""
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(tokens)

    def states(self) -> dict[LimitKind, LimitState]:
        """What is left of each of the key's limits."""
        return {kind: bucket.state() for kind, bucket in self._buckets.items()}


class Allowance(Protocol):
    """The limits of a key, in whichever process its usage is counted."""

    async def begin_request(self) -> None:
        """
        Count a request.

        Raises:
            ClientError: `rate_limit_exceeded`; it was not counted.
        """

    def track_response(self, tokens: Callable[[], int]) -> AbstractAsyncContextManager[None]:
        """
        Count a response while it is in progress; `tokens` is called at its end for the tokens it used.

        Raises:
            ClientError: `rate_limit_exceeded`, on entering.
        """

    def count_tokens(self, tokens: int) -> None:
        """Count tokens of something that is still in progress, such as one response of a session."""

    async def states(self) -> Mapping[LimitKind, LimitState]:
        """What is left of each of the key's limits."""

    async def read_states(self) -> Mapping[LimitKind, LimitState]:
        """As `states`, asked anew where another process counts: other processes use the key as well."""

    def last_known_states(self) -> Mapping[LimitKind, LimitState]:
        """As `states`, but as last known, without asking another process."""


class LocalAllowance:
    """An allowance that this process counts."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def begin_request(self) -> None:
        self._meter.begin_request()

    @asynccontextmanager
    async def track_response(self, tokens: Callable[[], int]) -> AsyncIterator[None]:
        self._meter.begin_stream()
        try:
            yield
        finally:
            self._meter.end_stream(tokens())

    def count_tokens(self, tokens: int) -> None:
        self._meter.count_tokens(tokens)

    async def states(self) -> Mapping[LimitKind, LimitState]:
        return self._meter.states()

    async def read_states(self) -> Mapping[LimitKind, LimitState]:
        return self._meter.states()

    def last_known_states(self) -> Mapping[LimitKind, LimitState]:
        return self._meter.states()


def format_duration(seconds: float) -> str:
    """A duration as in the original's messages: `12ms`, `7.66s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds_text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds_text}"
    return f"{minutes}m{seconds_text}" if minutes else seconds_text


def _rate_limit_error(kind: LimitKind, bucket: Bucket, wait_s: float) -> ClientError:
    used_units = bucket.limit - bucket.state().remaining
    return ClientError(
        f"Rate limit reached on {_TEXTS[kind]}: Limit {bucket.limit}, Used {used_units}, Requested 1. "
        f"Please try again in {format_duration(wait_s)}.",
        status=429,
        type=_TYPES[kind],
        code="rate_limit_exceeded",
        # RFC 9110, 10.2.3: whole seconds; rounded up, as a client that comes too early is refused again.
        retry_after_s=math.ceil(wait_s),
    )
