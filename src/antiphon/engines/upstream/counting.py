"""The endpoints of an upstream that count tokens: asked with a deadline, and not again soon where there are none."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.offload import offload

COUNT_TIMEOUT_S = 5.0
"""For one count."""

MISSING_RETRY_S = 300.0
"""A server without such an endpoint is asked for it again after so long."""

FAILURE_RETRY_S = 5.0
"""And one that failed to answer, after so long."""

_MISSING_STATUSES = ("404", "405", "501")

T = TypeVar("T")


class _NotCounted(Exception):
    def __init__(self, retry_s: float) -> None:
        super().__init__()
        self.retry_s = retry_s


class CountingEndpoints:
    """What one upstream can count, as far as is known."""

    def __init__(self, upstream: UpstreamClient) -> None:
        self._upstream = upstream
        self._next_attempt_at = 0.0

    async def attempt(self, count: Callable[[], Awaitable[T]]) -> T | None:
        """What `count` returns, which asks by `ask`; None if the server does not count, at least now."""
        clock = asyncio.get_running_loop().time
        if clock() < self._next_attempt_at:
            return None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                return await count()
        except TimeoutError:
            retry_s = FAILURE_RETRY_S
        except _NotCounted as failure:
            retry_s = failure.retry_s
        self._next_attempt_at = clock() + retry_s
        return None

    async def ask(
        self, path: str, kind: type[T], body: Mapping[str, object] | None = None, *, size_bytes: int = 0, at_root: bool = False
    ) -> T:
        """
        The server's answer; only within `attempt`.

        Args:
            body: sent by POST; None for GET.
            size_bytes: of the body, about.
            at_root: as in `UpstreamClient.encode_request`.
        """
        payload = None if body is None else await offload(size_bytes, msgspec.json.encode, body)
        answer = await self._upstream.fetch(path, COUNT_TIMEOUT_S, payload, at_root=at_root)
        if isinstance(answer, UpstreamFailure):
            raise _NotCounted(MISSING_RETRY_S if answer.reason in _MISSING_STATUSES else FAILURE_RETRY_S)
        try:
            return await offload(len(answer), lambda: msgspec.json.decode(answer, type=kind))
        except (ValueError, RecursionError):
            raise _NotCounted(MISSING_RETRY_S) from None
