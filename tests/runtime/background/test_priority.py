"""The order of background responses that wait."""

import pytest

from antiphon.runtime.background.priority import MAX_RUNS, CompletionOrder, completion_window_s
from antiphon.wire.responses.request import BackgroundOptions

NOW = 1_000_000


def options(window="8h", run="run_1"):
    return BackgroundOptions(completion_window=window, continuation_id=run)


@pytest.mark.parametrize(("window", "seconds"), [("15m", 900), ("8h", 28_800), ("1d", 86_400), ("soonest", 0), ("", 0), (None, 0)])
def test_a_window_is_a_number_with_a_unit_and_anything_else_is_none(window, seconds):
    assert completion_window_s(BackgroundOptions(completion_window=window)) == seconds


def test_without_options_the_first_comes_first():
    order = CompletionOrder()
    assert order.rank("ada", "m", None, NOW) < order.rank("ada", "m", None, NOW + 1) < order.rank("ada", "m", options(), NOW)


def test_a_follow_up_of_a_run_comes_before_what_came_since():
    order = CompletionOrder()
    first = order.rank("ada", "m", options(), NOW)
    other = order.rank("ada", "m", options(run=None), NOW + 60)
    assert order.rank("ada", "m", options(), NOW + 3600) == first < other


@pytest.mark.parametrize(("tenant", "model", "fields"), [("eve", "m", {}), ("ada", "n", {}), ("ada", "m", {"run": "run_2"})])
def test_another_run_has_a_window_of_its_own(tenant, model, fields):
    order = CompletionOrder()
    order.rank("ada", "m", options(), NOW)
    assert order.rank(tenant, model, options(**fields), NOW + 60) == NOW + 60 + 28_800


def test_a_run_without_end_does_not_stay_ahead_of_all_others():
    order = CompletionOrder()
    first = order.rank("ada", "m", options("15m"), NOW)
    assert order.rank("ada", "m", options("15m"), first) == first + 900


def test_the_oldest_runs_are_forgotten():
    order = CompletionOrder()
    for number in range(MAX_RUNS + 1):
        order.rank("ada", "m", options(run=f"run_{number}"), NOW)
    assert order.rank("ada", "m", options(run="run_0"), NOW + 60) == NOW + 60 + 28_800
