"""Progress as plain lines, and as bars."""

import contextlib
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from antiphon.cli.common.progress import ProgressLines, show_progress
from antiphon.cli.common.shell import Shell
from antiphon.errors import ServerError


def lines(total: int, done: list[int], second: float = 1.0) -> list[str]:
    """What is written when the report comes once in every `second`."""
    written: list[str] = []
    report = ProgressLines(written.append, itertools.count(0, second).__next__)
    for count in done:
        report("model.gguf", count, total)
    return written


def test_a_download_tells_where_it_is_at_every_tenth():
    assert lines(2_000_000, [0, 10, 199_999, 200_000, 1_000_000, 2_000_000]) == [
        "model.gguf: 0 % of 2 MB",
        "model.gguf: 10 % of 2 MB",
        "model.gguf: 50 % of 2 MB",
        "model.gguf: 100 % of 2 MB",
    ]


def test_what_takes_no_time_is_told_at_its_beginning_and_its_end():
    assert lines(2_000_000, [0, 1_000_000, 1_500_000, 2_000_000], second=0.1) == ["model.gguf: 0 % of 2 MB", "model.gguf: 100 % of 2 MB"]


def test_waiting_has_no_size():
    assert lines(0, [0, 0]) == ["model.gguf"]


@given(st.integers(1, 10**10).flatmap(lambda total: st.tuples(st.just(total), st.lists(st.integers(0, total)))), st.floats(0, 2))
def test_a_download_never_takes_more_than_eleven_lines_and_never_goes_back(download, second):
    written = lines(*download, second=second)
    assert len(written) <= 11
    shown = [int(line.split()[1]) for line in written]
    assert shown == sorted(set(shown))


def test_two_files_are_told_apart():
    written: list[str] = []
    report = ProgressLines(written.append, lambda: 0.0)
    report("a", 1, 10)
    report("b", 1, 10)
    assert [line.split(":")[0] for line in written] == ["a", "b"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


ERASES = "\x1b[1A\x1b[2K"
"""One line up, and nothing in it."""


@pytest.mark.parametrize("is_had", [True, False])
def test_bars_stay_where_all_was_fetched_and_go_where_it_was_not(is_had):
    terminal = Terminal()
    shell = Shell(environ={"TERM": "xterm", "COLUMNS": "80"}, cwd=Path("/"), stdin=io.StringIO(), stdout=io.StringIO(), stderr=terminal)
    with contextlib.suppress(ServerError), show_progress(shell) as report:
        report("fetching x", 10, 10)
        if not is_had:
            raise ServerError("It could not be had.")
    assert (ERASES in terminal.getvalue().rpartition("fetching x")[2]) is not is_had
