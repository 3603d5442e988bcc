"""
Who may read a prompt before it is asked for.

Law: nobody is answered later for it. The model takes turns with all that it is at, a batch of a prompt against a word of an answer, so that
a long prompt read ahead would make another conversation's answer ten times as slow. It is read only while nobody is answered, is broken off
as soon as somebody is, and goes on afterwards from where it was. And it is read for no more conversations than there are slots, as one more
would only have one of the others' thrown away.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator

CLAIM_S = 10.0
"""Who had nothing to read for so long has finished, or fallen silent, and makes room for others."""


class PrefillScheduler:
    """
    The conversations that have something to read ahead.

    Args:
        most: of them at a time.
        claim_s: how long each of them is one, since it last had something to read.
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
        """Whether it is one of those that are read for, as they were the first."""
        now = asyncio.get_running_loop().time()
        self._claims = {other: at for other, at in self._claims.items() if now - at < self._claim_s}
        if conversation not in self._claims and len(self._claims) >= self._max_conversations:
            return False
        self._claims[conversation] = now
        return True

    def release_claim(self, conversation: Hashable) -> None:
        """What was read for it has been of use, or never will be."""
        self._claims.pop(conversation, None)

    def is_prefilling(self, conversation: Hashable) -> bool:
        """Whether something is being read for it just now."""
        return conversation in self._prefills

    async def wait_until_idle(self) -> None:
        """Wait until nobody is answered."""
        await self._idle.wait()

    @contextlib.asynccontextmanager
    async def prefilling(self, conversation: Hashable) -> AsyncIterator[None]:
        """
        For as long as something is read; begin only where it is quiet.

        Raises:
            TimeoutError: somebody is answered, before this was over.
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
        For as long as an answer is under way.

        Args:
            reader: whose reading the answer needs and waits for; all others' is broken off.
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
