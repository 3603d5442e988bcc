"""Says what is wrong with a client's JSON, and where."""

import re

import msgspec

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for JSON that it can't read."""

_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\)(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(?:\\\\)*(\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_POSITION = re.compile(r"\(byte (\d+)\)")
_PAIR_LENGTH = 12
"""Bytes of two escapes: so far behind a surrogate the decoder may notice that it is alone."""


def describe_json_error(body: bytes, error: Exception) -> str:
    """
    What is wrong with JSON, as the end of a sentence. Bytes are counted from 0.

    Args:
        body: the whole JSON.
        error: of the decoder, for `body` or a part of it; one of `JSON_ERRORS`.
    """
    if not body.strip():
        return "it is empty"
    try:
        body.decode()
    except UnicodeDecodeError as invalid:
        return f"it is not valid UTF-8 (byte {invalid.start})"
    try:
        msgspec.json.decode(body)
    except JSON_ERRORS as whole_error:  # of a part, the decoder counts the bytes from its beginning
        error = whole_error
    reason = str(error)
    position = _POSITION.search(reason)
    end = int(position[1]) if position else len(body)
    if ("surrogate" in reason or position is None) and (alone := _LONE_SURROGATE.search(body, max(end - _PAIR_LENGTH, 0), end)):
        escape = alone.lastindex or 0
        return f"'{alone[escape].decode()}' is half of a surrogate pair, and no character by itself (byte {alone.start(escape)})"
    return reason
