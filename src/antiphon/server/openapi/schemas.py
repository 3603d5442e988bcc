"""
JSON Schemas of the wire types, as they hold between a client and this server.

msgspec tells what it would read and write; these differ from that where the wire does: fields that no type knows are kept, a union may
be open to types of tomorrow, and an item may leave out its type.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from antiphon.wire.codec.types import EXTRA_NAME, Nothing, Tagged, Unknown, Wire
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.items import Item, ItemReference, Message
from antiphon.wire.responses.parts import InputPart, MessagePart, OutputPart, ToolOutputPart
from antiphon.wire.responses.tools import CustomTool, FunctionTool, Tool

Schema = dict[str, Any]

SCHEMAS = "#/components/schemas/"

_UNIONS: Mapping[str, Any] = {
    "InputPart": InputPart,
    "Item": Item,
    "MessagePart": MessagePart,
    "NamespacedTool": FunctionTool | CustomTool | Unknown,
    "OutputPart": OutputPart,
    "StreamEvent": StreamEvent,
    "Tool": Tool,
    "ToolOutputPart": ToolOutputPart,
}
"""Unions that have a name in the document; they occur more than once, are open, or are part of what no type says."""

_UNTYPED = (Message, ItemReference)
"""Items that are known for what they are without their `type`."""

_ALWAYS_TOLD = {
    "Response": (
        "background completed_at error frequency_penalty incomplete_details instructions max_output_tokens max_tool_calls metadata "
        "presence_penalty previous_response_id prompt_cache_key reasoning safety_identifier service_tier status store temperature text "
        "top_logprobs top_p truncation usage user"
    ).split()
}
"""Fields that this server always writes, though other servers may not."""

_SOMETHING_TO_ANSWER = [
    {"required": ["input"], "properties": {"input": {"type": ["string", "array"], "minItems": 1}}},
    {"required": ["instructions"], "properties": {"instructions": {"type": ["string", "array"], "minItems": 1, "minLength": 1}}},
    {"required": ["previous_response_id"], "properties": {"previous_response_id": {"type": "string"}}},
]

_PARTS_OF_ROLES = [
    {"properties": {"role": {"const": "assistant"}, "content": {"items": {"$ref": f"{SCHEMAS}OutputPart"}}}},
    {"properties": {"role": {"not": {"const": "assistant"}}, "content": {"items": {"$ref": f"{SCHEMAS}InputPart"}}}},
]

_ONE_OF_THESE = {"CreateRequest": _SOMETHING_TO_ANSWER, "InputTokensRequest": _SOMETHING_TO_ANSWER, "Message": _PARTS_OF_ROLES}
"""What fields must hold together; no single one shows it."""


class Schemas(NamedTuple):
    """
    What the document says of types.

    Attributes:
        of: the schema of each type that was asked for.
        components: schemas by name, to which others refer.
    """

    of: Mapping[Any, Schema]
    components: Mapping[str, Schema]


def schemas_of(takes: Sequence[Any], gives: Sequence[Any], renamed: Mapping[str, str]) -> Schemas:
    """
    The schemas of wire types.

    Args:
        takes: types that clients send.
        gives: types that the server sends.
        renamed: the `type` under which an object is sent, where it is not its own.
    """
    kinds = sorted({*takes, *gives}, key=str)
    made, found = _shortly_named(msgspec.json.schema_components(kinds, schema_hook=_unknown_to_msgspec, ref_template=SCHEMAS + "{name}"))
    schemas = {kind: _cleaned(schema) for kind, schema in zip(kinds, made, strict=True)}
    known = {name: _cleaned(schema) for name, schema in found.items() if name not in (Unknown.__name__, Nothing.__name__)}
    known |= _unions(known.keys(), renamed)
    taken = _reached([schemas[kind] for kind in takes], known)
    forgiving = {name for kind in _made_of(takes) if kind.null_is_absent and (name := _name_of(kind, known)) in taken}
    for name in forgiving:
        _take_nulls(known[name])
    return Schemas(schemas, {name: _whole(name, schema, name in taken, renamed) for name, schema in sorted(known.items())})


def _shortly_named(schemas: Any) -> Any:
    """Schemas without the modules that msgspec puts before types which share a name."""
    json = msgspec.json.encode(schemas)
    return msgspec.json.decode(
        re.sub(rb"antiphon\.wire\.(\w+)\.\w+\.", lambda module: b"Realtime" if module[1] == b"realtime" else b"", json)
    )


def _unknown_to_msgspec(kind: Any) -> Schema:
    return {"description": "Anything."} if kind is object else {"type": "object"}


def reference(name: str) -> Schema:
    """A schema that stands elsewhere in the document."""
    return {"$ref": SCHEMAS + name}


def _cleaned(node: Any) -> Any:
    """A schema with references to the unions that have a name, and without what msgspec needs to keep unknown fields."""
    if isinstance(node, list):
        return [_cleaned(each) for each in node]
    if isinstance(node, str):
        return node.replace(r"\Z", "$")
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:
        return _union(node)
    cleaned = {key: _cleaned(value) for key, value in node.items()}
    if EXTRA_NAME in cleaned.get("properties", ()):
        del cleaned["properties"][EXTRA_NAME], cleaned["additionalProperties"]
    return cleaned


def _union(schema: Schema) -> Schema:
    names = {each["$ref"].removeprefix(SCHEMAS) for each in schema["anyOf"]} - {Nothing.__name__}
    for name, union in _UNIONS.items():
        if names == {kind.__name__ for kind in get_args(union)}:
            return reference(name)
    assert Unknown.__name__ not in names, f"an open union without a name: {names}"
    if len(names) == 1:
        return reference(*names)
    return schema


# Unions


def _unions(known: Iterable[str], renamed: Mapping[str, str]) -> Iterator[tuple[str, Schema]]:
    """The unions all of whose types are known, and what else each is open to."""
    known = {*known, Unknown.__name__}
    for name, union in _UNIONS.items():
        kinds = get_args(union)
        if not {kind.__name__ for kind in kinds} <= known:
            continue
        tags = {renamed.get(tag, tag): kind for kind in kinds if (tag := _tag(kind)) and kind is not Unknown}
        one_of = {"propertyName": "type", "mapping": {tag: SCHEMAS + kind.__name__ for tag, kind in tags.items()}}
        members = [reference(kind.__name__) for kind in tags.values()]
        if Unknown in kinds:
            other = f"Other{name}"
            one_of["defaultMapping"] = SCHEMAS + other
            members.append(reference(other))
            yield other, _other(tags, [kind for kind in _UNTYPED if kind in kinds])
        yield name, {"title": name, "anyOf": members, "discriminator": one_of}


def _tag(kind: type[Tagged]) -> str:
    return str(kind.__struct_config__.tag)


def _other(tags: Iterable[str], untyped: Sequence[type]) -> Schema:
    """What an open union takes beside the types it knows."""
    told = "Of a type that this version doesn't know; it is kept as it came."
    new = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": sorted(tags)}}}}
    if not untyped:
        return {"description": told, **new}
    plain = {"properties": {"type": {"type": "null"}}, "anyOf": [reference(kind.__name__) for kind in untyped]}
    return {"description": f"{told} Or it leaves out its type.", "anyOf": [new, plain]}


# Objects


def _made_of(kinds: Iterable[Any]) -> set[type[Wire]]:
    """The wire types that annotations are made of, at any depth."""
    found: set[type[Wire]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Wire) and kind not in found:
            found.add(kind)
            waiting += get_type_hints(kind).values()
        waiting += get_args(kind)
    return found


def _name_of(kind: type[Wire], known: Mapping[str, Schema]) -> str:
    """What a type is called in the document: two may share a name."""
    longer = f"Realtime{kind.__name__}"
    return longer if "realtime" in kind.__module__ and longer in known else kind.__name__


def _take_nulls(schema: Schema) -> None:
    """Let null stand for each field that may be absent."""
    for field, told in schema["properties"].items():
        if field not in schema.get("required", ()):
            schema["properties"][field] = {"anyOf": [told, {"type": "null"}]}


def _whole(name: str, schema: Schema, is_taken: bool, renamed: Mapping[str, str]) -> Schema:
    """An object's schema, with what holds for it on this server's wire."""
    fields = schema.get("properties", {})
    if name in {kind.__name__ for kind in _UNTYPED}:
        schema["required"].remove("type")
        fields["type"]["enum"].append(None)
    if name == ItemReference.__name__:
        schema["anyOf"] = [
            {"required": ["type"], "properties": {"type": {"type": "string"}}},
            {"properties": {"role": False, "content": False}},
        ]
    if name in _ONE_OF_THESE:
        schema["anyOf"] = _ONE_OF_THESE[name]
    tags = fields.get("type", {}).get("enum", ())
    if any(tag in renamed for tag in tags):
        fields["type"]["enum"] = [renamed[tag] for tag in tags]
    filled = [field for field, told in fields.items() if "default" in told]
    if is_taken:
        for field in filled:  # a null stands for the default
            fields[field] = {"anyOf": [fields[field], {"type": "null"}]}
    else:
        always = {*schema.get("required", ()), *filled, *_ALWAYS_TOLD.get(name, ())}
        schema |= {"required": [field for field in fields if field in always]} if always else {}
    return schema


def _reached(schemas: Iterable[Schema], components: Mapping[str, Schema]) -> set[str]:
    """The names of the components that these schemas are made of."""
    reached: set[str] = set()
    waiting = list(schemas)
    while waiting:
        new = set(_names(waiting.pop())) - reached
        reached |= new
        waiting += [components[name] for name in new]
    return reached


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _names(each)
    elif isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].removeprefix(SCHEMAS)
        for each in node.values():
            yield from _names(each)
