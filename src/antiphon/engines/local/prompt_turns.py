"""
Who may use the processor, and when: a short prompt never waits for the whole of a long one.

The native server processes one prompt after another, each to its end, so a prompt of 4,000 tokens would hold up all others
for a minute. Here long prompts are processed in chunks of about a second, by turns, and one slot is kept for short ones.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

SHORT_PROMPT_TOKENS = 512
"""A prompt is short if no more of it than this is to be processed."""

CHUNK_S = 1.0
"""How long a chunk of a prompt should take."""

MIN_CHUNK_TOKENS, MAX_CHUNK_TOKENS = 128, 8192
"""Each chunk is a request to the native server; on a fast GPU, small ones would cost more than the work in them."""


class ResponseSlots:
    """
    Grants slots to responses, in order; but all slots except one may have long prompts, where there are several.

    Args:
        count: how many responses are generated at once.
    """

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._free_long_count = max(1, count - 1)
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether a response would have to wait."""
        return self._free_count == 0

    @contextlib.asynccontextmanager
    async def slot(self, *, is_long: bool) -> AsyncIterator[None]:
        """The scope of a response, entered once a slot is free for it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, is_long))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(is_long)
            else:
                self._waiting.remove((turn, is_long))
            raise
        try:
            yield
        finally:
            self._release(is_long)

    def _release(self, is_long: bool) -> None:
        self._free_count += 1
        self._free_long_count += is_long
        self._grant()

    def _grant(self) -> None:
        for waiting in tuple(self._waiting):
            turn, is_long = waiting
            if not self._free_count:
                return
            if not is_long or self._free_long_count:
                self._free_count -= 1
                self._free_long_count -= is_long
                self._waiting.remove(waiting)
                turn.set_result(None)


class PromptTurns:
    """Gives prompts the processor by turns, and leaves half of the time to the responses that are being generated."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._generating_count = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator["PromptTurn"]:
        """The scope of one chunk of a prompt, or of its last one and the response to it; entered in order."""
        await self._lock.acquire()
        turn = PromptTurn(self)
        try:
            yield turn
        finally:
            turn.end()

    async def give_way(self, chunk_s: float) -> None:
        """After a chunk that took so long: leave the processor to the responses that are being generated for as long."""
        if self._generating_count:
            await asyncio.sleep(min(chunk_s, CHUNK_S))

    def pass_on(self) -> None:
        """Let the next prompt have its turn."""
        self._lock.release()

    def count_generating(self, change: int) -> None:
        """Count a response that is being generated, or count it no longer."""
        self._generating_count += change


class PromptTurn:
    """One turn of a prompt."""

    def __init__(self, turns: PromptTurns) -> None:
        self._turns = turns
        self._is_generating = False

    def begin_generating(self) -> None:
        """The prompt is processed: the next prompt has its turn while the response is generated."""
        self._is_generating = True
        self._turns.count_generating(+1)
        self._turns.pass_on()

    def end(self) -> None:
        """The chunk is processed, or the response complete."""
        if self._is_generating:
            self._turns.count_generating(-1)
        else:
            self._turns.pass_on()


def next_chunk_tokens(tokens: int, chunk_s: float) -> int:
    """How many tokens the next chunk should have, after one of `tokens` that took `chunk_s`."""
    return max(MIN_CHUNK_TOKENS, min(MAX_CHUNK_TOKENS, 4 * tokens, int(tokens * CHUNK_S / max(chunk_s, 0.001))))
