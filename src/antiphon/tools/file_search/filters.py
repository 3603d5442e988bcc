"""
Filters of searches: which files may be found.

A comparison is of a file's attribute, or of `filename` or `file_id`, which every file has, unless an attribute of that
name hides it. A file without the attribute is found by `ne` and `nin` alone; so is one whose attribute is of another
type, as text and numbers are neither equal nor in any order.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from antiphon.errors import ClientError
from antiphon.tools.file_search.base import Attributes
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.responses.tools import And, Equal, Filter, Greater, GreaterOrEqual, In, Less, LessOrEqual, NotEqual, NotIn, Or

MAX_COMPARISONS = 1000
"""In one filter: each is evaluated for every file."""

MAX_DEPTH = 20
"""The most levels of filters within filters."""

_ORDERS: Mapping[type, Callable[[Any, Any], bool]] = {
    Greater: operator.gt,
    GreaterOrEqual: operator.ge,
    Less: operator.lt,
    LessOrEqual: operator.le,
}

Comparison = Equal | NotEqual | Greater | GreaterOrEqual | Less | LessOrEqual | In | NotIn


def check_filter(filter: Filter, path: str) -> None:
    """
    Make sure that a filter can be applied.

    Args:
        path: of the filter in the request, such as `tools[0].filters`.

    Raises:
        ClientError: it is wrong, or too large.
    """
    comparisons = _check(filter, path, MAX_DEPTH)
    if comparisons > MAX_COMPARISONS:
        raise _wrong(f"Invalid filter: it has {comparisons} comparisons, and the limit is {MAX_COMPARISONS}.", path)


def allowed_files(filter: Filter | None, files: Iterable[tuple[str, str, Attributes]]) -> frozenset[str]:
    """
    The ids of the files that may be found.

    Args:
        filter: that was checked.
        files: each with its id, its name and its attributes.
    """
    test = _test(filter) if filter is not None else lambda _attributes: True
    return frozenset(id for id, filename, attributes in files if test({"file_id": id, "filename": filename, **attributes}))


def allows(filter: Filter | None, file_id: str, filename: str, attributes: Attributes) -> bool:
    """Whether a file may be found; the filter was checked."""
    return bool(allowed_files(filter, [(file_id, filename, attributes)]))


def _read(fields: JsonDict, path: str) -> Filter:
    try:
        filter: Filter = msgspec.convert(fields, Filter)
    except msgspec.ValidationError as error:
        raise _wrong(f"Invalid filter: {error}.", path) from None
    return filter


def _wrong(message: str, path: str) -> ClientError:
    return ClientError(message, code="invalid_value", param=path)


def _check(filter: Filter, path: str, depth: int) -> int:
    """Check a filter and those in it; returns the number of comparisons."""
    if not isinstance(filter, And | Or):
        if not isinstance(filter.key, str) and not isinstance(filter.property, str):
            raise ClientError(f"Missing required parameter: '{path}.key'.", code="missing_required_parameter", param=f"{path}.key")
        _check_value(filter, f"{path}.value")
        return len(filter.value) if isinstance(filter.value, list) else 1
    if depth == 0:
        raise _wrong(f"Invalid filter: it is nested more than {MAX_DEPTH} levels deep.", path)
    if not filter.filters:
        raise _wrong("Invalid filter: it has no filters to combine.", f"{path}.filters")
    paths = [f"{path}.filters[{index}]" for index in range(len(filter.filters))]
    # The filters in a filter come as plain objects, so they are read here, and each mistake gets its own path.
    return sum(_check(_read(fields, own), own, depth - 1) for fields, own in zip(filter.filters, paths, strict=True))


def _check_value(filter: Comparison, path: str) -> None:
    if isinstance(filter.value, list) != isinstance(filter, In | NotIn):
        kinds = "a list of strings or numbers" if isinstance(filter, In | NotIn) else "a string, a number or a boolean"
        raise _wrong(f"Invalid value: '{filter.type}' compares with {kinds}.", path)
    if type(filter) in _ORDERS and isinstance(filter.value, bool):
        raise _wrong(f"Invalid value: '{filter.type}' compares with a string or a number.", path)


def _test(filter: Filter) -> Callable[[Attributes], bool]:
    """The filter as a function, so that it is read once for many files."""
    if isinstance(filter, And | Or):
        tests = [_test(_read(fields, "filters")) for fields in filter.filters]
        combine = all if isinstance(filter, And) else any
        return lambda attributes: combine(test(attributes) for test in tests)
    key = filter.key if isinstance(filter.key, str) else str(filter.property)
    values = filter.value if isinstance(filter.value, list) else [filter.value]
    if (compare := _ORDERS.get(type(filter))) is not None:
        return lambda attributes: _is_comparable(attributes.get(key), values[0]) and compare(attributes[key], values[0])
    is_wanted = isinstance(filter, Equal | In)
    return lambda attributes: (key in attributes and any(_is_equal(attributes[key], value) for value in values)) is is_wanted


def _is_equal(own: object, value: object) -> bool:
    # In Python `1 == True`, and a client that asks for 1 does not mean `true`.
    return isinstance(own, bool) == isinstance(value, bool) and own == value


def _is_comparable(own: object, value: object) -> bool:
    if own is None or isinstance(own, bool):
        return False
    return isinstance(own, str) == isinstance(value, str)
