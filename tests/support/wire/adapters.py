"""Readers of openai-python's unions of types."""

import functools
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag, TypeAdapter

ANY = "any"
"""What stands for a type that no member of a union names."""


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """
    Reads a type. It is made when it is needed, and once: most processes that collect the tests need none, and each takes 0.1 s.

    Of a union, only the members with the value's `type` are tried. Pydantic would try each of fifty, which takes 1 ms.
    """
    members = list(_members(kind))
    names = {name for member in members for name in _type_names(member)}
    if len(members) < 2 or not names:
        return TypeAdapter(kind)
    unions = [_tagged([member for member in members if name in (_type_names(member) or (name,))], name) for name in sorted(names)]

    def tag(value: Any) -> str:
        name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return name if name in names else ANY

    return TypeAdapter(Annotated[_union([*unions, _tagged(members, ANY)]), Discriminator(tag)])


def _tagged(members: list[Any], name: str) -> Any:
    return Annotated[_union(members), Tag(name)]


def _union(members: list[Any]) -> Any:
    return Union[tuple(members)]  # noqa: UP007 - of a list


def _members(kind: Any) -> Iterator[Any]:
    """The members of a union, also of those within it."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _type_names(member: Any) -> set[str]:
    """What a member's `type` may be; nothing if it may be anything."""
    field = member.model_fields.get("type") if isinstance(member, type) and issubclass(member, BaseModel) else None
    kinds = list(_members(field.annotation)) if field is not None else []
    if not all(get_origin(each) is Literal or each is NoneType for each in kinds):
        return set()
    return {name for each in kinds for name in get_args(each)}
