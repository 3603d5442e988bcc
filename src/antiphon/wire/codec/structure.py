"""
How large JSON is before it is decoded: how many values it has, and how deep they are nested.

Decoding makes an object of every value. That takes up to seventy times the memory of a short one, and one call can't be
interrupted: 32 MiB of tiny messages took ten seconds. Here the text is read in chunks, so that in a thread no step
holds the interpreter's lock for long.
"""

from collections.abc import Iterator

from antiphon import errors

DEPTH_LIMIT = 64

VALUES_LIMIT = 100_000
"""
For the body of a request. A conversation of a million tokens has half as many: an item of a coding agent has some 150
tokens and 7 values.
"""

EVENT_VALUES_LIMIT = 20_000
"""For an event of a WebSocket, which is decoded on the event loop."""

EXACT_LIMIT_BYTES = 1 << 20
"""In longer events, commas and brackets within text count too: finding out would hold the event loop."""

CHUNK_BYTES = 128 << 10
"""The slowest text, of escaped quotes only, takes 2 ms a chunk."""

_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHER_BYTES = bytes(set(range(256)) - set(b'[]{},"'))


def check_structure(body: bytes, max_values: int = VALUES_LIMIT, *, is_event: bool = False) -> None:
    """
    Check how many values JSON has, and how deep it is nested. What is not JSON may pass: the decoder refuses it.

    Args:
        max_values: how many values all objects and arrays may have together. An empty one counts as if it had one.
        is_event: whether `body` is no request's body, but a message; errors say so.

    Raises:
        ClientError: there are more values (status 413), or more than `DEPTH_LIMIT` levels.
    """
    # A value takes a byte, and a level an opening bracket: most bodies need no closer look.
    if len(body) <= max_values and body.count(b"{") + body.count(b"[") <= DEPTH_LIMIT:
        return
    value_count = quote_count = 0
    brackets: list[bytes] = []
    for structure, quotes in _structure(body):
        quote_count += quotes
        # n values in an array or object: one bracket and n - 1 commas, and at most two strings for each.
        value_count += structure.count(b",") + structure.count(b"[")
        if max(value_count, quote_count // 4) > max_values:
            raise errors.too_many_values(max_values)
        brackets.append(structure.translate(None, b","))
    if not _is_shallow(b"".join(brackets)):
        raise errors.nesting_too_deep(DEPTH_LIMIT, is_event=is_event)


def check_event_structure(frame: bytes) -> None:
    """
    Check how many values a WebSocket's event has; quick enough for the event loop.

    Raises:
        ClientError: there are more than `EVENT_VALUES_LIMIT`.
    """
    if len(frame) <= 2 * EVENT_VALUES_LIMIT:  # a value and its comma take two bytes
        return
    if frame.count(b",") + frame.count(b"[") + frame.count(b"{") <= EVENT_VALUES_LIMIT:
        return
    if len(frame) > EXACT_LIMIT_BYTES:
        raise errors.too_many_values(EVENT_VALUES_LIMIT)
    check_structure(frame, EVENT_VALUES_LIMIT, is_event=True)


def check_depth(message: bytes) -> None:
    """
    Check that a message, such as an event, is nested at most `DEPTH_LIMIT` levels deep.

    Raises:
        ClientError: it is nested deeper.
    """
    check_structure(message, max_values=len(message), is_event=True)


def _structure(body: bytes) -> Iterator[tuple[bytes, int]]:
    """For each chunk, the commas and brackets outside of strings, with braces as brackets; and how many quotes it has."""
    is_in_string = False
    start = 0
    while start < len(body):
        end = start + CHUNK_BYTES
        chunk = body[start:end]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 and end < len(body):  # keep a backslash and what it escapes together
            end += 1
            chunk = body[start:end]
        if b"\\" in chunk:
            chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Without escaped quotes, every other piece between quotes is outside of strings.
        pieces = chunk.translate(_BRACES_TO_BRACKETS, _OTHER_BYTES).split(b'"')
        yield b"".join(pieces[is_in_string::2]), len(pieces) - 1
        is_in_string ^= len(pieces) % 2 == 0
        start = end


def _is_shallow(brackets: bytes) -> bool:
    for _ in range(DEPTH_LIMIT):  # each round removes the innermost level
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            return True  # nothing left, or brackets that don't match, which the decoder refuses
        brackets = outer
    return not brackets
