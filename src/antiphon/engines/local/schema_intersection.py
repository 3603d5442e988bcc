"""
What `allOf` costs: llguidance builds the intersection of its parts, with every `$ref` in them expanded and every choice
combined with every other.

Measured with a model of 135M: two trees of 12 levels, 8,000 parts, take 0.6 s, and twice as much for each level more; ten
choices between two, 1,024 combinations, take 1 s. Meanwhile the model's slot is not free.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

_CHOICES = ("anyOf", "oneOf")
_ANNOTATIONS = frozenset(
    {
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)


class _Size(Struct, frozen=True):
    """
    How large a part of a schema becomes in an intersection.

    Attributes:
        parts: schemas within it, with references expanded.
        alternatives: ways to satisfy it by choosing from `anyOf` and `oneOf`.
    """

    parts: int = 1
    alternatives: int = 1

    @property
    def cost(self) -> int:
        return self.parts * self.alternatives


class IntersectionCost:
    """
    The cost of a schema's intersections.

    Args:
        source: a schema whose references all lead somewhere.
        limit: counting stops above it.
    """

    def __init__(self, source: dict[str, Any], limit: int) -> None:
        self._source = source
        self._limit = limit
        self._sizes: dict[str, _Size] = {}
        self._open_references: set[str] = set()

    def is_over_limit(self) -> bool:
        """Whether an intersection has more than `limit` parts, counted for each combination of choices."""
        values: list[Any] = [self._source]
        while values:
            value = values.pop()
            if isinstance(value, dict) and _is_intersection(value) and self._size(value).cost > self._limit:
                return True
            values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return False

    def _size(self, schema: Any) -> _Size:
        """The size of a schema within an intersection."""
        if not isinstance(schema, dict):
            return _Size()
        parts, alternatives = 1, 1
        for keyword, child in schema.items():
            if keyword == "$ref" and isinstance(child, str):
                size = self._referenced_size(child)
            elif keyword in _CHOICES and isinstance(child, list):
                choices = [self._size(choice) for choice in child]
                size = _Size(self._sum(choice.parts for choice in choices), self._sum(choice.alternatives for choice in choices))
            elif keyword == "allOf" and isinstance(child, list):
                size = _Size()
                for part in child:
                    size = self._combine(size, self._size(part))
            else:
                size = _Size(self._sum(self._size(schema).cost for schema in _subschemas(keyword, child)))
            combined = self._combine(_Size(parts, alternatives), size)
            parts, alternatives = combined.parts, combined.alternatives
        return _Size(parts, max(1, alternatives))

    def _combine(self, size: _Size, other: _Size) -> _Size:
        return _Size(self._sum((size.parts, other.parts)), min(self._limit + 1, size.alternatives * max(1, other.alternatives)))

    def _sum(self, counts: Iterable[int]) -> int:
        return min(self._limit + 1, sum(counts))

    def _referenced_size(self, reference: str) -> _Size:
        """The size of what a reference leads to; a reference into itself counts as one part."""
        if (size := self._sizes.get(reference)) is not None:
            return size
        if reference in self._open_references:
            return _Size()
        self._open_references.add(reference)
        size = self._sizes[reference] = self._size(_resolve(self._source, reference))
        self._open_references.discard(reference)
        return size


def _is_intersection(schema: Mapping[str, Any]) -> bool:
    """Whether `allOf` has more than one part, or constraints beside it: pydantic wraps every reference in one `allOf`."""
    parts = schema.get("allOf")
    return isinstance(parts, list) and (len(parts) > 1 or bool(schema.keys() - _ANNOTATIONS - {"allOf"}))


def _subschemas(keyword: str, value: Any) -> Iterable[Any]:
    """The schemas in a keyword's value. Definitions count where something refers to them."""
    if isinstance(value, dict) and keyword in ("properties", "patternProperties"):
        return value.values()
    if isinstance(value, list) and keyword in ("prefixItems", "items"):
        return value
    return (value,) if keyword in ("items", "additionalProperties", "additionalItems") else ()


def _resolve(source: Any, reference: str) -> Any:
    """What a reference within the schema leads to; None where it is no path in it (RFC 6901)."""
    if not reference.startswith("#"):
        return None
    value = source
    for token in unquote(reference[1:]).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
