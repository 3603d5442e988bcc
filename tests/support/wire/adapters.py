"""Readers of openai-python's unions of types."""

import functools
from typing import Any

from pydantic import TypeAdapter


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Reads a type. It is made when it is needed, and once: most processes that collect the tests need none, and each takes 0.1 s."""
    return TypeAdapter(kind)
