"""A deadline on a clock that the tests put forward."""

import asyncio
from math import inf

import pytest

from antiphon.deadline import Deadline


class FakeClockLoop(asyncio.SelectorEventLoop):
    """Its clock stands still but for `advance`; it counts the timers that were made."""

    now_s = 100.0
    timers = 0

    def time(self):
        return self.now_s

    def call_at(self, when, callback, *args, context=None):
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)

    def advance(self, seconds):
        """Let so much time pass at once, and run what is due."""
        self.now_s += seconds
        for _ in range(3):  # a timer that sets itself again may be due at once
            self.run_until_complete(asyncio.sleep(0))


class Calls:
    def __init__(self, loop):
        self.loop, self.at, self.then = loop, [], lambda: None

    def __call__(self):
        self.at.append(self.loop.now_s)
        self.then()


@pytest.fixture
def loop():
    with asyncio.Runner(loop_factory=FakeClockLoop) as runner:
        yield runner.get_loop()


@pytest.fixture
def calls(loop):
    return Calls(loop)


@pytest.fixture
def deadline(loop, calls):
    async def make():
        return Deadline(calls)

    return loop.run_until_complete(make())


def test_nothing_is_due_before_it_is_set(loop, deadline, calls):
    loop.advance(1000)
    assert deadline.due_at == inf and not calls.at and not loop.timers


def test_it_comes_once_and_then_nothing_is_due(loop, deadline, calls):
    deadline.set(110)
    loop.advance(9)
    assert not calls.at
    loop.advance(1)
    loop.advance(50)
    assert calls.at == [110] and deadline.due_at == inf


def test_a_later_time_is_a_store_and_costs_one_timer_each_time_it_fires(loop, deadline, calls):
    deadline.set(110)
    for _ in range(18):  # a read each half second
        loop.advance(0.5)
        deadline.due_at = loop.now_s + 10
    assert loop.timers == 1
    loop.advance(1)  # the timer fires, and is set for 119
    assert loop.timers == 2 and not calls.at
    loop.advance(8.9)
    assert not calls.at
    loop.advance(0.1)
    assert calls.at == [pytest.approx(119)] and loop.timers == 2


def test_setting_it_to_the_same_or_a_later_time_makes_no_timer(loop, deadline, calls):
    for due_at in (110, 110, 115, 120):
        deadline.set(due_at)
    assert loop.timers == 1
    loop.advance(10)
    assert not calls.at
    loop.advance(10)
    assert calls.at == [120]


def test_an_earlier_time_moves_the_timer(loop, deadline, calls):
    deadline.set(200)
    deadline.set(105)
    loop.advance(5)
    loop.advance(100)
    assert calls.at == [105], "the first timer is gone"


def test_an_infinite_time_lets_the_timer_run_out(loop, deadline, calls):
    deadline.set(110)
    deadline.due_at = inf
    loop.advance(20)
    assert not calls.at and loop.timers == 1
    deadline.set(130)
    loop.advance(10)
    assert calls.at == [130]


def test_a_deadline_that_was_cancelled_never_comes_unless_it_is_set_again(loop, deadline, calls):
    deadline.cancel()
    deadline.set(110)
    deadline.cancel()
    deadline.due_at = 115  # a read that was under way
    loop.advance(20)
    assert not calls.at
    deadline.set(130)
    loop.advance(10)
    assert calls.at == [130]


def test_it_can_be_set_again_from_its_callback(loop, deadline, calls):
    calls.then = lambda: deadline.set(loop.now_s + 10)
    deadline.set(110)
    for _ in range(6):
        loop.advance(5)
    assert calls.at == [110, 120, 130]


def test_a_timer_that_fires_within_a_millisecond_of_its_time_is_in_time(loop, deadline, calls):
    deadline.set(110)
    deadline.due_at = 110.0009
    loop.advance(10)
    assert calls.at == [110]
    deadline.set(120)
    deadline.due_at = 120.002
    loop.advance(10)
    assert calls.at == [110]
