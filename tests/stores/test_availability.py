"""One report for each outage, whatever fails in it and however often."""

from antiphon.stores.availability import SETTLE_S, Availability


class Watched:
    """An availability, by a clock that the test turns, and what it reports."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reports: list[str | None] = []
        self.availability = Availability(self.reports.append, monotonic=lambda: self.now)


def test_an_outage_is_reported_when_it_begins_and_when_it_ends() -> None:
    watched = Watched()
    for _ in range(5):
        watched.availability.mark_reached()
        watched.availability.mark_written()
    assert watched.reports == []
    for _ in range(5):
        watched.availability.mark_unreachable("It is away.")
        watched.availability.mark_unwritable("It is full.")
    assert watched.reports == ["It is away."]
    watched.availability.mark_written()
    assert watched.reports == ["It is away.", None]


def test_reading_a_full_store_does_not_end_its_outage() -> None:
    watched = Watched()
    for _ in range(3):
        watched.availability.mark_unwritable("It is full.")
        watched.availability.mark_reached()
    assert watched.reports == ["It is full."] and watched.availability.is_out
    watched.availability.mark_written()
    assert watched.reports == ["It is full.", None] and not watched.availability.is_out


def test_a_store_that_takes_some_writes_and_not_others_has_one_more_outage() -> None:
    watched = Watched()
    for _ in range(50):
        watched.now += 1
        watched.availability.mark_unwritable("It is full.")
        watched.availability.mark_written()
    assert watched.reports == ["It is full.", None, "It is full."]
    watched.now += SETTLE_S - 1
    watched.availability.mark_written()
    assert watched.availability.is_out
    watched.now += 1
    watched.availability.mark_written()
    assert watched.reports == ["It is full.", None, "It is full.", None]


def test_outages_far_apart_are_each_over_with_the_first_write() -> None:
    watched = Watched()
    for _ in range(3):
        watched.now += SETTLE_S
        watched.availability.mark_unwritable("It is full.")
        watched.availability.mark_written()
    assert watched.reports == ["It is full.", None] * 3


def test_a_store_that_was_away_is_back_once_it_can_be_read() -> None:
    watched = Watched()
    watched.availability.mark_unreachable("It is away.")
    watched.availability.mark_reached()
    assert watched.reports == ["It is away.", None]


def test_how_long_a_store_was_not_reached_counts_from_the_last_success() -> None:
    watched = Watched()
    watched.now += 5
    watched.availability.mark_reached()
    watched.now += 3
    watched.availability.mark_unreachable("It is away.")
    watched.now += 4
    assert watched.availability.unreached_s == 7
    watched.availability.mark_written()
    assert watched.availability.unreached_s == 0
