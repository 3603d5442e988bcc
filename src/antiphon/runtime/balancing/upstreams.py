"""
The upstreams of one model, as one process sees them: who is well, who has room, and who waits for it.

There is one queue for all of them: a request that waits gets the first upstream that is free.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, Protocol

import structlog
from msgspec import Struct

from antiphon.engine_api.engine import Engine
from antiphon.engine_api.events import ResponseFailed
from antiphon.engines.upstream.circuit_breaker import CircuitBreaker, CircuitState
from antiphon.engines.upstream.client import MAX_REST_S, rest_jitter
from antiphon.runtime.balancing.choice import Candidate, UpstreamChoice, choose, rank
from antiphon.runtime.balancing.failures import CONSEQUENCES, OPERATOR_REST_S, FailureKind, classify, describe_failure, is_temporary, rest_s
from antiphon.runtime.balancing.limits import RATE_WINDOW_S, RetryBudget, SlidingWindow
from antiphon.runtime.balancing.options import BalanceOptions, UpstreamLimits

SLOW_START_WEIGHT = 0.1
"""An upstream that is well again begins with this part of its weight: being empty, it would get all requests at once."""

TTFT_WEIGHT = 0.2
"""Weight of the latest first output in the moving average."""

UpstreamCondition = Literal["ready", "full", "resting", "open"]
"""It takes requests; it has as many as it may; it said when to come again; or its breaker is open."""


class RoutingObserver(Protocol):
    """Hears what becomes of requests, for the metrics. Upstreams are named by model and name, as `large/gpu1`."""

    def on_upstream_state(self, name: str, state: Literal["closed", "half_open", "open"]) -> None:
        """The breaker of an upstream has a new state."""

    def on_upstream_attempt(self, name: str, outcome: str) -> None:
        """A try ended: `ok`, `cancelled`, or why it failed, in a word."""

    def on_upstream_choice(self, name: str, kind: Literal["affinity", "load"]) -> None:
        """An upstream was chosen because the request's conversation belongs there, or for its load."""

    def on_upstream_outstanding(self, name: str, count: int) -> None:
        """The number of requests that an upstream has at this moment has changed."""

    def on_fallback(self, model: str, fallback: str, reason: str) -> None:
        """Another model answers than the one that was asked for."""


class UpstreamView(Struct, frozen=True, kw_only=True):
    """
    What is known of an upstream.

    Attributes:
        state: `ready`, `full`, `resting`, `open`, or `half_open` while one request is tried.
        outstanding: requests that it has.
        answered: how many it has begun to answer.
        affine: how many came because their conversation belongs there.
        failures: one after another.
        first_output_s: the moving average of the time to its first output; None before the first.
        rest_s: the seconds until it gets requests again; None if it does.
        reason: of its latest failure, in a word; empty if it has answered since.
    """

    model: str
    name: str
    state: Literal["ready", "full", "resting", "open", "half_open"]
    weight: float
    outstanding: int
    concurrency: int
    requests: int
    answered: int
    affine: int
    failures: int
    first_output_s: float | None
    rest_s: float | None
    reason: str


class ModelUpstream:
    """
    One of a model's upstreams.

    Args:
        engine: in front of it.
        limits: on what it gets.
        clock: monotonic, in seconds.

    Attributes:
        outstanding: the requests that it has.
        first_output_s: the moving average of the time to its first output; None before the first.
    """

    def __init__(
        self,
        model: str,
        engine: Engine,
        limits: UpstreamLimits,
        options: BalanceOptions,
        observer: RoutingObserver,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self.name = limits.name
        self.engine = engine
        self.limits = limits
        self.outstanding = 0
        self.first_output_s: float | None = None
        self._label = f"{model}/{limits.name}"
        self._slow_start_s = options.slow_start_s
        self._observer = observer
        self._clock = clock
        self._breaker = CircuitBreaker(
            limits.failures,
            limits.rest_s,
            self._on_breaker_state,
            clock,
            max_cooldown_s=max(MAX_REST_S, limits.rest_s),
            jitter=rest_jitter,
            counts_rate=True,
        )
        self._rest_until = 0.0
        self._well_since: float | None = None
        self._failures = 0
        self._is_reachable = True
        self._is_limited = False
        self._reason = ""
        self._requests = SlidingWindow(RATE_WINDOW_S, clock)
        self._tokens = SlidingWindow(RATE_WINDOW_S, clock)
        self._request_count = self._answer_count = self._affine_count = 0
        observer.on_upstream_state(self._label, CircuitState.CLOSED.value)

    @property
    def floor(self) -> int:
        """Up to so many requests it takes its conversations in any case."""
        return max(1, round(self.limits.affinity_floor * self._slow_start_factor))

    @property
    def weight(self) -> float:
        """Its share of the load now."""
        return self.limits.weight * self._slow_start_factor

    @property
    def is_open(self) -> bool:
        """Whether its breaker keeps requests away."""
        return self._breaker.remaining_s() > 0

    @property
    def may_be_ignored(self) -> bool:
        """Whether it is there, though it fails: its breaker is passed over when most upstreams fail."""
        return self._is_reachable

    @property
    def is_limited(self) -> bool:
        """Whether it has said that it takes no more requests for now, or has as many as it may have in a minute."""
        return not self.is_open and (self._is_limited if self._is_resting else self._rate_wait_s() > 0)

    def condition(self, *, ignores_breaker: bool = False) -> UpstreamCondition:
        """Whether it takes a request now, and if not, why."""
        if self.is_open and not ignores_breaker:
            return "open"
        # Also while breakers are ignored: a server that says when to come again is believed.
        if self._is_resting:
            return "resting"
        return "full" if self.outstanding >= self.limits.concurrency or self._rate_wait_s() > 0 else "ready"

    def wait_s(self) -> float:
        """The seconds until it may take a request again, as far as the clock decides that."""
        return max(self._rest_s, self._rate_wait_s())

    def begin(self, *, is_affine: bool) -> None:
        """Count a request that is sent to it."""
        self._breaker.retry_after_s()  # where it is half open, this is the trial
        self.outstanding += 1
        self._requests.add(1)
        self._request_count += 1
        self._affine_count += is_affine
        self._observer.on_upstream_choice(self._label, "affinity" if is_affine else "load")
        self._observer.on_upstream_outstanding(self._label, self.outstanding)

    def end(self) -> None:
        """Count a request as over, however it ended."""
        self.outstanding -= 1
        self._observer.on_upstream_outstanding(self._label, self.outstanding)

    def count_tokens(self, tokens: int) -> None:
        """Count the tokens of a request, for the limit of a minute."""
        if self.limits.tokens_per_minute is not None:
            self._tokens.add(tokens)

    def record_output(self, duration_s: float | None) -> None:
        """Its first output came, after so many seconds; None where that says nothing, as all of it came at once."""
        if duration_s is not None:
            before = duration_s if self.first_output_s is None else self.first_output_s
            self.first_output_s = before + TTFT_WEIGHT * (duration_s - before)
        self._answer_count += 1
        self._record_health()
        self._observer.on_upstream_attempt(self._label, "ok")

    def record_abandonment(self) -> None:
        """The request was cancelled before it had an outcome: that says nothing about the upstream."""
        self._breaker.record_abandonment()
        self._observer.on_upstream_attempt(self._label, "cancelled")

    def record_failure(self, failure: ResponseFailed, *, is_fixed_model: bool = True) -> None:
        """
        A request failed.

        Args:
            is_fixed_model: whether clients can't choose the name that the upstream gets. A name that is not there is
                else the client's fault.
        """
        kind = classify(failure)
        self._is_limited = kind is FailureKind.RATE_LIMIT
        self._observer.on_upstream_attempt(self._label, describe_failure(failure))
        state, is_resting = self._breaker.state, self._is_resting
        # An earlier answer may have asked for a longer rest.
        self._rest_until = max(self._rest_until, self._clock() + rest_s(failure, kind))
        if kind is FailureKind.BREAKDOWN:
            self._failures += 1
            self._reason = describe_failure(failure)
            # One failure in a row that shows it is not there is enough, until it answers again.
            self._is_reachable = is_temporary(failure) and (self._failures == 1 or self._is_reachable)
            self._breaker.record_failure()
        # A name that clients choose is not the upstream's fault: by wrong ones they could put all of them out.
        elif CONSEQUENCES[kind].needs_operator and (is_fixed_model or kind is FailureKind.CREDENTIALS):
            self._failures += 1
            self._reason = describe_failure(failure)
            self._is_reachable = False
            self._breaker.open(OPERATOR_REST_S)
            structlog.get_logger().error("upstream_needs_operator", upstream=self._label, reason=self._reason, message=failure.message)
        elif kind is FailureKind.RATE_LIMIT:
            self._reason = describe_failure(failure)
            # It is there, and busy: by a 429, a trial neither succeeds nor fails.
            self._breaker.record_abandonment()
        else:  # a proper refusal is an answer
            self._record_health()
        # A rest that the upstream asked for; one of its breaker was logged as that opened.
        if self._is_resting and not is_resting and self._breaker.state is state:
            self._log_rest()

    def view(self) -> UpstreamView:
        """Its state and its counters, for operators."""
        state = self.condition()
        wait_s = self.wait_s()
        return UpstreamView(
            model=self.model,
            name=self.name,
            state="half_open" if self._breaker.state is CircuitState.HALF_OPEN else state,
            weight=self.limits.weight,
            outstanding=self.outstanding,
            concurrency=self.limits.concurrency,
            requests=self._request_count,
            answered=self._answer_count,
            affine=self._affine_count,
            failures=self._failures,
            first_output_s=self.first_output_s,
            rest_s=wait_s if wait_s > 0 else None,
            reason=self._reason,
        )

    def _record_health(self) -> None:
        self._failures = 0
        self._reason = ""
        self._is_reachable = True
        self._breaker.record_success()

    def _rate_wait_s(self) -> float:
        limits = self.limits
        requests_s = 0.0 if limits.requests_per_minute is None else self._requests.wait_s(limits.requests_per_minute)
        tokens_s = 0.0 if limits.tokens_per_minute is None else self._tokens.wait_s(limits.tokens_per_minute)
        return max(requests_s, tokens_s)

    @property
    def _is_resting(self) -> bool:
        """Whether it has said when to come again, and that is not yet."""
        return self._clock() < self._rest_until

    @property
    def _rest_s(self) -> float:
        """The rest that is in force: its breaker's, or the longer one that it asked for."""
        return max(self._breaker.remaining_s(), self._rest_until - self._clock())

    @property
    def _slow_start_factor(self) -> float:
        if self._well_since is None or self._slow_start_s <= 0:
            return 1.0
        part = (self._clock() - self._well_since) / self._slow_start_s
        return min(1.0, SLOW_START_WEIGHT + (1 - SLOW_START_WEIGHT) * part)

    def _on_breaker_state(self, state: CircuitState) -> None:
        self._observer.on_upstream_state(self._label, state.value)
        if state is CircuitState.OPEN:
            self._log_rest()
        elif state is CircuitState.CLOSED:
            self._well_since = self._clock()
            structlog.get_logger().info("upstream_well", upstream=self._label)

    def _log_rest(self) -> None:
        """Log how long it gets no requests, if it rests at all."""
        seconds = round(self._rest_s, 1)
        if seconds > 0:
            structlog.get_logger().warning("upstream_rests", upstream=self._label, reason=self._reason, seconds=seconds)


class NoUpstream(Exception):
    """
    No upstream takes the request.

    Attributes:
        reason: in a word.
        retry_after_s: when one may; None if unknown.
    """

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class _Waiter:
    def __init__(self, key: str | None, exclude: Collection[str]) -> None:
        self.key = key
        self.exclude = exclude
        self.turn: asyncio.Future[ModelUpstream] = asyncio.get_running_loop().create_future()


class UpstreamPool:
    """
    The upstreams of one model.

    Args:
        max_waiting: how many requests may wait for one.
        timeout_s: how long one may.
        clock: monotonic, in seconds.

    Attributes:
        budget: bounds the tries beyond the first.
    """

    def __init__(
        self,
        upstreams: Sequence[ModelUpstream],
        options: BalanceOptions,
        max_waiting: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.upstreams = tuple(upstreams)
        self.budget = RetryBudget(options.retry_budget, clock)
        self._by_name = {upstream.name: upstream for upstream in upstreams}
        self._options = options
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        """How many requests wait."""
        return len(self._waiters)

    @property
    def max_attempts(self) -> int:
        """How often one request may be sent: at most to four upstreams."""
        return 1 + min(3, len(self.upstreams) - 1)

    def has_room(self, exclude: Collection[str]) -> bool:
        """Whether one of the others would take a request at once."""
        return bool(self._ready(exclude))

    def has_well_room(self, exclude: Collection[str]) -> bool:
        """Whether one of the others that is well would take a request at once."""
        return any(upstream.condition() == "ready" for upstream in self.upstreams if upstream.name not in exclude)

    def may_come(self, exclude: Collection[str]) -> bool:
        """Whether one of the others takes a request, or will in time."""
        return any(self._will_take(upstream) for upstream in self.upstreams if upstream.name not in exclude)

    def retry_after_s(self) -> float:
        """The seconds until the first upstream may take a request."""
        return min(upstream.wait_s() for upstream in self.upstreams)

    async def acquire(self, key: str | None, exclude: Collection[str] = ()) -> ModelUpstream:
        """
        The upstream for a request, which counts as one of its requests until `release`; waits for one that is free.

        Args:
            key: equal for requests that should meet.
            exclude: the names of upstreams that must not get it.

        Raises:
            NoUpstream: none will take it in time, or too many wait already.
        """
        # Those that wait come first; `_wait` serves all that can be served, in order.
        if not self._waiters and (upstream := self._take(key, exclude)) is not None:
            return upstream
        if not self.may_come(exclude):
            raise NoUpstream("rate_limit" if self._are_limited else "unavailable", self.retry_after_s())
        if len(self._waiters) >= self._max_waiting:
            raise NoUpstream("queue_full", max(1.0, self.retry_after_s()))
        return await self._wait(_Waiter(key, exclude))

    def release(self, upstream: ModelUpstream) -> None:
        """A request of the upstream is over."""
        upstream.end()
        self._serve_waiters()

    def close(self) -> None:
        """Forget the timer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def views(self) -> Iterator[UpstreamView]:
        """The state and the counters of each, for operators."""
        return (upstream.view() for upstream in self.upstreams)

    async def _wait(self, waiter: _Waiter) -> ModelUpstream:
        self._waiters.append(waiter)
        self._serve_waiters()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await waiter.turn
        except TimeoutError:
            self._give_back(waiter)
            raise NoUpstream("queue_timeout", 1.0) from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def _give_back(self, waiter: _Waiter) -> None:
        """The request left at the moment in which it got its upstream."""
        if waiter.turn.done() and not waiter.turn.cancelled():
            upstream = waiter.turn.result()
            upstream.record_abandonment()
            self.release(upstream)

    def _serve_waiters(self) -> None:
        """Give what is free to those that wait, the first one first."""
        waits = self._waits_s()  # before: a rest may end between the look at its upstream and the one at the clock
        waiting = iter(tuple(self._waiters))
        # Looked at anew after each that is taken: where nothing is free, a long line costs nothing.
        while self._ready(()) and (waiter := next((each for each in waiting if self._serve(each)), None)) is not None:
            self._waiters.remove(waiter)
        self._set_timer([*waits, *self._waits_s()])

    def _serve(self, waiter: _Waiter) -> bool:
        if waiter.turn.done() or (upstream := self._take(waiter.key, waiter.exclude)) is None:
            return False
        waiter.turn.set_result(upstream)
        return True

    def _waits_s(self) -> list[float]:
        return [wait_s for upstream in self.upstreams if (wait_s := upstream.wait_s()) > 0]

    def _set_timer(self, waits: Sequence[float]) -> None:
        """Look again when an upstream's rest or its minute is over: nothing else tells."""
        self.close()
        if self._waiters and waits:
            self._timer = asyncio.get_running_loop().call_later(min(waits) + 0.001, self._serve_waiters)

    def _take(self, key: str | None, exclude: Collection[str]) -> ModelUpstream | None:
        choice = self._choose(key, exclude)
        if choice is None:
            return None
        upstream = self._by_name[choice.name]
        upstream.begin(is_affine=choice.is_affine)
        return upstream

    def _choose(self, key: str | None, exclude: Collection[str]) -> UpstreamChoice | None:
        candidates = [Candidate(upstream.name, upstream.weight, upstream.outstanding, upstream.floor) for upstream in self._ready(exclude)]
        key = key if self._options.balance == "affinity" else None
        choice = choose(key, candidates, self._options.affinity_factor, _pick_two)
        if choice is None or key is None:
            return choice
        # Only the first among all upstreams, with those that are out, is likely to have the conversation's cache.
        everyone = [Candidate(upstream.name, upstream.limits.weight) for upstream in self.upstreams]
        return UpstreamChoice(choice.name, is_affine=rank(key, everyone)[0].name == choice.name)

    def _ready(self, exclude: Collection[str]) -> list[ModelUpstream]:
        ignores_breaker = self._panics
        return [
            upstream
            for upstream in self.upstreams
            if upstream.name not in exclude and upstream.condition(ignores_breaker=ignores_breaker and upstream.may_be_ignored) == "ready"
        ]

    @property
    def _are_limited(self) -> bool:
        """Whether all of them are well, and have said that they take no more."""
        return all(upstream.is_limited for upstream in self.upstreams)

    @property
    def _panics(self) -> bool:
        """
        Whether more than half of the upstreams are out: the rest would break down under the whole load, so those that
        are there get their part of it though they fail.
        """
        return 2 * sum(upstream.is_open for upstream in self.upstreams) > len(self.upstreams)

    def _will_take(self, upstream: ModelUpstream) -> bool:
        match upstream.condition(ignores_breaker=self._panics and upstream.may_be_ignored):
            case "ready":
                return True
            case "open":  # it may fail again: whether it is well is only known after its rest
                return False
            case "full" | "resting":
                # Who would wait longer than the queue allows is refused at once, and hears when to come again.
                return upstream.wait_s() <= self._timeout_s


def _pick_two(count: int) -> tuple[int, int]:
    first, second = random.sample(range(count), 2)
    return first, second
