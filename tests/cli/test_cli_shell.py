"""How lines are laid out and where they go."""

import io
from pathlib import Path

from antiphon.cli.shell import Shell, aligned


def test_columns_are_as_wide_as_their_widest_cell():
    assert list(aligned([("a", "one"), ("long", "x")])) == ["a     one", "long  x"]


def test_what_strangers_said_breaks_no_line_and_moves_no_cursor():
    assert list(aligned([("two\nlines", "\x1b[31mred\x07"), ("é", "\x9b")])) == ["two lines  \ufffd[31mred\ufffd", "é          \ufffd"]


def test_no_rows_are_no_lines():
    assert list(aligned([])) == []


def test_every_line_of_a_note_says_who_speaks():
    err = io.StringIO()
    Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=err).note("one\ntwo")
    assert err.getvalue() == "antiphon: one\nantiphon: two\n"


def test_a_stream_that_is_no_terminal_is_not_watched():
    assert not Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO()).watched
