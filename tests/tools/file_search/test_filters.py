"""Which files a filter lets be found."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.tools.file_search.filters import MAX_DEPTH, allowed_files, allows, check_filter
from antiphon.wire.responses.tools import FileSearchTool, decode_tool

ATTRIBUTES = {"year": 2024, "lang": "en", "draft": True, "rating": 4.5}


def read(fields):
    tool = decode_tool(json.dumps({"type": "file_search", "vector_store_ids": ["vs_1"], "filters": fields}).encode())
    assert isinstance(tool, FileSearchTool)
    check_filter(tool.filters, "tools[0].filters")
    return tool.filters


def found(fields, attributes=ATTRIBUTES):
    return allows(read(fields), "file_1", "report.pdf", attributes)


@pytest.mark.parametrize(
    ("type", "key", "value", "expected"),
    [
        ("eq", "lang", "en", True),
        ("eq", "lang", "de", False),
        ("eq", "year", 2024.0, True),
        ("eq", "draft", True, True),
        ("eq", "draft", 1, False),
        ("eq", "nothing", "x", False),
        ("ne", "lang", "de", True),
        ("ne", "lang", "en", False),
        ("ne", "nothing", "x", True),
        ("gt", "year", 2023, True),
        ("gt", "year", 2024, False),
        ("gte", "year", 2024, True),
        ("lt", "rating", 4.6, True),
        ("lte", "rating", 4.4, False),
        ("gt", "lang", "de", True),
        ("gt", "lang", 3, False),
        ("lt", "draft", 3, False),
        ("gt", "nothing", 0, False),
        ("in", "lang", ["de", "en"], True),
        ("in", "year", [1999], False),
        ("in", "nothing", ["x"], False),
        ("nin", "lang", ["de"], True),
        ("nin", "lang", ["en"], False),
        ("nin", "nothing", ["x"], True),
        ("eq", "filename", "report.pdf", True),
        ("in", "file_id", ["file_1", "file_2"], True),
        ("eq", "file_id", "file_2", False),
    ],
)
def test_a_comparison_holds_or_not(type, key, value, expected):
    assert found({"type": type, "key": key, "value": value}) is expected
    assert found({"type": type, "property": key, "value": value}) is expected


def test_a_filter_of_filters_holds_as_its_parts_do():
    english, old = {"type": "eq", "key": "lang", "value": "en"}, {"type": "lt", "property": "year", "value": 2000}
    assert not found({"type": "and", "filters": [english, old]})
    assert found({"type": "or", "filters": [english, old]})
    assert found({"type": "and", "filters": [english, {"type": "or", "filters": [old, {"type": "ne", "key": "x", "value": 1}]}]})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "eq", "value": 1}, "tools[0].filters.key"),
        ({"type": "in", "key": "a", "value": 1}, "tools[0].filters.value"),
        ({"type": "gt", "key": "a", "value": [1]}, "tools[0].filters.value"),
        ({"type": "gt", "key": "a", "value": True}, "tools[0].filters.value"),
        ({"type": "and", "filters": []}, "tools[0].filters.filters"),
        ({"type": "and", "filters": [{"type": "eq", "key": "a", "value": 1}, {"type": "like", "key": "a"}]}, "tools[0].filters.filters[1]"),
        ({"type": "or", "filters": [{"type": "eq", "key": "a", "value": {"x": 1}}]}, "tools[0].filters.filters[0]"),
        ({"type": "in", "key": "a", "value": list(range(1001))}, "tools[0].filters"),
    ],
)
def test_a_wrong_filter_is_refused_where_it_is_wrong(fields, param):
    with pytest.raises(ClientError) as caught:
        read(fields)
    assert caught.value.param == param


def test_filters_are_nested_to_a_limit():
    fields = {"type": "eq", "key": "lang", "value": "en"}
    for _ in range(MAX_DEPTH):
        fields = {"type": "and", "filters": [fields]}
    assert found(fields)
    with pytest.raises(ClientError, match="nested more than 20 levels"):
        read({"type": "or", "filters": [fields]})


scalars = st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["a", "b", "c"])
keys = st.sampled_from(["p", "q", "filename"])
comparisons = st.fixed_dictionaries({"type": st.sampled_from(["eq", "ne"]), "key": keys, "value": scalars}) | st.fixed_dictionaries(
    {"type": st.sampled_from(["in", "nin"]), "key": keys, "value": st.lists(scalars.filter(lambda value: not isinstance(value, bool)))}
)
filters = st.recursive(
    comparisons,
    lambda inner: st.fixed_dictionaries({"type": st.sampled_from(["and", "or"]), "filters": st.lists(inner, min_size=1, max_size=3)}),
)
OPPOSITES = {"eq": "ne", "ne": "eq", "in": "nin", "nin": "in", "and": "or", "or": "and"}


def negate(fields):
    """By De Morgan's laws."""
    inner = {"filters": [negate(each) for each in fields["filters"]]} if "filters" in fields else {}
    return {**fields, **inner, "type": OPPOSITES[fields["type"]]}


@given(filters, st.dictionaries(st.sampled_from(["p", "q"]), scalars))
def test_a_file_is_found_by_a_filter_or_by_its_opposite(fields, attributes):
    assert found(fields, attributes) is not found(negate(fields), attributes)


def test_without_a_filter_all_files_are_found():
    assert allowed_files(None, [("a", "x", {}), ("b", "y", {"p": 1})]) == {"a", "b"}
