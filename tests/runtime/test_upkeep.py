"""Work that goes on after a round that failed."""

import asyncio

import pytest
from structlog.testing import capture_logs

from antiphon.errors import StoreError
from antiphon.runtime.upkeep import one_round


def test_a_round_that_fails_is_not_the_last_and_what_nobody_else_logs_is_logged():
    rounds = []
    with capture_logs() as lines:
        for failure in (StoreError("It is away.", is_temporary=True), OSError(5, "Input/output error"), None):
            with one_round("sweeper"):
                rounds.append(failure)
                if failure is not None:
                    raise failure
    assert len(rounds) == 3
    assert [(line["event"], line["work"]) for line in lines] == [("defect", "sweeper")]


def test_work_that_is_cancelled_ends():
    with pytest.raises(asyncio.CancelledError), one_round("sweeper"):
        raise asyncio.CancelledError
