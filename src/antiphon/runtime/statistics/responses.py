"""The responses of the Responses API that are under way and the last that ended, for operators; independent of the store."""

import time
from collections import deque
from collections.abc import Callable, Collection

from msgspec import Struct

KEEP = 200
"""How many ended responses are remembered."""


class RecentResponse(Struct, kw_only=True, eq=False):
    """
    A response.

    Attributes:
        background: whether it is made in the background.
        created_at: Unix seconds, as `ended_at`, None while it is under way.
        first_token_s: from the request to the first event with output, of a stream.
    """

    id: str
    model: str
    background: bool
    tenant: str
    key_id: str | None
    created_at: float
    status: str = "in_progress"
    ended_at: float | None = None
    first_token_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class RecentResponses:
    """
    The responses of this process.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._live: dict[str, RecentResponse] = {}
        self._last: deque[RecentResponse] = deque(maxlen=KEEP)

    def begin(self, id: str, model: str, tenant: str, key_id: str | None, *, is_background: bool) -> RecentResponse:
        """Record a response that begins; the caller fills in its counts as they become known."""
        answer = self._live[id] = RecentResponse(
            id=id, model=model, background=is_background, tenant=tenant, key_id=key_id, created_at=round(self._clock(), 3)
        )
        return answer

    def end(self, answer: RecentResponse, status: str) -> None:
        """Record that a response has ended."""
        answer.status, answer.ended_at = status, round(self._clock(), 3)
        self._live.pop(answer.id, None)
        self._last.append(answer)

    def all(self) -> Collection[RecentResponse]:
        """Those under way, and the last that ended, in the order of their ends."""
        return [*self._last, *self._live.values()]
