"""
How JSON is read into a wire type: for each annotation, a reader by JSON kind, built once and cached.

Annotations have the type `Any`: `TypeForm`, which PEP 747 adds for them, is newer than Python 3.11.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from antiphon import errors
from antiphon.wire.codec.types import EXTRA_NAME, Extra, Nothing, Unknown, Wire

_KIND_PHRASES = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "boolean": "a boolean",
    "null": "null",
    "integer": "an integer",
    "decimal": "a decimal number",
}


_KIND_BY_FIRST_BYTE = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}


def _json_kind(raw: bytes) -> str:
    return _KIND_BY_FIRST_BYTE.get(raw[0]) or ("integer" if raw.lstrip(b"-").isdigit() else "decimal")


def _integer_json(raw: bytes) -> bytes | None:
    """
    A number such as `16.0` as an integer, which it is in JSON Schema (Validation 2020-12, section 6.1.1); None if it
    has a fraction.
    """
    number = msgspec.json.decode(raw, type=float)
    return b"%d" % number if number.is_integer() else None


def _join_path(path: str, name: str) -> str:
    name = errors.shorten(name)
    return f"{path}.{name}" if path else name


_Read = Callable[[bytes, str], object]
_Readers = dict[str, _Read]


class Shape(NamedTuple):
    """What an annotation allows: a reader for each JSON kind, and a phrase for errors that names them all."""

    readers: _Readers
    phrase: str

    def read(self, raw: bytes, path: str) -> object:
        """
        The value of `raw`, one JSON value without white space around it.

        Raises:
            ClientError: it is of another kind, or has a wrong value.
        """
        kind = _json_kind(raw)
        if kind == "decimal" and kind not in self.readers and "integer" in self.readers and (whole := _integer_json(raw)) is not None:
            kind, raw = "integer", whole
        if kind not in self.readers:
            raise errors.invalid_type(path or None, self.phrase, _KIND_PHRASES[kind])
        return self.readers[kind](raw, path)


@cache
def shape_for(annotation: Any) -> Shape:
    """The shape of an annotation of a wire type."""
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    objects = tuple(each for each in alternatives if isinstance(each, type) and issubclass(each, Wire) and each is not Nothing)
    readers: _Readers = {"object": partial(_read_object, objects)} if objects else {}
    phrases = ["an object"] if objects else []
    for each in alternatives:
        if each not in (*objects, UnsetType, Nothing):
            more, phrase = _plain_shape(each)
            readers = more | readers  # the first alternative takes precedence
            phrases += [phrase] if phrase else []
    return Shape(readers, _join_phrases(phrases))


def _join_phrases(phrases: list[str]) -> str:
    if len(phrases) < 2:
        return "".join(phrases)
    first, *others = phrases
    # As OpenAI's API words it: only the first has an article.
    bare = [other.removeprefix("one of ").removeprefix("an ").removeprefix("a ") for other in others]
    return " or ".join([f"one of {first.removeprefix('one of ')}", *bare])


def _plain_shape(annotation: Any) -> tuple[_Readers, str]:
    meta = Meta()
    if get_origin(annotation) is Annotated:
        annotation, meta = get_args(annotation)
    kind = get_origin(annotation) or annotation
    if kind in (Any, object):
        return dict.fromkeys(_KIND_PHRASES, _read_plain), ""
    readers, phrase = _SHAPE_BUILDERS[kind](get_args(annotation), meta)
    return readers, meta.title or phrase


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _array_shape(type_args: tuple[Any, ...], meta: Meta) -> tuple[_Readers, str]:
    member = shape_for(type_args[0])
    decoder = _decoder(Annotated[list[type_args[0]], meta])  # type: ignore[valid-type]
    members = "strings" if member.phrase.startswith("one of '") else _PLURALS.get(member.phrase, "objects")
    return {"array": partial(_read_array, decoder, member, meta)}, f"an array of {members}"


_PLURALS = {"a string": "strings", "an integer": "integers", "a decimal": "decimals"}


_SHAPE_BUILDERS: dict[Any, Callable[[tuple[Any, ...], Meta], tuple[_Readers, str]]] = {
    str: lambda _, meta: ({"string": partial(_read_string, meta)}, "a string"),
    bytes: lambda _, __: ({"string": _read_bytes}, "a string"),
    Literal: lambda values, _: ({"string": partial(_read_literal, values)}, f"one of {errors.quote_list(values, 'or')}"),
    int: lambda _, meta: ({"integer": partial(_read_number, "integer", meta)}, "an integer"),
    float: lambda _, meta: (dict.fromkeys(("integer", "decimal"), partial(_read_number, "decimal", meta)), "a decimal"),
    bool: lambda _, __: ({"boolean": _read_plain}, "a boolean"),
    NoneType: lambda _, __: ({"null": _read_plain}, ""),
    list: _array_shape,
    Sequence: _array_shape,
    dict: lambda of, meta: ({"object": partial(_read_map, of[0], shape_for(of[1]), meta)}, "an object"),
}


def _read_plain(raw: bytes, _path: str) -> object:
    return msgspec.json.decode(raw)


def _read_string(meta: Meta, raw: bytes, path: str) -> str:
    text = str(msgspec.json.decode(raw))
    _check_length("string", meta, len(text), path)
    if meta.pattern and not re.search(meta.pattern, text):
        raise errors.pattern_mismatch(path, meta.pattern.replace(r"\Z", "$"))
    return text


def _read_bytes(raw: bytes, path: str) -> bytes:
    try:
        return msgspec.json.decode(raw, type=bytes)
    except msgspec.ValidationError:
        raise errors.invalid_base64(path) from None


def _read_literal(values: tuple[str, ...], raw: bytes, path: str) -> str:
    text = str(msgspec.json.decode(raw))
    if text not in values:
        raise errors.invalid_value(path, text, values)
    return text


def _read_number(kind: Literal["integer", "decimal"], meta: Meta, raw: bytes, path: str) -> float:
    number: float = msgspec.json.decode(raw, type=int if kind == "integer" else float)
    if meta.ge is not None and number < meta.ge:
        raise errors.below_minimum(path, kind, meta.ge, raw.decode())
    if meta.le is not None and number > meta.le:
        raise errors.above_maximum(path, kind, meta.le, raw.decode())
    return number


def _check_length(kind: Literal["string", "array"], meta: Meta, length: int, path: str) -> None:
    if meta.min_length is not None and length < meta.min_length:
        raise errors.too_short(path, kind, meta.min_length, length)
    if meta.max_length is not None and length > meta.max_length:
        raise errors.too_long(path, kind, meta.max_length, length)


_decode_members = msgspec.json.Decoder(list[Raw]).decode


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def _read_array(decoder: msgspec.json.Decoder[list[object]], member: Shape, meta: Meta, raw: bytes, path: str) -> list[object]:
    with suppress(msgspec.ValidationError):
        return decoder.decode(raw)
    members = _decode_members(raw)
    _check_length("array", meta, len(members), path)
    return [member.read(bytes(each), f"{path}[{index}]") for index, each in enumerate(members)]


def _read_map(key: Any, value: Shape, meta: Meta, raw: bytes, path: str) -> dict[str, object]:
    fields = _decode_fields(raw)
    if meta.max_length is not None and len(fields) > meta.max_length:
        raise errors.too_many_properties(path, meta.max_length, len(fields))
    longest = get_args(key)[1].max_length if get_args(key) else None
    for name in fields:
        if longest is not None and len(name) > longest:
            raise errors.property_name_too_long(path, name, longest)
    return {name: value.read(bytes(each), _join_path(path, name)) for name, each in fields.items()}


def _read_object(kinds: tuple[type[Wire], ...], raw: bytes, path: str) -> Wire:
    fields = _decode_fields(raw)
    fields.pop(EXTRA_NAME, None)
    kind = _select_kind(kinds, fields, path)
    if kind is Unknown:
        return Unknown(extra=Extra(fields))
    with suppress(msgspec.ValidationError):
        return cast(Wire, _decoder(kind).decode(raw))
    return _read_fields(kind, fields, path)


def _select_kind(kinds: tuple[type[Wire], ...], fields: Mapping[str, Raw], path: str) -> type[Wire]:
    by_tag = _kinds_by_tag(kinds)
    if not by_tag:
        return kinds[0]
    tag_field = kinds[0].__struct_config__.tag_field or "type"
    tag = msgspec.json.decode(fields.get(tag_field, b"null"))
    if isinstance(tag, str):
        kind = by_tag.get(tag) or _kinds_by_alias(kinds).get(tag) or (Unknown if Unknown in kinds else None)
        if kind is None:
            raise errors.invalid_value(_join_path(path, tag_field), tag, by_tag)
        return kind
    if tag is not None:
        raise errors.invalid_type(_join_path(path, tag_field), "a string", _KIND_PHRASES[_json_kind(bytes(fields[tag_field]))])
    for kind in by_tag.values():
        if kind.takes_untyped(fields):
            return kind
    raise errors.missing_parameter(_join_path(path, tag_field))


@cache
def _kinds_by_tag(kinds: tuple[type[Wire], ...]) -> dict[str, type[Wire]]:
    return {str(kind.__struct_config__.tag): kind for kind in kinds if kind.__struct_config__.tag and kind is not Unknown}


@cache
def _kinds_by_alias(kinds: tuple[type[Wire], ...]) -> dict[str, type[Wire]]:
    return {alias: kind for kind in kinds for alias in kind.aliases}


class _Field(NamedTuple):
    name: str
    wire_name: str
    shape: Shape
    is_required: bool
    null_is_absent: bool


@cache
def struct_fields(kind: type[Wire]) -> tuple[_Field, ...]:
    """The fields of a wire type, but for `extra`."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(each.name, each.encode_name, shape, each.required, _null_is_absent(kind, each, shape))
        for each in msgspec.structs.fields(kind)
        if each.name != "extra"
        for shape in (shape_for(hints[each.name]),)
    )


def _null_is_absent(kind: type[Wire], field: msgspec.structs.FieldInfo, shape: Shape) -> bool:
    # Null means the default where there is one: `annotations` is never null.
    return not field.required and (field.default is not UNSET or (kind.null_is_absent and "null" not in shape.readers))


def _read_fields(kind: type[Wire], fields: dict[str, Raw], path: str) -> Wire:
    values: dict[str, Any] = {}
    unknown = dict(fields)
    if kind.__struct_config__.tag_field:
        unknown.pop(kind.__struct_config__.tag_field, None)
    for field in struct_fields(kind):
        field_path = _join_path(path, field.wire_name)
        if field.wire_name not in unknown:
            if field.is_required:
                raise errors.missing_parameter(field_path)
            continue
        raw = bytes(unknown.pop(field.wire_name))
        if raw == b"null" and field.null_is_absent:
            continue
        values[field.name] = field.shape.read(raw, field_path)
    if kind.null_is_absent:
        unknown = {name: value for name, value in unknown.items() if bytes(value) != b"null"}
    return kind(**values, extra=Extra(unknown)) if unknown else kind(**values)
