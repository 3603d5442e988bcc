"""How lines are laid out and where they go."""

import io
from pathlib import Path

from antiphon.cli.common.shell import Shell, align_columns


def test_columns_are_as_wide_as_their_widest_cell():
    assert list(align_columns([("a", "one"), ("long", "x")])) == ["a     one", "long  x"]


def test_what_strangers_said_breaks_no_line_and_moves_no_cursor():
    assert list(align_columns([("two\nlines", "\x1b[31mred\x07"), ("é", "\x9b")])) == [
        "two lines  \ufffd[31mred\ufffd",
        "é          \ufffd",
    ]


def test_a_long_last_cell_goes_on_below_itself_where_there_is_room():
    rows = [("key", "a text of some words that is longer than the line"), ("k", "short")]
    assert list(align_columns(rows, 45)) == ["key  a text of some words that is longer than", "     the line", "k    short"]


def test_a_long_last_cell_goes_below_the_others_where_there_is_no_room():
    rows = [
        ("NAME", "STATE", "WHAT IT IS"),
        ("a-long-name", "here", "a text of some words, no longer than is read with ease"),
        ("b", "-", ""),
    ]
    assert list(align_columns(rows, 50)) == [
        "NAME         STATE",
        "  WHAT IT IS",
        "a-long-name  here",
        "  a text of some words, no longer than is read",
        "  with ease",
        "b            -",
        "",
    ]


def test_a_path_is_not_broken():
    assert list(align_columns([("at", "/folder/" + "x" * 60)], 50)) == ["at  /folder/" + "x" * 60]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_has_long_lines_broken_for_it():
    printed = []
    for out in (io.StringIO(), Terminal()):
        shell = Shell(environ={"COLUMNS": "50"}, cwd=Path(), stdin=io.StringIO(), stdout=out, stderr=io.StringIO())
        shell.say_rows([("key", "word " * 20)])
        printed.append(out.getvalue().count("\n"))
    assert printed == [1, 3]


def test_what_a_model_writes_gives_a_terminal_no_commands_and_a_file_all_of_it():
    written, printed, err = "one\ttwo\r\n\x1b]0;title\x07", [], io.StringIO()
    for out in (io.StringIO(), Terminal()):
        shell = Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=out, stderr=err)
        shell.say(written, end="")
        printed.append(out.getvalue())
    assert printed == [written, "one\ttwo\n\ufffd]0;title\ufffd"]
    shell.note("\x1b[2J")
    assert err.getvalue() == "antiphon: \ufffd[2J\n"


def test_no_rows_are_no_lines():
    assert list(align_columns([])) == []


def test_every_line_of_a_note_says_who_speaks():
    err = io.StringIO()
    Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=err).note("one\ntwo")
    assert err.getvalue() == "antiphon: one\nantiphon: two\n"


def test_a_stream_that_is_no_terminal_is_not_watched():
    assert not Shell(environ={}, cwd=Path(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO()).is_interactive
