"""Rows of the tables that map a class to its handler: mypy checks each, which it can't for the entries of a dict."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

OwnerT = TypeVar("OwnerT")
KindT = TypeVar("KindT")
RestP = ParamSpec("RestP")
ResultT = TypeVar("ResultT")
HandlerT = TypeVar("HandlerT")

HandlerTable: TypeAlias = dict[type, Callable[[OwnerT, Any], ResultT]]
"""Methods of one class by the class of the event that each handles."""


def table(*rows: tuple[type, HandlerT]) -> dict[type, HandlerT]:
    """The handlers by class."""
    return dict(rows)


def on(
    kind: type[KindT], method: Callable[Concatenate[OwnerT, KindT, RestP], ResultT]
) -> tuple[type, Callable[Concatenate[OwnerT, Any, RestP], ResultT]]:
    """On an event of class `kind`, call `method` with it."""
    return kind, method


def convert(
    kind: type[KindT], function: Callable[Concatenate[KindT, RestP], ResultT]
) -> tuple[type, Callable[Concatenate[Any, RestP], ResultT]]:
    """Convert a value of class `kind` with `function`."""
    return kind, function
