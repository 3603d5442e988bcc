"""What is a JSON Schema or a regular expression, and what only looks like one."""

import pytest

from antiphon.wire.codec.schemas import is_regex, schema_problem


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"city": {"type": ["string", "null"]}}, "required": ["city"], "additionalProperties": False},
        {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"},
        {"type": "number", "minimum": 0, "exclusiveMinimum": True},  # as in OpenAPI 3.0
        {"type": "string", "nullable": True, "example": "Ulm", "x-order": 1},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
        {"$schema": "https://schemas.example/of-tomorrow", "type": "strin"},
    ],
)
def test_a_schema_of_any_draft_is_one(schema):
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strin"}, 'in /type, "strin" is not valid'),
        ({"type": "object", "properties": {"a": {"type": "nothing"}}}, 'in /properties/a/type, "nothing" is not valid'),
        ({"type": "object", "properties": []}, 'in /properties, [] is not of type "object"'),
        ({"type": "array", "items": {"minItems": "two"}}, 'in /items/minItems, "two" is not of type "integer"'),
        ({"required": "city"}, 'in /required, "city" is not of type "array"'),
    ],
)
def test_what_no_draft_allows_is_told_with_its_place(schema, problem):
    assert str(schema_problem(schema)).startswith(problem)


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [("[a-z]+", True), (r"\p{L}{2,3}", True), ("(?<=x)y", True), ("", True), ("a(", False), ("*", False), ("[z-a]", False)],
)
def test_a_regular_expression_compiles(pattern, is_one):
    assert is_regex(pattern) is is_one
