"""Clients' schemas: errors for those that are invalid, too large, or can't be enforced, before any work."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engines.local.json_schema import ANY_OBJECT, MAX_DEPTH, MAX_PROPERTIES, OutputSchema, UnusableSchema


def of_a(**keywords):
    return {"type": "object", "properties": {"a": keywords}, "required": ["a"], "additionalProperties": False}


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (of_a(type="wat"), "in /properties/a/type"),
        ({"properties": []}, "is not of type"),
        ({"properties": 5}, "is not of type"),
        (of_a(**{"$ref": "#/$defs/x"}), "does not exist"),
        (of_a(**{"$ref": "https://example.com/x.json"}), "example.com"),
        ({"$schema": "nonsense"}, "nonsense"),
        (deep(MAX_DEPTH), "nested deeper"),
        (deep(5_000), "nested deeper"),
        ({"properties": {f"p{n}": {} for n in range(MAX_PROPERTIES + 1)}}, "properties, more than"),
        ({"enum": [str(n) for n in range(5_000)]}, "larger than"),
        ({"description": "x" * 70_000}, "longer than"),
        (of_a(type="string", pattern="("), "in /properties/a/pattern"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_usable_schema_is_refused(schema, why, strict):
    with pytest.raises(UnusableSchema, match=why):
        OutputSchema(schema, strict)


@pytest.mark.parametrize(
    "keywords",
    [
        {"not": {}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "items": {"contains": {}}},
        {"anyOf": [{"if": {}}]},
        {"type": "string", "format": "uri"},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "maxLength": 1e30},
        {"type": "string", "pattern": "^a(?=b)"},
        {"type": "string", "pattern": r"(a)\1"},
    ],
)
def test_what_a_model_can_not_be_held_to_is_refused_only_where_it_must_be(keywords):
    with pytest.raises(UnusableSchema):
        OutputSchema(of_a(**keywords), strict=True)
    OutputSchema(of_a(**keywords), strict=False).rule()


def test_what_is_not_kept_to_is_still_checked_afterwards():
    schema = OutputSchema(of_a(type="string", pattern="^a(?=b)"))
    assert schema.accepts({"a": "ab"}) and not schema.accepts({"a": "ac"})


def test_a_count_that_would_take_all_the_memory_never_gets_to_the_native_side():
    hidden = {"$ref": "#/x", "x": {"type": "array", "minItems": 10**9}}
    assert "1000000000" not in OutputSchema(hidden).rule()
    with pytest.raises(UnusableSchema, match="'minItems' is more than"):
        OutputSchema(hidden, strict=True)


def test_a_name_that_is_a_keyword_is_a_name():
    OutputSchema({"type": "object", "properties": {"not": {"type": "string"}, "format": {"type": "string"}}}, strict=True)


def test_the_clients_own_settings_for_the_native_side_do_not_get_there():
    rule = OutputSchema(
        {"type": "object", "x-guidance": {"whitespace_pattern": ".*"}, "$schema": "https://json-schema.org/draft/2020-12/schema"}
    ).rule()
    source = json.loads(rule.removeprefix("%json "))
    assert source.keys() == {"type", "x-guidance"} and source["x-guidance"]["whitespace_flexible"] is False


def test_only_an_object_is_known_to_be_one():
    assert ANY_OBJECT.is_object and not OutputSchema({"anyOf": [{"type": "object"}]}).is_object


def test_a_schema_that_refers_to_itself_ends():
    assert OutputSchema({"$ref": "#"}).accepts({})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "pattern"]), inner)
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text() | st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "pattern", "$defs"]), JSON), st.booleans()
)
def test_whatever_is_given_for_a_schema_is_one_or_refused(source, strict):
    try:
        rule = OutputSchema(source, strict).rule()
    except UnusableSchema:
        return
    assert "\n" not in rule


# Intersections, which the native server expands


def tree(levels):
    """Definitions `L0` to `L<levels>`, each of which has two of the next."""
    definitions = {
        f"L{level}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/L{level + 1}"} for name in "ab"}} for level in range(levels)
    }
    return definitions | {f"L{levels}": {"type": "string"}}


def choices(count, options=2):
    """So many choices, each of a property of its own."""
    choice = [[{"type": "object", "properties": {f"p{index}": {"const": option}}} for option in range(options)] for index in range(count)]
    return [{"anyOf": options} for options in choice]


HUGE_INTERSECTIONS = {
    "two trees": {"allOf": [{"$ref": "#/$defs/L0"}] * 2, "$defs": tree(20)},
    "trees below properties": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/L0"}}}] * 12, "$defs": tree(20)},
    "a tree beside a constraint": {"allOf": [{"$ref": "#/$defs/L0"}], "properties": {"a": {}}, "$defs": tree(20)},
    "choices": {"allOf": choices(12)},
    "choices within a property": {"type": "object", "properties": {"a": {"allOf": choices(10)}}},
    "choices in a definition": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": choices(10, 3)}}},
}


@pytest.mark.parametrize("schema", HUGE_INTERSECTIONS.values(), ids=HUGE_INTERSECTIONS)
def test_an_intersection_that_would_keep_the_slot_is_never_built(schema):
    with pytest.raises(UnusableSchema, match="the parts of an 'allOf' have more than 4,000 combinations"):
        OutputSchema(schema, strict=True)
    loose = OutputSchema(schema)
    assert "$defs" not in loose.rule() and "allOf" not in loose.rule(), "it is checked at the end"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/L0"}], "title": "A"}}, "$defs": tree(20)},
        {"$ref": "#/$defs/L0", "$defs": tree(20)},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "allOf": [{"properties": {"next": {"$ref": "#/$defs/a"}}}, {}]}}},
        {"allOf": choices(5)},
        {"allOf": [{"$ref": "#/$defs/L0"}] * 2, "$defs": tree(6)},
    ],
    ids=["pydantic wraps a reference", "a tree alone", "recursion", "few choices", "small trees"],
)
def test_intersections_that_are_small_are_enforced(schema):
    assert "$defs" in OutputSchema(schema).rule() or "allOf" in OutputSchema(schema).rule()
