"""Repairs JSON in which upstream servers cut characters apart: broken UTF-8, and half surrogate pairs."""

import contextlib
import re
from collections.abc import Callable
from typing import TypeVar

from antiphon.errors import UpstreamError

T = TypeVar("T")

_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""
An escaped lone surrogate, which JSON allows (RFC 8259, section 8.2) and UTF-8 can't encode (RFC 3629, section 3).
Servers that cut text by UTF-16 units send them.
"""


def repair_json(event: bytes, decode: Callable[[bytes], T], error: Exception, what: str) -> tuple[bytes, T]:
    """
    The event with U+FFFD in place of broken characters, and decoded.

    Args:
        error: why it could not be decoded as it came.
        what: it should be, such as `event`.

    Raises:
        UpstreamError: it still can't be decoded.
    """
    repair = _LONE_SURROGATE.sub(rb"\\ufffd", event.decode("utf-8", "replace").encode())
    if repair != event:
        with contextlib.suppress(ValueError, RecursionError):
            return repair, decode(repair)
    raise UpstreamError(f"The model server sent what is no {what}: {error}.", code="upstream_malformed") from None
