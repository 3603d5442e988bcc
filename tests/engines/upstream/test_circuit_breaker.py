"""The circuit breaker, held against the plainest account of what it should do."""

import math

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.engines.upstream.circuit_breaker import MOVES, CircuitBreaker, CircuitEvent, CircuitState

MOST, REST_S = 3, 10.0


class BreakerMachine(RuleBasedStateMachine):
    """Requests that end in every way, in every order, while time passes."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.told = []
        self.breaker = CircuitBreaker(MOST, REST_S, self.told.append, lambda: self.now)
        self.in_a_row = 0
        self.rests_from = None
        self.is_trying = False

    @rule(seconds=st.sampled_from([0.5, 4.0, REST_S, 100.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def a_request_asks_to_pass(self):
        left_s = self.breaker.retry_after_s()
        if self.rests_from is None:
            assert left_s is None, "a closed breaker lets everything pass"
        elif self.now >= self.rests_from + REST_S:
            assert left_s is None, "after its rest one is tried, and another where that one hangs for as long"
            self.is_trying, self.rests_from = True, self.now
        else:
            assert left_s == max(self.rests_from + REST_S - self.now, 1.0)

    @rule()
    def an_answer_begins(self):
        self.breaker.record_success()
        self.in_a_row = 0
        if self.is_trying:
            self.rests_from, self.is_trying = None, False

    @rule()
    def a_request_fails(self):
        self.breaker.record_failure()
        self.in_a_row += 1
        if self.is_trying or (self.rests_from is None and self.in_a_row >= MOST):
            self.rests_from, self.is_trying = self.now, False

    @rule()
    def a_request_is_called_off(self):
        self.breaker.record_abandonment()
        if self.is_trying:
            self.rests_from, self.is_trying = -math.inf, False

    @invariant()
    def it_is_in_the_state_of_the_account(self):
        expected = CircuitState.CLOSED if self.rests_from is None else CircuitState.HALF_OPEN if self.is_trying else CircuitState.OPEN
        assert self.breaker.state is expected

    @invariant()
    def every_change_is_told_and_nothing_else(self):
        assert all(before is not after for before, after in zip([CircuitState.CLOSED, *self.told], self.told, strict=False))
        assert [CircuitState.CLOSED, *self.told][-1] is self.breaker.state


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(stateful_step_count=40)


def test_every_finding_has_its_move_in_every_state():
    assert all(set(MOVES[state]) == set(CircuitEvent) for state in CircuitState)


def breaker_of(clock, **options):
    return CircuitBreaker(MOST, REST_S, lambda _state: None, lambda: clock[0], **options)


def test_each_failure_of_a_trial_doubles_the_cooldown_up_to_its_limit():
    clock, rests = [100.0], []
    breaker = breaker_of(clock, max_cooldown_s=35.0)
    for _ in range(MOST):
        breaker.record_failure()
    for _ in range(4):
        rests.append(breaker.remaining_s())
        clock[0] += rests[-1]
        assert breaker.retry_after_s() is None
        breaker.record_failure()
    assert rests == [10, 20, 35, 35]
    clock[0] += 35
    assert breaker.retry_after_s() is None
    breaker.record_success()
    for _ in range(MOST):
        breaker.record_failure()
    assert breaker.remaining_s() == 10


def test_the_jitter_is_another_one_each_time():
    clock, factors = [100.0], iter([0.75, 1.25])
    breaker = breaker_of(clock, jitter=lambda: next(factors))
    for expected in (7.5, 12.5):
        breaker.open()
        assert breaker.remaining_s() == expected
        clock[0] += expected
        assert breaker.retry_after_s() is None
        breaker.record_success()


def test_it_opens_where_most_requests_of_ten_seconds_fail():
    for pause_s, state in ((1.0, CircuitState.OPEN), (9.0, CircuitState.CLOSED)):
        clock = [100.0]
        breaker = breaker_of(clock, counts_rate=True)
        for _ in range(3):
            breaker.record_failure()
            clock[0] += pause_s / 2
            breaker.record_failure()
            clock[0] += pause_s / 2
            if breaker.state is CircuitState.CLOSED:
                breaker.record_success()
        assert breaker.state is state
