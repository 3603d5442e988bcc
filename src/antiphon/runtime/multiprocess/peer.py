"""One of several processes that are one server: what it has in common with the others, over its link to their supervisor."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Allowance, Kind, State
from antiphon.runtime.core.metrics import Snapshot
from antiphon.runtime.multiprocess.link import BeginRequest, BeginStream, EndStream, Idle, Link, Look, Message, Spend, Sum, Summed, Verdict


class Siblings:
    """
    What the processes of a server have in common.

    Attributes:
        numbers: those of the processes in the store, this one's first.
        are_idle: whether, when the server is to stop, no other process has anything under way any more.
    """

    def __init__(self, link: Link, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self._link = link
        self.are_idle = False
        self._is_idle = False
        self._streams = itertools.count(1)

    def rest(self) -> None:
        """Let it be known that nothing is under way here any more, and that no more is taken."""
        if not self._is_idle:
            self._is_idle = True
            self._link.tell(Idle())

    def allowance(self, key: KeyRecord) -> Allowance:
        """What the key may use in all processes together."""
        return SharedAllowance(key, self._link, self._streams)

    async def sum(self, mine: Snapshot) -> Summed:
        """
        What all processes have counted together.

        Raises:
            OurFault: the supervisor doesn't answer.
        """
        answer = await self._link.ask(Sum(mine))
        assert isinstance(answer, Summed)
        return answer


class SharedAllowance:
    """An allowance that the supervisor counts. It is asked only about limits that the key has."""

    def __init__(self, key: KeyRecord, link: Link, streams: "itertools.count[int]") -> None:
        self._key = key
        self._link = link
        self._streams = streams
        self._states: Mapping[Kind, State] = {}
        self._is_stale = False

    async def begin_request(self) -> None:
        """Count a request."""
        if self._has_buckets:
            await self._ask(BeginRequest(self._key))

    @asynccontextmanager
    async def answering(self, tokens: Callable[[], int]) -> AsyncIterator[None]:
        """An answer under way."""
        if self._key.streams is None and self._key.tokens_per_minute is None:
            yield
            return
        stream, used = next(self._streams), 0
        try:
            await self._ask(BeginStream(self._key, stream))
            try:
                yield
            finally:
                used = tokens()
        finally:
            # Also where nobody heard the verdict: to end what was never begun does nothing.
            self._link.tell(EndStream(stream, used))
            self._is_stale = True

    def spend(self, tokens: int) -> None:
        """Count what something came to that is not over yet."""
        if self._key.tokens_per_minute is not None:
            self._link.tell(Spend(self._key, tokens))
            self._is_stale = True

    async def states(self) -> Mapping[Kind, State]:
        """What is left of each limit that the key has."""
        if self._is_stale and self._has_buckets:
            await self._ask(Look(self._key))
        return self._states

    def last_known(self) -> Mapping[Kind, State]:
        """What was left of each limit when the supervisor was last asked."""
        return self._states

    @property
    def _has_buckets(self) -> bool:
        return self._key.requests_per_minute is not None or self._key.tokens_per_minute is not None

    async def _ask(self, question: Message) -> None:
        verdict = await self._link.ask(question)
        assert isinstance(verdict, Verdict)
        self._states, self._is_stale = verdict.states, False
        if verdict.refusal is not None:
            raise verdict.refusal.mistake()
