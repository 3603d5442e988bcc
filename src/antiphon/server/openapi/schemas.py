"""
JSON Schemas of the wire types.

They start from msgspec's schemas and add what those can't express: unknown fields are kept, some unions accept unknown
types, and an input item may omit its type.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints

import msgspec

from antiphon.server.http.operation import JsonType
from antiphon.wire.codec.types import EXTRA_NAME, JsonDict, Nothing, Tagged, Unknown, Wire
from antiphon.wire.messages.blocks import ContentBlock, ContentBlockParam, ToolResultContent
from antiphon.wire.messages.events import MessageStreamEvent
from antiphon.wire.messages.request import JsonOutputFormat
from antiphon.wire.responses.events import OriginalEvent
from antiphon.wire.responses.hosted_calls import ActionSearchSource
from antiphon.wire.responses.items import Item, ItemReference, Message
from antiphon.wire.responses.parts import InputPart, MessagePart, OutputPart, ToolOutputPart
from antiphon.wire.responses.tools import CustomTool, FunctionTool, Tool

Schema: TypeAlias = JsonDict

REF_PREFIX = "#/components/schemas/"

_UNIONS: Mapping[str, JsonType] = {
    "ContentBlock": ContentBlock,
    "ContentBlockParam": ContentBlockParam,
    "InputPart": InputPart,
    "Item": Item,
    "MessageOutputFormat": JsonOutputFormat | Unknown,
    "MessagePart": MessagePart,
    "MessageStreamEvent": MessageStreamEvent,
    "NamespacedTool": FunctionTool | CustomTool | Unknown,
    "OutputPart": OutputPart,
    "SearchSource": ActionSearchSource | Unknown,
    "StreamEvent": OriginalEvent,
    "Tool": Tool,
    "ToolOutputPart": ToolOutputPart,
    "ToolResultContent": ToolResultContent,
}
"""Unions that get a name in the document: because they are open, or used more than once."""

_UNTYPED_ITEMS = (Message, ItemReference)
"""Items that may omit their `type`."""

_ALWAYS_PRESENT_FIELDS = {
    "Response": (
        "background completed_at error frequency_penalty incomplete_details instructions max_output_tokens max_tool_calls metadata "
        "presence_penalty previous_response_id prompt_cache_key reasoning safety_identifier service_tier status store temperature text "
        "top_logprobs top_p truncation usage user"
    ).split()
}
"""Fields that this server always writes, although the type allows to omit them."""

_INPUT_ALTERNATIVES = [
    {"required": ["input"], "properties": {"input": {"type": ["string", "array"], "minItems": 1}}},
    {"required": ["instructions"], "properties": {"instructions": {"type": ["string", "array"], "minItems": 1, "minLength": 1}}},
    {"required": ["previous_response_id"], "properties": {"previous_response_id": {"type": "string"}}},
]

_PARTS_BY_ROLE = [
    {"properties": {"role": {"const": "assistant"}, "content": {"items": {"$ref": f"{REF_PREFIX}OutputPart"}}}},
    {"properties": {"role": {"not": {"const": "assistant"}}, "content": {"items": {"$ref": f"{REF_PREFIX}InputPart"}}}},
]

_ANY_OF = {"CreateRequest": _INPUT_ALTERNATIVES, "InputTokensRequest": _INPUT_ALTERNATIVES, "Message": _PARTS_BY_ROLE}
"""Rules about several fields together, by the name of the object."""


class Schemas(NamedTuple):
    """
    Schemas for the document.

    Attributes:
        by_type: the schema of each requested type.
        components: the named schemas that others refer to.
    """

    by_type: Mapping[JsonType, Schema]
    components: Mapping[str, Schema]


def build_schemas(request_types: Sequence[JsonType], response_types: Sequence[JsonType], event_names: Mapping[str, str]) -> Schemas:
    """
    The schemas of wire types.

    Args:
        request_types: what clients send.
        response_types: what the server sends.
        event_names: event types that are sent under another name, with that name.
    """
    # In a fixed order: a set of types has another one in each process, and the document would differ.
    kinds = sorted({*request_types, *response_types}, key=str)
    type_schemas, components = _shorten_names(
        *msgspec.json.schema_components(kinds, schema_hook=_schema_hook, ref_template=REF_PREFIX + "{name}")
    )
    schemas = {kind: _clean(schema) for kind, schema in zip(kinds, type_schemas, strict=True)}
    components = {name: _clean(schema) for name, schema in components.items() if name not in (Unknown.__name__, Nothing.__name__)}
    components |= _named_unions(components.keys(), event_names)
    request_names = _reachable([schemas[kind] for kind in request_types], components)
    # msgspec's schemas don't know that null means absent in some requests.
    nullable = {
        name
        for kind in _wire_types_in(request_types)
        if kind.null_is_absent and (name := _component_name(kind, components)) in request_names
    }
    for name in nullable:
        _allow_nulls(components[name])
    return Schemas(
        schemas, {name: _complete_schema(name, schema, name in request_names, event_names) for name, schema in sorted(components.items())}
    )


def _shorten_names(schemas: object, components: Mapping[str, object]) -> tuple[list[Schema], dict[str, Schema]]:
    """Removes the module names that msgspec adds where two types share a name."""
    json = msgspec.json.encode((schemas, components))
    result = msgspec.json.decode(
        re.sub(rb"antiphon\.wire\.(\w+)\.\w+\.", lambda module: b"Realtime" if module[1] == b"realtime" else b"", json),
        type=tuple[list[Schema], dict[str, Schema]],
    )
    # Of two components with one name, JSON would keep one.
    assert len(result[1]) == len(components), "two types of wire have one name in the document"
    return result


def _schema_hook(kind: type) -> Schema:
    return {"description": "Anything."} if kind is object else {"type": "object"}


def reference(name: str) -> Schema:
    """A schema that refers to a component."""
    return {"$ref": REF_PREFIX + name}


def _clean(node: Any) -> Any:
    """A schema with references to the named unions, and without msgspec's field for unknown fields."""
    if isinstance(node, list):
        return [_clean(each) for each in node]
    # JSON Schema's patterns are ECMA-262's: they have no `\Z`, and their `$` is the end of the text, not of a line.
    if isinstance(node, str):
        return node.replace(r"\Z", "$")
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:
        return _resolve_union(node)
    result = {key: _clean(value) for key, value in node.items()}
    if EXTRA_NAME in result.get("properties", ()):
        del result["properties"][EXTRA_NAME], result["additionalProperties"]
    return result


def _resolve_union(schema: Schema) -> Schema:
    names = {each["$ref"].removeprefix(REF_PREFIX) for each in schema["anyOf"]} - {Nothing.__name__}
    for name, union in _UNIONS.items():
        if names == {kind.__name__ for kind in get_args(union)}:
            return reference(name)
    assert Unknown.__name__ not in names, f"an open union without a name: {names}"
    if len(names) == 1:
        return reference(*names)
    return schema


# Unions


def _named_unions(component_names: Iterable[str], event_names: Mapping[str, str]) -> Iterator[tuple[str, Schema]]:
    """The schemas of the named unions whose members are all in use."""
    component_names = {*component_names, Unknown.__name__}
    for name, union in _UNIONS.items():
        kinds = get_args(union)
        # msgspec describes only types that are used, so the members of another union have no schema to refer to.
        if not {kind.__name__ for kind in kinds} <= component_names:
            continue
        tags = {event_names.get(tag, tag): kind for kind in kinds if (tag := _tag(kind)) and kind is not Unknown}
        one_of = {"propertyName": "type", "mapping": {tag: REF_PREFIX + kind.__name__ for tag, kind in tags.items()}}
        members = [reference(kind.__name__) for kind in tags.values()]
        if Unknown in kinds:
            other = f"Other{name}"
            one_of["defaultMapping"] = REF_PREFIX + other
            members.append(reference(other))
            yield other, _other_member(tags, [kind for kind in _UNTYPED_ITEMS if kind in kinds])
        yield name, {"title": name, "anyOf": members, "discriminator": one_of}


def _tag(kind: type[Tagged]) -> str:
    return str(kind.__struct_config__.tag)


def _other_member(tags: Iterable[str], untyped_items: Sequence[type]) -> Schema:
    """The member of an open union that stands for unknown types."""
    description = "Of a type that this version doesn't know; it is kept as it came."
    unknown_type = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": sorted(tags)}}}}
    if not untyped_items:
        return {"description": description, **unknown_type}
    untyped_member = {"properties": {"type": {"type": "null"}}, "anyOf": [reference(kind.__name__) for kind in untyped_items]}
    return {"description": f"{description} Or it leaves out its type.", "anyOf": [unknown_type, untyped_member]}


# Objects


def _wire_types_in(kinds: Iterable[object]) -> set[type[Wire]]:
    """The wire types that annotations consist of, at any depth."""
    wire_types: set[type[Wire]] = set()
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, Wire) and kind not in wire_types:
            wire_types.add(kind)
            pending += get_type_hints(kind).values()
        pending += get_args(kind)
    return wire_types


def _component_name(kind: type[Wire], components: Mapping[str, Schema]) -> str:
    """A type's name in the document: Realtime types with an ambiguous name get a prefix."""
    longer = f"Realtime{kind.__name__}"
    return longer if "realtime" in kind.__module__ and longer in components else kind.__name__


def _allow_nulls(schema: Schema) -> None:
    """Allow null for each optional field."""
    for field, field_schema in schema["properties"].items():
        if field not in schema.get("required", ()):
            schema["properties"][field] = {"anyOf": [field_schema, {"type": "null"}]}


def _complete_schema(name: str, schema: Schema, is_request: bool, event_names: Mapping[str, str]) -> Schema:
    """Adds this server's rules to an object's schema."""
    if "title" in schema:
        schema["title"] = name  # msgspec's is the class's name, which two classes may share
    fields = schema.get("properties", {})
    if name in {kind.__name__ for kind in _UNTYPED_ITEMS}:
        schema["required"].remove("type")
        fields["type"]["enum"].append(None)
    # Without a type it is a reference by having neither role nor content.
    if name == ItemReference.__name__:
        schema["anyOf"] = [
            {"required": ["type"], "properties": {"type": {"type": "string"}}},
            {"properties": {"role": False, "content": False}},
        ]
    if name in _ANY_OF:
        schema["anyOf"] = _ANY_OF[name]
    tags = fields.get("type", {}).get("enum", ())
    if any(tag in event_names for tag in tags):
        fields["type"]["enum"] = [event_names[tag] for tag in tags]
    default_fields = [field for field, field_schema in fields.items() if "default" in field_schema]
    # A client may leave out what has a default; the server always writes it.
    if is_request:
        for field in default_fields:  # null means the default
            fields[field] = {"anyOf": [fields[field], {"type": "null"}]}
    else:
        always = {*schema.get("required", ()), *default_fields, *_ALWAYS_PRESENT_FIELDS.get(name, ())}
        schema |= {"required": [field for field in fields if field in always]} if always else {}
    return schema


def _reachable(schemas: Iterable[Schema], components: Mapping[str, Schema]) -> set[str]:
    """The names of all components that these schemas refer to, directly or not."""
    names: set[str] = set()
    pending = list(schemas)
    while pending:
        new = set(_referenced_names(pending.pop())) - names
        names |= new
        pending += [components[name] for name in new]
    return names


def _referenced_names(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _referenced_names(each)
    elif isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].removeprefix(REF_PREFIX)
        for each in node.values():
            yield from _referenced_names(each)
