"""What one of several server processes shares with the others, over its link to their supervisor."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from antiphon.errors import ServerError
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Allowance, LimitKind, LimitState
from antiphon.runtime.core.metrics import Snapshot
from antiphon.runtime.multiprocess.link import (
    RELOAD_TIMEOUT_S,
    AddTokens,
    AskOthers,
    BeginRequest,
    BeginStream,
    EndStream,
    GetLimits,
    GetTotals,
    LimitVerdict,
    OtherAnswers,
    ProcessIdle,
    ReloadResult,
    RequestReload,
    ServerTotals,
    StopResponse,
    Subject,
    SupervisorLink,
    SupervisorMessage,
)
from antiphon.wire.http.reload import ReloadReport


class PeerProcesses:
    """
    The other processes of this server.

    Attributes:
        numbers: of all processes in the store, this one's first; the same list always, which changes when one is replaced.
        are_idle: whether, while the server stops, no other process has anything under way.
    """

    def __init__(self, link: SupervisorLink, numbers: Sequence[int]) -> None:
        self.numbers = [*numbers]
        self._link = link
        self.are_idle = False
        self._is_idle = False
        self._streams = itertools.count(1)

    def mark_idle(self) -> None:
        """Report that nothing is under way here, and nothing more will be."""
        if not self._is_idle:
            self._is_idle = True
            self._link.send(ProcessIdle())

    def stop_response(self, response_id: str) -> None:
        """Have the other processes stop making a background response that was ended or deleted."""
        self._link.send(StopResponse(response_id))

    def allowance(self, key: KeyRecord) -> Allowance:
        """The allowance of a key, shared by all processes."""
        return SharedAllowance(key, self._link, self._streams)

    async def totals(self, own: Snapshot) -> ServerTotals:
        """
        The metrics of all processes together.

        Raises:
            ServerError: the supervisor doesn't answer.
        """
        reply = await self._link.request(GetTotals(own))
        assert isinstance(reply, ServerTotals)
        return reply

    async def ask_others(self, subject: Subject, question: bytes) -> Sequence[bytes]:
        """
        What the other processes say; one that hangs is left out.

        Raises:
            ServerError: the supervisor doesn't answer.
        """
        reply = await self._link.request(AskOthers(subject, question))
        assert isinstance(reply, OtherAnswers)
        return reply.answers

    async def reload(self) -> ReloadReport:
        """
        Have all processes read the configuration again.

        Raises:
            ApiError: as `Service.reload`; or the supervisor doesn't answer.
        """
        reply = await self._link.request(RequestReload(), RELOAD_TIMEOUT_S)
        assert isinstance(reply, ReloadResult)
        if reply.report is None:
            raise reply.failure.to_error() if reply.failure is not None else ServerError("The configuration could not be read again.")
        return reply.report


class SharedAllowance:
    """An allowance that the supervisor counts; it is only asked about limits that the key has."""

    def __init__(self, key: KeyRecord, link: SupervisorLink, streams: "itertools.count[int]") -> None:
        self._key = key
        self._link = link
        self._streams = streams
        self._states: Mapping[LimitKind, LimitState] = {}
        self._is_stale = False

    async def begin_request(self) -> None:
        if self._has_buckets:
            await self._request(BeginRequest(self._key))

    @asynccontextmanager
    async def track_response(self, tokens: Callable[[], int]) -> AsyncIterator[None]:
        # A key without these limits costs no message (docs/decisions/0011).
        if self._key.streams is None and self._key.tokens_per_minute is None:
            yield
            return
        stream, token_count = next(self._streams), 0
        try:
            await self._request(BeginStream(self._key, stream))
            try:
                yield
            finally:
                token_count = tokens()
        finally:
            # Also if the reply was lost: ending a stream that never began does nothing.
            self._link.send(EndStream(stream, token_count))
            self._is_stale = True

    def count_tokens(self, tokens: int) -> None:
        if self._key.tokens_per_minute is not None:
            self._link.send(AddTokens(self._key, tokens))
            self._is_stale = True

    async def states(self) -> Mapping[LimitKind, LimitState]:
        if self._is_stale and self._has_buckets:
            await self._request(GetLimits(self._key))
        return self._states

    async def read_states(self) -> Mapping[LimitKind, LimitState]:
        self._is_stale = True
        return await self.states()

    def last_known_states(self) -> Mapping[LimitKind, LimitState]:
        return self._states

    @property
    def _has_buckets(self) -> bool:
        return self._key.requests_per_minute is not None or self._key.tokens_per_minute is not None

    async def _request(self, request: SupervisorMessage) -> None:
        verdict = await self._link.request(request)
        assert isinstance(verdict, LimitVerdict)
        self._states, self._is_stale = verdict.states, False
        if verdict.refusal is not None:
            raise verdict.refusal.to_error()
