"""
An engine in front of several upstreams that have the same model.

Each request goes to one of them, and to the next where that one fails before its first output. After the first output
no other is asked: the client has begun to read.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import cast

from msgspec import structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import CountingEngine, Deliver, EngineConversation, ListingEngine
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import SHUTTING_DOWN_CODE, ApiError, UpstreamError, overloaded_error
from antiphon.offload import offload
from antiphon.open_conversations import OpenConversations
from antiphon.runtime.balancing.affinity import affinity_key
from antiphon.runtime.balancing.conversation import AttemptRun, BalancedRequest, RoutedConversation
from antiphon.runtime.balancing.failures import CONSEQUENCES, STALL_CAUSE, FailureKind, classify, describe_failure
from antiphon.runtime.balancing.options import BalanceOptions
from antiphon.runtime.balancing.upstreams import ModelUpstream, NoUpstream, UpstreamPool

PATIENCE_FACTOR = 5.0
"""An upstream that says nothing is left no sooner than after so many times its usual time to the first output."""

RETRY_PAUSE_S = 0.1
"""Before an upstream is asked again that failed; twice as long before each further time, and up to half as much more."""

_PASSING_CAUSES = frozenset({"unreachable", "broke_off", "500", "502", "503", "504", "529", "408"})
"""Causes that may be over a moment later, so that the same upstream is asked again where there is no other."""


class BalancedEngine:
    """
    An engine in front of several upstreams.

    Args:
        model: its configured name.
        pool: the upstreams.
        streams_whole: whether an upstream streams even what its client wants at once, so that its silence tells something.
        streams_relays: the same of requests that are passed on.

    Attributes:
        capabilities: what every upstream can do.
    """

    def __init__(
        self,
        model: str,
        pool: UpstreamPool,
        options: BalanceOptions,
        *,
        is_fixed_model: bool,
        streams_whole: bool,
        streams_relays: bool,
    ) -> None:
        self.capabilities = common_capabilities([upstream.engine.capabilities for upstream in pool.upstreams])
        self.pool = pool
        self._model = model
        self._options = options
        self._is_fixed_model = is_fixed_model
        self._streams_whole = streams_whole
        self._streams_relays = streams_relays
        self._conversations = OpenConversations[RoutedConversation]()

    async def start(self) -> None:
        for upstream in self.pool.upstreams:
            await upstream.engine.start()

    async def stop(self) -> None:
        self.pool.close()
        self._conversations.abort()
        for upstream in self.pool.upstreams:
            await upstream.engine.stop()

    async def list_models(self) -> Sequence[str]:
        """The names of the models that any upstream has."""
        async with asyncio.TaskGroup() as tasks:
            engines = [upstream.engine for upstream in self.pool.upstreams]
            lists = [tasks.create_task(_list_models(engine)) for engine in engines if isinstance(engine, ListingEngine)]
        return tuple(dict.fromkeys(name for names in lists for name in names.result()))

    async def count(self, request: commands.Respond) -> int:
        """The input tokens of a request, counted by the first upstream that is well."""
        upstreams = self.pool.upstreams
        upstream = next((each for each in upstreams if not each.is_open), upstreams[0])
        return await cast(CountingEngine, upstream.engine).count(request)

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        return self._conversations.open(lambda tasks: RoutedConversation(settings, deliver, tasks, self._answer))

    async def _answer(self, request: BalancedRequest) -> None:
        pool, failure = self.pool, None
        exclude: Collection[str] = ()
        failures: list[FailureKind] = []
        # Retries are bounded by a share of the requests.
        pool.budget.count_request()
        key = await self._affinity_key(request)
        while True:
            try:
                upstream = await pool.acquire(key, exclude)
            except NoUpstream as error:
                # What an upstream said tells the client more than that no other one was free.
                failure = failure or self._unavailable(request, error)
                break
            failure = await self._try(request, upstream, {*exclude, upstream.name})
            if failure is None:
                return
            failures.append(classify(failure))
            next_exclude = self._next(upstream, exclude, failure, failures)
            if next_exclude is None:
                break
            request.report_retry()
            # Another upstream is asked at once; the one that has just failed gets a moment.
            if not next_exclude:
                await asyncio.sleep(RETRY_PAUSE_S * 2 ** (len(failures) - 1) * random.uniform(1.0, 1.5))
            exclude = next_exclude
        request.fail(self._neutral(failure))

    async def _affinity_key(self, request: BalancedRequest) -> str | None:
        if self._options.balance != "affinity":
            return None
        command = request.command
        size_bytes = len(command.body) if isinstance(command, commands.Relay) else 0
        return await offload(size_bytes, affinity_key, request.settings, command)

    async def _try(self, request: BalancedRequest, upstream: ModelUpstream, asked_names: Collection[str]) -> events.ResponseFailed | None:
        """Have an upstream answer; its failure if it did not, and nothing was delivered."""
        is_streaming = self._is_streaming(request.command)
        patience_s = max(self._options.failover_after_s, PATIENCE_FACTOR * (upstream.first_output_s or 0.0)) if is_streaming else None
        has_output, has_ended = False, False

        def on_output(duration_s: float) -> None:
            nonlocal has_output
            has_output = True
            upstream.record_output(duration_s if is_streaming else None)

        def on_end(one: AttemptRun) -> None:
            nonlocal has_ended
            has_ended = True
            if one.usage is not None:
                upstream.count_tokens(one.usage.input_tokens + one.usage.output_tokens)
            # This server's own stop says nothing about the upstream.
            if isinstance(one.end, events.ResponseFailed) and one.end.code != SHUTTING_DOWN_CODE:
                upstream.record_failure(one.end, is_fixed_model=self._is_fixed_model)

        try:
            one = await request.attempt(
                upstream.engine,
                request.settings,
                request.command,
                (self._model, upstream.name),
                on_output,
                on_end,
                patience_s,
                lambda: len(asked_names) < self.pool.max_attempts and self._may_fail_over(upstream, asked_names),
            )
        finally:
            if not has_output and not has_ended:  # cancelled
                upstream.record_abandonment()
            self.pool.release(upstream)
        return one.end if isinstance(one.end, events.ResponseFailed) and not one.is_delivered else None

    def _may_fail_over(self, upstream: ModelUpstream, asked_names: Collection[str]) -> bool:
        """
        Whether a request leaves an upstream that says nothing. What that costs is taken at once: who can't afford the
        next try stays.
        """
        # Only for one that has room: a slow hour of all servers must not send every request around.
        return self.pool.has_room(asked_names) and self._take_budget(upstream, asked_names)

    def _take_budget(self, upstream: ModelUpstream, asked_names: Collection[str]) -> bool:
        """Pay for the next try, if it can be; from an upstream that is known to be out to one that is well it is free."""
        return (upstream.is_open and self.pool.has_well_room(asked_names)) or self.pool.budget.take()

    def _is_streaming(self, command: commands.Respond | commands.Relay) -> bool:
        """Whether the first output comes before the last."""
        if isinstance(command, commands.Relay):
            return command.stream or (self._streams_relays and not command.must_be_whole)
        return self._streams_whole or not command.whole

    def _next(
        self, upstream: ModelUpstream, exclude: Collection[str], failure: events.ResponseFailed, failures: Sequence[FailureKind]
    ) -> Collection[str] | None:
        """The upstreams that must not be asked next; None if none may be."""
        pool, kind = self.pool, failures[-1]
        # Two tries at least: a single upstream in the list may be asked once more.
        if not CONSEQUENCES[kind].tries_next or len(failures) >= max(pool.max_attempts, 2):
            return None
        asked_names = {*exclude, upstream.name}
        # An upstream with the same window or a smaller one would refuse it, too.
        if kind is FailureKind.CONTEXT:
            asked_names |= {each.name for each in pool.upstreams if not _has_larger_window(each, upstream)}
        if kind is FailureKind.FEATURE and failures.count(kind) > 1:
            return None
        if pool.may_come(asked_names):
            # `_may_fail_over` has paid for the next try before the stall was declared.
            return asked_names if failure.cause == STALL_CAUSE or self._take_budget(upstream, asked_names) else None
        # There is no other: the same one is asked again, as in front of a single upstream.
        if kind is FailureKind.BREAKDOWN and failure.cause in _PASSING_CAUSES and pool.has_room(()) and pool.budget.take():
            return ()
        return None

    def _unavailable(self, request: BalancedRequest, error: NoUpstream) -> events.ResponseFailed:
        if error.reason == "rate_limit":
            return self._rate_limit_failure(request.command.id, error.reason)
        message = (
            "The model is overloaded. Please try again later."
            if error.reason.startswith("queue")
            else "The model's servers are not available now. Please try again later."
        )
        failure = overloaded_error(message, retry_after_s=_spread(error.retry_after_s))
        failure.cause = error.reason
        return events.ResponseFailed.from_error(request.command.id, failure)

    def _rate_limit_failure(self, id: str, cause: str) -> events.ResponseFailed:
        error = ApiError(
            "The model takes no more requests at the moment. Please try again later.",
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=_spread(self.pool.retry_after_s()),
        )
        error.cause = cause
        return events.ResponseFailed.from_error(id, error)

    def _neutral(self, failure: events.ResponseFailed) -> events.ResponseFailed:
        """The failure as clients may see it: the operator's servers and their keys are none of their business."""
        kind = classify(failure)
        if kind is FailureKind.RATE_LIMIT:
            return self._rate_limit_failure(failure.id, describe_failure(failure))
        if kind is FailureKind.CREDENTIALS or (kind is FailureKind.MODEL and self._is_fixed_model):
            error = UpstreamError("The model's servers could not answer. Only this server's operator can fix that.", code="server_error")
        elif failure.cause == STALL_CAUSE:
            error = UpstreamError(failure.message, status=failure.status, code=failure.code)
        else:
            return failure
        error.cause = describe_failure(failure)
        return events.ResponseFailed.from_error(failure.id, error)


def common_capabilities(each: Sequence[Capabilities]) -> Capabilities:
    """What all of several engines can do; of their context windows the smallest that is known."""
    first, *others = each
    for other in others:
        changes: dict[str, object] = {}
        for name in first.__struct_fields__:
            ours, theirs = getattr(first, name), getattr(other, name)
            if isinstance(ours, bool):
                changes[name] = ours and theirs
            elif isinstance(ours, tuple):
                changes[name] = tuple(value for value in ours if value in theirs)
            elif name == "max_top_logprobs":
                changes[name] = None if ours is None or theirs is None else min(ours, theirs)
            elif isinstance(ours, int) or isinstance(theirs, int):  # windows and sessions: None is no limit
                changes[name] = min(value for value in (ours, theirs) if value is not None)
        first = structs.replace(first, **changes)
    return first


def _has_larger_window(one: ModelUpstream, other: ModelUpstream) -> bool:
    ours, theirs = one.engine.capabilities.context_window, other.engine.capabilities.context_window
    return ours is not None and theirs is not None and ours > theirs


async def _list_models(engine: ListingEngine) -> Sequence[str]:
    return await engine.list_models()


def _spread(seconds: float | None) -> float | None:
    """A little later for some than for others, so that clients don't all come back at the same moment."""
    return None if seconds is None else max(1.0, seconds) * random.uniform(1.0, 1.2)
