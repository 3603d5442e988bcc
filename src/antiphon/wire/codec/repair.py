"""Mends JSON that upstream servers send with half a surrogate pair."""

import contextlib
import re
from collections.abc import Callable
from typing import TypeVar

from antiphon.errors import UpstreamError

T = TypeVar("T")

_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a surrogate pair alone. Servers that count in UTF-16 cut characters there, and no decoder of UTF-8 takes it."""


def repair_json(event: bytes, decode: Callable[[bytes], T], error: Exception, what: str) -> tuple[bytes, T]:
    """
    An unreadable event with each part of a character, as bytes or as an escape, replaced by the sign for what can't be read; and read.

    Args:
        error: why it was unreadable.
        what: it should have been, such as `event`.

    Raises:
        UpstreamError: it is no JSON, has none of the shape, or is nested without end.
    """
    whole = _LONE_SURROGATE.sub(rb"\\ufffd", event.decode("utf-8", "replace").encode())
    if whole != event:
        with contextlib.suppress(ValueError, RecursionError):
            return whole, decode(whole)
    raise UpstreamError(f"The model server sent what is no {what}: {error}.", code="upstream_malformed") from None
