"""Mistakes in a model's table of the configuration, in words."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import inspect

from antiphon.errors import did_you_mean, quote_list

_TABLE_KEYS = ("name", "engine", "sessions")
"""What the table of a model has beside its engine's options."""


def describe_option_error(error: Exception, kind: type) -> str:
    """
    What is wrong with options that can't be converted to `kind`: sentences, with a similar name for an unknown one.

    Args:
        error: msgspec's, or another one whose text says what is wrong.
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"{text}."
    if match := re.search(r"unknown field `([^`]*)`", text):
        return f"{text}.{did_you_mean(match[1], option_names(kind))}"
    if match := re.fullmatch(r"Invalid enum value '?(.*?)'? - at `\$\.(\w+)`", text):
        value, name = match.groups()
        choices = _choices(kind, name)
        return f"`{name}`: expected {quote_list(choices, 'or')}, got '{value}'.{did_you_mean(value, choices)}"
    if match := re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)` - at `\$\.([^`]*)`", text):
        return f"`{match[3]}`: expected {_describe_types(match[1])}, got {_describe_types(match[2])}."
    return f"{text}."


_TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "bool": "true or false",
    "object": "a table",
    "array": "an array",
}


def _describe_types(names: str) -> str:
    """Types of msgspec in TOML's words; TOML has no null."""
    return " or ".join(_TYPE_WORDS.get(name, name) for name in names.split(" | ") if name != "null")


def _choices(kind: type, name: str) -> tuple[str, ...]:
    """The values that an option may have."""
    info = inspect.type_info(kind)
    types = [field.type for field in info.fields if field.encode_name == name] if isinstance(info, inspect.StructType) else []
    choices = [member for each in types for member in (each.types if isinstance(each, inspect.UnionType) else (each,))]
    return tuple(str(value) for member in choices if isinstance(member, inspect.LiteralType) for value in member.values)


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
