"""Sums over the latest seconds, and the tries that they allow, by a clock of the test's own."""

from hypothesis import given, strategies as st

from antiphon.runtime.balancing.limits import FREE_RETRIES, RetryBudget, SlidingWindow
from support.runtime.upstream_pools import Clock

steps = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 9)), max_size=60)


@given(steps)
def test_a_window_has_all_of_its_seconds_and_little_more(additions):
    clock, events = Clock(), []
    window = SlidingWindow(60.0, clock)
    for pause_s, amount in additions:
        clock.now += pause_s
        window.add(amount)
        events.append((clock.now, amount))
        inside = sum(each for at, each in events if at > clock.now - 60)
        nearly = sum(each for at, each in events if at > clock.now - 62)
        assert inside <= window.total <= nearly


@given(steps, st.integers(1, 20))
def test_after_the_wait_that_it_says_there_is_room(additions, limit):
    clock = Clock()
    window = SlidingWindow(60.0, clock)
    for pause_s, _ in additions:
        clock.now += pause_s
        if window.wait_s(limit) == 0:
            window.add(1)
        assert window.total <= limit
    clock.now += window.wait_s(limit)
    assert window.wait_s(limit) == 0


def test_a_fifth_of_the_requests_may_be_tried_again_and_a_few_in_any_case():
    clock = Clock()
    budget = RetryBudget(0.2, clock)
    for _ in range(100):
        budget.count_request()
    assert sum(budget.take() for _ in range(100)) == 20 + FREE_RETRIES
    clock.now += 12
    assert sum(budget.take() for _ in range(100)) == FREE_RETRIES
