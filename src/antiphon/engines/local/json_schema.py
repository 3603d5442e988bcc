"""
Clients' JSON Schemas: checked before the native server gets them, which silently drops a constraint that it can't
build.

What its constraint engine (llguidance) enforces is listed at
https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from antiphon.engines.local.schema_intersection import IntersectionCost

MAX_CHARACTERS = 64_000
MAX_DEPTH = 40
MAX_NODES = 4_000
# With references expanded, and for each combination of choices: takes some 0.3 s with a small model.
MAX_INTERSECTION = 4_000
# llguidance expands a count into as many rules: a billion items take all the memory.
MAX_COUNT = 10_000
# llguidance gives up at a state with more than 2,000 transitions; an optional property is four of them.
MAX_PROPERTIES = 400

_COUNT_KEYWORDS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_UNSUPPORTED_KEYWORDS = {
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_SUPPORTED_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_SUBSCHEMAS = {"items", "additionalProperties", "additionalItems"}
_SUBSCHEMA_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems", "items"}
_SUBSCHEMA_MAPS = {"properties", "patternProperties", "$defs", "definitions"}


class UnusableSchema(Exception):
    """A schema can't be used; the message is the end of a sentence that says why."""


class OutputSchema:
    """
    A valid schema of limited size.

    Args:
        source: as the client sent it.
        strict: all of it must be enforced; else what can't be enforced is only in the prompt.

    Raises:
        UnusableSchema: it is no JSON Schema, too large, has a dangling reference, or can't be enforced though `strict`.
    """

    def __init__(self, source: dict[str, Any], strict: bool = False) -> None:
        _check_size(source)
        try:
            self._validator = _validator(source, jsonschema_rs.RegexOptions())
            _check_counts(source)
            if IntersectionCost(source, MAX_INTERSECTION).is_over_limit():
                raise UnusableSchema(f"the parts of an 'allOf' have more than {MAX_INTERSECTION:,} combinations")
            self._enforced_schema = source
        except UnusableSchema:
            if strict:
                raise
            # Perhaps it only has patterns with lookaround, large counts or intersections: then the output is checked at
            # its end, but not constrained.
            self._validator = _validator(source, jsonschema_rs.FancyRegexOptions())
            self._enforced_schema = {"type": "object"}
        if strict and (problem := next(_unsupported_parts(source), None)):
            raise UnusableSchema(problem)
        self._source = source
        self._strict = strict

    @property
    def is_object(self) -> bool:
        """Whether only an object can satisfy it."""
        return self._source.get("type") == "object"

    def accepts(self, value: object) -> bool:
        """Whether a decoded JSON value satisfies the schema."""
        return self._validator.is_valid(value)

    def rule(self) -> str:
        """The right side of a rule of an llguidance grammar: JSON on one line, properties in the schema's order."""
        options = {
            # With free white space a small model may generate nothing else.
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
            "coerce_one_of": True,
            "lenient": not self._strict,
        }
        source = {key: value for key, value in self._enforced_schema.items() if key not in ("$schema", "$id")}
        return "%json " + json.dumps(source | {"x-guidance": options})


def _validator(source: dict[str, Any], patterns: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(source, offline=True, pattern_options=patterns)
    except jsonschema_rs.ValidationError as error:
        path = "/".join(map(str, error.instance_path))
        raise UnusableSchema(f"in /{path}, {error.message}") from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise UnusableSchema(str(error).splitlines()[0]) from None


def _check_size(source: dict[str, Any]) -> None:
    """Check size and depth, without recursion, before anything recursive reads the schema."""
    nodes = 0
    level: list[Any] = [source]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise UnusableSchema(f"it is larger than {MAX_NODES} values")
        level = [child for value in level for child in _children(value)]
        if not level:
            break
    else:
        raise UnusableSchema(f"it is nested deeper than {MAX_DEPTH} levels")
    if len(json.dumps(source)) > MAX_CHARACTERS:
        raise UnusableSchema(f"it is longer than {MAX_CHARACTERS} characters")


def _check_counts(source: Any) -> None:
    # Everywhere: `$ref` can make a schema of any part.
    values = [source]
    while values:
        value = values.pop()
        for keyword in _COUNT_KEYWORDS & value.keys() if isinstance(value, dict) else ():
            if isinstance(count := value[keyword], int | float) and count > MAX_COUNT:
                raise UnusableSchema(f"'{keyword}' is more than {MAX_COUNT}")
        values += _children(value)


def _children(value: object) -> list[Any]:
    match value:
        case dict():
            if isinstance(properties := value.get("properties"), dict) and len(properties) > MAX_PROPERTIES:
                raise UnusableSchema(f"an object has {len(properties)} properties, more than {MAX_PROPERTIES}")
            return list(value.values())
        case list():
            return value
        case _:
            return []


def _unsupported_parts(schema: object, path: str = "") -> Iterator[str]:
    """What llguidance would not enforce, each with its path."""
    if not isinstance(schema, dict):
        return
    location = f"in {path}, " if path else ""
    for keyword in schema.keys() & _UNSUPPORTED_KEYWORDS:
        yield f"{location}'{keyword}' is not permitted"
    if (format := schema.get("format")) is not None and format not in _SUPPORTED_FORMATS:
        yield f"{location}'{format}' is not a valid format"
    for keyword, child in schema.items():
        yield from _unsupported_parts_below(keyword, child, f"{path}/{keyword}")


def _unsupported_parts_below(keyword: str, child: object, path: str) -> Iterator[str]:
    if isinstance(child, dict) and keyword in _SUBSCHEMA_MAPS:
        for name, schema in child.items():
            yield from _unsupported_parts(schema, f"{path}/{name}")
    elif isinstance(child, list) and keyword in _SUBSCHEMA_LISTS:
        for index, schema in enumerate(child):
            yield from _unsupported_parts(schema, f"{path}/{index}")
    elif keyword in _SUBSCHEMAS:
        yield from _unsupported_parts(child, path)


ANY_OBJECT = OutputSchema({"type": "object"})
