"""Mistakes in a model's table of the configuration, in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from antiphon.errors import ServerError, did_you_mean, quote_list

_Options = TypeVar("_Options", bound=Struct)

_TABLE_KEYS = (
    *("name", "engine", "sessions", "upstreams", "fallback", "fallback_on"),
    *("balance", "affinity_factor", "failover_after_s", "retry_budget", "slow_start_s"),
)
"""What the table of a model has beside its engine's options."""


def convert_options(options: Mapping[str, object], kind: type[_Options], prefix: str, problems: Sequence[str] = ()) -> _Options:
    """
    The options of a model's table.

    Args:
        prefix: begins the message.
        problems: sentences about mistakes that were found before.

    Raises:
        ServerError: with a sentence for each mistake.
    """
    try:
        settings = msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        more = [*option_problems(options, kind)] or [describe_option_error(error, kind)]
        raise ServerError(prefix + " ".join([*problems, *more])) from None
    if problems:
        raise ServerError(prefix + " ".join(problems))
    return settings


def option_problems(options: Mapping[str, object], kind: type[Struct]) -> Iterator[str]:
    """What is wrong with each option by itself: a sentence each. It takes a missing one for a misspelt one."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    suggestions = ""
    for name in [name for name in options if name not in fields]:
        question = did_you_mean(name, option_names(kind))
        suggestions += question
        yield f"Object contains unknown field `{name}`.{question}"
    for name, field in fields.items():
        if name in options:
            # msgspec reports the first mistake only, so each option is converted by itself.
            one_field: type[Any] = msgspec.defstruct(kind.__name__, [(name, field.type)])
            try:
                msgspec.convert({name: options[name]}, one_field, strict=False)
            except msgspec.ValidationError as error:
                yield describe_option_error(error, kind)
        elif field.required and f"'{name}'" not in suggestions:
            yield f"Object missing required field `{name}`."


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
    if match := re.fullmatch(r"Invalid enum value '?(.*?)'? - at `\$\.(\w+)(?:\[\d+\])?`", text):
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
    types = [each.item_type if isinstance(each, inspect.VarTupleType | inspect.ListType) else each for each in types]
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
