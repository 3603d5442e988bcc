"""How lists are asked for: `limit`, `after` and `order`, as in OpenAI's API."""

import re

from starlette.datastructures import QueryParams

from antiphon.errors import ClientMistake, invalid_value, shown
from antiphon.stores.base import Order

DEFAULT, MOST = 20, 100


def page_limit(query: QueryParams) -> int:
    """
    How many at most.

    Raises:
        ClientMistake: that is no number, or out of range.
    """
    text = query.get("limit", str(DEFAULT))
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise ClientMistake(
            f"Invalid type for 'limit': expected an integer, but got '{shown(text)}' instead.", code="invalid_type", param="limit"
        )
    limit = int(text)
    if limit < 1:
        raise _out_of_range("below minimum", ">= 1", limit, "integer_below_min_value")
    if limit > MOST:
        raise _out_of_range("above maximum", f"<= {MOST}", limit, "integer_above_max_value")
    return limit


def _out_of_range(side: str, expected: str, got: int, code: str) -> ClientMistake:
    return ClientMistake(
        f"Invalid 'limit': integer {side} value. Expected a value {expected}, but got {got} instead.", code=code, param="limit"
    )


def page_order(query: QueryParams) -> Order:
    """
    In which order.

    Raises:
        ClientMistake: there is no such order.
    """
    orders: tuple[Order, ...] = ("asc", "desc")
    named = query.get("order", "desc")
    order = next((order for order in orders if order == named), None)
    if order is None:
        raise invalid_value("order", named, orders)
    return order
