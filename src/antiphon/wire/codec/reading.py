"""
JSON to wire types, or to an error that names the field.

The fast path is msgspec's, straight into structs. What it refuses is read again, field by field: then there is an
error, reported with its path and the text of OpenAI's API, or a field or type unknown to this version, which is kept,
or something that the protocol allows. So the usual message costs one decoding, and every message is checked against the
same annotations.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Raw

from antiphon import errors
from antiphon.wire.codec.json_errors import JSON_ERRORS, describe_json_error
from antiphon.wire.codec.shapes import Shape, shape_for, struct_fields
from antiphon.wire.codec.types import Wire

T = TypeVar("T")
W = TypeVar("W", bound=Wire)


class Reader(Generic[T]):
    """
    Reads one kind of message; build it once, it compiles a decoder.

    Args:
        kind: a wire type, or a union of them.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode

    def read(self, body: bytes, path: str = "") -> T:
        """
        The message in `body`.

        Args:
            body: JSON.
            path: of `body` within a larger message, for errors.

        Raises:
            ClientError: `body` is not JSON, or not such a message.
        """
        try:
            return self._decode(body)
        except msgspec.ValidationError:
            pass
        except JSON_ERRORS as error:
            raise errors.unparsable_json(describe_json_error(body, error)) from None
        try:
            return cast(T, shape_for(self._kind).read(body.strip(), path))
        except JSON_ERRORS as error:
            raise errors.unparsable_json(describe_json_error(body, error)) from None


def read_query(kind: type[W], pairs: Iterable[tuple[str, str]]) -> W:
    """
    The parameters of a query as a wire type; unknown ones are left out.

    Args:
        kind: the wire type.
        pairs: names and values in order; lists are repeated names, with or without `[]` at the end, which OpenAI's
            SDKs write.

    Raises:
        ClientError: a value is not what its field takes.
    """
    texts: dict[str, list[str]] = {}
    for name, text in pairs:
        texts.setdefault(name.removesuffix("[]"), []).append(text)
    fields = {
        field.wire_name: _query_json(field.shape, texts[field.wire_name]) for field in struct_fields(kind) if field.wire_name in texts
    }
    return Reader[W](kind).read(msgspec.json.encode(fields))


def _query_json(shape: Shape, texts: list[str]) -> Raw | str | list[str]:
    if "array" in shape.readers:
        return texts
    text = texts[-1]
    kind = next((kind for kind in _SCALAR_PATTERNS if kind in shape.readers), "boolean")
    plain = "string" not in shape.readers and re.fullmatch(_SCALAR_PATTERNS[kind], text, re.ASCII)
    return Raw(text.encode()) if plain else text


_SCALAR_PATTERNS = {"decimal": r"-?(0|[1-9]\d*)(\.\d+)?", "integer": r"-?(0|[1-9]\d*)", "boolean": "true|false"}
"""The form of values in a query that are not strings; as in JSON."""
