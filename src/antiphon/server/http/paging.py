"""Paging parameters of lists: `limit`, `after` and `order`, as in OpenAI's API."""

import re
from collections.abc import Sequence
from typing import Protocol

from starlette.datastructures import QueryParams

from antiphon.errors import ClientError, invalid_value, shorten
from antiphon.server.http.operation import Parameter
from antiphon.stores.base import SortOrder
from antiphon.stores.vector_stores import PageCursor

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


class ListMember(Protocol):
    """What a page of a list has: something with an id."""

    @property
    def id(self) -> str: ...


def end_ids(page: Sequence[ListMember]) -> tuple[str | None, str | None]:
    """`first_id` and `last_id` of a page; None twice where it is empty."""
    return (page[0].id, page[-1].id) if page else (None, None)


def page_parameters(noun: str, default_limit: int = DEFAULT_LIMIT, max_limit: int = MAX_LIMIT) -> list[Parameter]:
    """The parameters of a list of `noun`s, newest first."""
    return [
        Parameter(
            "limit", f"The most {noun}s to return.", {"type": "integer", "minimum": 1, "maximum": max_limit, "default": default_limit}
        ),
        Parameter("order", "`asc` for the oldest first.", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
        Parameter("after", f"The id of the {noun} before the first one to return.", {"type": "string"}),
    ]


def before_parameter(noun: str) -> Parameter:
    """The parameter of a list of `noun`s that has pages both ways."""
    description = f"The id of the {noun} after the last one to return. Without `after`, the page ends right before it."
    return Parameter("before", description, {"type": "string"})


def page_cursor(query: QueryParams) -> PageCursor:
    """
    The parameters of a list that has pages both ways: `limit`, `order`, `after` and `before`.

    Raises:
        ClientError: one is wrong.
    """
    return PageCursor(limit=page_limit(query), order=page_order(query), after=query.get("after"), before=query.get("before"))


def page_limit(query: QueryParams, default_limit: int = DEFAULT_LIMIT, max_limit: int = MAX_LIMIT) -> int:
    """
    The parameter `limit`.

    Raises:
        ClientError: it is not a number, or out of range.
    """
    text = query.get("limit", str(default_limit))
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise ClientError(
            f"Invalid type for 'limit': expected an integer, but got '{shorten(text)}' instead.", code="invalid_type", param="limit"
        )
    limit = int(text)
    if limit < 1:
        raise _out_of_range("below minimum", ">= 1", limit, "integer_below_min_value")
    if limit > max_limit:
        raise _out_of_range("above maximum", f"<= {max_limit}", limit, "integer_above_max_value")
    return limit


def _out_of_range(side: str, bounds: str, value: int, code: str) -> ClientError:
    return ClientError(
        f"Invalid 'limit': integer {side} value. Expected a value {bounds}, but got {value} instead.", code=code, param="limit"
    )


def page_order(query: QueryParams) -> SortOrder:
    """
    The parameter `order`.

    Raises:
        ClientError: it is neither `asc` nor `desc`.
    """
    orders: tuple[SortOrder, ...] = ("asc", "desc")
    value = query.get("order", "desc")
    order = next((order for order in orders if order == value), None)
    if order is None:
        raise invalid_value("order", value, orders)
    return order
