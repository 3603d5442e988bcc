"""
Samples of all types of openai-python, generated from the types.

Each type has a sample with only the required fields, one with all fields, and one for each other value of a single field. A list holds one
sample of each kind of member.
"""

import collections.abc
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

# Values within limits of the API's description, where the types are only `int` or `str`
VALUES: dict[str, Any] = {
    "compact_threshold": 1000,
    "file_url": "https://files.example/a.pdf",
    "image_url": "https://images.example/a.png",
    "output_compression": 100,
    "partial_images": 3,
    "top_logprobs": 20,
    "tunnel_id": "tunnel_0123456789abcdef0123456789abcdef",
}
TYPES = {"ContextManagement": "compaction"}
"""The only `type` of some classes, likewise."""
NEVER_EMPTY = {"context_management"}
# Fields that exclude another one, and so are not in the sample with all fields
EXCLUDED = {"generate_summary", "conversation"}


@cache
def samples(annotation: Any, nulls: bool) -> tuple[Any, ...]:
    """Values of a type; with `nulls` optional fields may also be null."""
    return tuple(_samples(annotation, nulls))


def _samples(annotation: Any, nulls: bool) -> Iterator[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Required):
        yield from samples(args[0], nulls)
    elif origin in (Union, UnionType):
        for each in args:
            yield from samples(each, nulls)
    elif origin is Literal:
        yield from args
    elif origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        yield [samples(each, nulls)[:2][-1] for each in _alternatives(args[0])]
        yield []
    elif origin is dict:
        yield {f"key{index}": value for index, value in enumerate(samples(args[1], nulls)[:16])}
    elif is_typeddict(annotation) or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield from _objects(annotation, nulls)
    elif annotation is NoneType:
        if nulls:
            yield None
    else:
        yield {str: "text", int: 20, float: 0.5, bool: True, object: {"any": [1.5, None]}}[annotation]


def _alternatives(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Annotated, Union, UnionType):
        args = get_args(annotation)
        for each in args[:1] if get_origin(annotation) is Annotated else args:
            yield from _alternatives(each)
    elif annotation is not NoneType:
        yield annotation


def _objects(kind: Any, nulls: bool) -> Iterator[dict[str, Any]]:
    fields = dict(_fields(kind))
    choices = {name: _choices(name, each, nulls) for name, (each, _) in fields.items()}
    if kind.__name__ in TYPES:
        choices["type"] = [TYPES[kind.__name__]]
    yield {name: choices[name][0] for name, (_, required) in fields.items() if required}
    full = {name: values[0] for name, values in choices.items() if name not in EXCLUDED and values}
    yield full
    for name, values in choices.items():
        for value in values[1:] if name not in EXCLUDED else []:
            yield full | {name: value}


def _choices(name: str, annotation: Any, nulls: bool) -> list[Any]:
    values = [VALUES.get(name, value) if isinstance(value, str | int) else value for value in samples(annotation, nulls)]
    return [value for value in values if value != [] or name not in NEVER_EMPTY]


def _fields(kind: Any) -> Iterator[tuple[str, tuple[Any, bool]]]:
    if is_typeddict(kind):
        for name, each in get_type_hints(kind, include_extras=True).items():
            yield name, (each, get_origin(each) is Required)
    else:
        for name, field in kind.model_fields.items():
            yield field.alias or name, (field.annotation, field.is_required())
