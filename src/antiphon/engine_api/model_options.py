"""Mistakes in a model's table of the configuration, in words."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import inspect

from antiphon.errors import did_you_mean

_TABLE_KEYS = ("name", "engine", "sessions")
"""What the table of a model has beside its engine's options."""


def describe_option_error(error: Exception, kind: type) -> str:
    """
    What is wrong with options that can't be converted to `kind`: sentences, with a similar name for an unknown one.

    Args:
        error: msgspec's, or another one whose text says what is wrong.
    """
    match = re.search(r"unknown field `([^`]*)`", str(error)) if isinstance(error, msgspec.ValidationError) else None
    return f"{error}.{did_you_mean(match[1], option_names(kind)) if match else ''}"


def option_names(kind: type) -> tuple[str, ...]:
    """The names that the table of a model may have, and the tables within it."""
    return tuple(dict.fromkeys((*_field_names(inspect.type_info(kind)), *_TABLE_KEYS)))


def _field_names(info: object) -> Iterator[str]:
    match info:
        case inspect.StructType(fields=fields):
            for field in fields:
                yield field.encode_name
                yield from _field_names(field.type)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _field_names(each)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield from _field_names(item)
        case _:
            pass
