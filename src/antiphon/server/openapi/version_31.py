"""
`GET /openapi-3.1.json`: the document as generators of clients read it, of which few know OpenAPI 3.2 yet.

It has the same routes, bodies and fields. It lacks what OpenAPI 3.1 can't say, and the rules by which fields depend on each other, as
generators make a type of their own of each alternative.
"""

from typing import Any

from antiphon.server.openapi.schemas import REF_PREFIX, Schema

_NEW_NAMES = {"Response": "ResponseObject"}
"""Names that generated code has for something else: an HTTP response."""

_MAPS = ("content", "headers", "parameters", "paths", "properties", "responses", "schemas")
"""Members of the document whose own members have names, and are no keywords."""

_DATA = ("const", "default", "enum", "examples")
"""Members that are JSON of any kind, and no part of the document's structure."""


def to_version_31(document: Schema) -> Schema:
    """An OpenAPI 3.2 document in the terms of OpenAPI 3.1. What it shares with `document` isn't changed."""
    result: Schema = _convert(document) | {"openapi": "3.1.1"}
    schemas = result["components"]["schemas"]
    result["components"] = result["components"] | {
        "schemas": {(new := _NEW_NAMES.get(name, name)): _name(schema, new) for name, schema in schemas.items()}
    }
    return result


def _name(schema: Schema, name: str) -> Schema:
    return schema | {"title": name} if "title" in schema else schema


def _convert(node: Any, is_map: bool = False) -> Any:
    if isinstance(node, list):
        return [_convert(each) for each in node]
    if not isinstance(node, dict):
        return node
    if is_map:
        return {name: _convert(value) for name, value in node.items()}
    return {key: value if key in _DATA else _convert(value, key in _MAPS) for key, value in _convert_keywords(node).items()}


def _convert_keywords(node: Schema) -> Schema:
    """One object of the document, in the terms of OpenAPI 3.1; those within it are as they were."""
    if "itemSchema" in node:
        return {"schema": _event_schema(node["itemSchema"])}
    result = {**node}
    if "propertyName" in node:
        result.pop("defaultMapping", None)
        result["mapping"] = {value: _rename(target) for value, target in node["mapping"].items()}
    if "$ref" in node:
        result["$ref"] = _rename(node["$ref"])
    if isinstance(node.get("properties"), dict):
        result.pop("anyOf", None)
    if isinstance(node.get("enum"), list) and len(node["enum"]) == 1:
        result["const"] = result.pop("enum")[0]
    if isinstance(node.get("not"), dict):
        del result["not"]
    return result


def _rename(target: str) -> str:
    name = target.removeprefix(REF_PREFIX)
    return REF_PREFIX + _NEW_NAMES[name] if name in _NEW_NAMES else target


def _event_schema(item: Schema) -> Schema:
    """The schema of an event's data, as OpenAI's own document gives it for a stream."""
    data = item["properties"]["data"]
    schema: Schema = data.get("anyOf", [data])[0]["contentSchema"]
    return schema
