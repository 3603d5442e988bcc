"""Fields of wire types that may be absent or null: is one set, and what holds where it isn't."""

from typing import TypeGuard, TypeVar

from msgspec import UNSET

from antiphon.wire.codec.types import Maybe

T = TypeVar("T")
D = TypeVar("D")


def is_set(value: Maybe[T]) -> TypeGuard[T]:
    """Whether a field has a value: it is neither absent nor null."""
    return value is not UNSET and value is not None


def value_or(value: Maybe[T], default: D) -> T | D:
    """The field's value, or `default` where it is absent or null."""
    return value if is_set(value) else default
