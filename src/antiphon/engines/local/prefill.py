"""
Which conversation may prefill: have its prompt processed before the request comes.

Law: prefilling delays no response. The native server alternates between its slots, a batch of one prompt and a token of
one response, so a long prefill would make another conversation's response ten times as slow. A prefill runs only while
no response does, is cancelled when one starts, and later continues from where it was. And no more conversations prefill
than there are slots: one more would only evict another's cache.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator

CLAIM_S = 10.0
"""A conversation that prefilled nothing for so long loses its claim to others."""


class PrefillScheduler:
    """
    Counts running responses, and the conversations that may prefill.

    Args:
        max_conversations: how many may prefill.
        claim_s: how long a conversation's claim lasts after its latest `try_claim`.
    """

    def __init__(self, max_conversations: int, claim_s: float = CLAIM_S) -> None:
        self._max_conversations = max_conversations
        self._claim_s = claim_s
        self._active_responses = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._prefills: dict[Hashable, asyncio.Timeout] = {}
        self._claims: dict[Hashable, float] = {}

    def try_claim(self, conversation: Hashable) -> bool:
        """Whether the conversation may prefill; renews its claim."""
        now = asyncio.get_running_loop().time()
        self._claims = {other: claim_time for other, claim_time in self._claims.items() if now - claim_time < self._claim_s}
        if conversation not in self._claims and len(self._claims) >= self._max_conversations:
            return False
        self._claims[conversation] = now
        return True

    def release_claim(self, conversation: Hashable) -> None:
        """End the conversation's claim."""
        self._claims.pop(conversation, None)

    def is_prefilling(self, conversation: Hashable) -> bool:
        """Whether its prefill is running."""
        return conversation in self._prefills

    async def wait_until_idle(self) -> None:
        """Wait until no response is running."""
        await self._idle.wait()

    @contextlib.asynccontextmanager
    async def prefilling(self, conversation: Hashable) -> AsyncIterator[None]:
        """
        The scope of a prefill; enter only after `wait_until_idle`.

        Raises:
            TimeoutError: a response started, and cancelled it.
        """
        async with asyncio.timeout(None) as scope:
            self._prefills[conversation] = scope
            try:
                yield
            finally:
                del self._prefills[conversation]

    @contextlib.contextmanager
    def responding(self, conversation: Hashable | None) -> Iterator[None]:
        """
        The scope of a response; cancels all prefills.

        Args:
            conversation: whose prefill goes on, as this response waits for it.
        """
        self._active_responses += 1
        self._idle.clear()
        now = asyncio.get_running_loop().time()
        for other, scope in self._prefills.items():
            if other is not conversation and not scope.expired():
                scope.reschedule(now)
        try:
            yield
        finally:
            self._active_responses -= 1
            if not self._active_responses:
                self._idle.set()
