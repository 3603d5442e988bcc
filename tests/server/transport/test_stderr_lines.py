"""Standard error, cut into messages."""

from antiphon.server.transport.stderr_lines import MAX_LINE_BYTES, LineGrouper

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    broken()\nOSError: no'
GROUP = "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: all (1 sub-exception)\n  +-+---- 1 ----"


def messages(text: str, size: int = 1 << 16) -> list[str]:
    grouper, content = LineGrouper(), text.encode()
    pieces = [content[offset : offset + size] for offset in range(0, len(content), size)]
    return [*(message for piece in pieces for message in grouper.feed(piece)), *grouper.end()]


def test_a_traceback_is_one_message_however_it_arrives():
    for size in (1, 7, 1 << 16):
        assert messages(f"before\n{TRACEBACK}\nafter\n", size) == ["before", TRACEBACK, "after"]


def test_a_traceback_ends_where_something_else_begins():
    assert messages(f'{GROUP}\nafter\n{TRACEBACK[:60]}\n{{"event": "x"}}\n') == [GROUP, "after", TRACEBACK[:60].rstrip(), '{"event": "x"}']


def test_what_never_ends_its_line_is_cut():
    parts = messages("x" * (2 * MAX_LINE_BYTES + 1))
    assert [len(part) for part in parts] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 1]


def test_the_last_line_needs_no_end():
    assert messages("one\n\ntwo") == ["one", "two"]
