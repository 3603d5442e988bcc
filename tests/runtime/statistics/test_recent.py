"""How a model did in the last hour: over any traffic, and over several processes."""

from statistics import median

import pytest
from hypothesis import given, strategies as st

from antiphon.runtime.statistics.recent import REFUSED, WINDOW_MINUTES, RecentAnswers, model_health, server_health


class Clock:
    now = 600_000.0

    def __call__(self):
        return self.now


def test_answers_errors_and_refusals_are_those_of_the_last_hour():
    clock = Clock()
    recent = RecentAnswers(clock)
    recent.observe("old", has_failed=True, first_token_s=9)
    clock.now += 60 * WINDOW_MINUTES
    for failed in (True, False, False):
        recent.observe("m", has_failed=failed)
    recent.refuse()
    health = model_health([recent.counts()], clock.now)
    assert health.keys() == {"m", REFUSED}
    assert (health["m"].answers, health["m"].errors, health["m"].first_token_p50_s, health[REFUSED].refusals) == (3, 1, None, 1)


def test_times_to_the_first_token_are_those_of_the_last_minutes():
    clock = Clock()
    recent = RecentAnswers(clock)
    recent.observe("m", has_failed=False, first_token_s=9)
    clock.now += 16 * 60
    recent.observe("m", has_failed=False, first_token_s=0.2)
    health = model_health([recent.counts()], clock.now)["m"]
    assert health.answers == 2 and health.first_token_p50_s == health.first_token_p99_s == pytest.approx(0.2, rel=0.05)


@given(st.lists(st.floats(0.001, 500), min_size=1), st.lists(st.floats(0.001, 500)))
def test_a_median_of_several_processes_is_right_to_a_twentieth(ours, theirs):
    parts = []
    for times in (ours, theirs):
        recent = RecentAnswers(Clock())
        for each in times:
            recent.observe("m", has_failed=False, first_token_s=each)
        parts.append(recent.counts())
    merged, everything = server_health(parts, Clock.now), sorted([*ours, *theirs])
    middle = everything[-(-len(everything) // 2) - 1]
    assert merged.answers == len(everything) and merged.first_token_p50_s == pytest.approx(middle, rel=0.055)
    assert merged.first_token_p50_s <= merged.first_token_p99_s and median(everything) > 0


def test_what_is_kept_is_bounded_however_long_it_runs():
    clock = Clock()
    recent = RecentAnswers(clock)
    for _ in range(3 * WINDOW_MINUTES):
        recent.observe("m", has_failed=False, first_token_s=0.1)
        clock.now += 60
    assert sum(len(minutes) for minutes in recent.counts().values()) <= WINDOW_MINUTES
