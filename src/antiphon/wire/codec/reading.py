"""
JSON into wire types, or the mistake in it.

The quick way is msgspec's, straight into structs. What it refuses is read again, field by field: either there is a mistake, which is
told with its path in the words of the original API, or there is something that this version does not know, which is kept, or something
that the protocol forgives. So the usual message costs one decoding, and every message is judged by the same annotations.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from antiphon import errors
from antiphon.wire.codec.shapes import _Shape, _struct_fields, shape_for
from antiphon.wire.codec.types import Wire

T = TypeVar("T")
W = TypeVar("W", bound=Wire)

DEPTH_LIMIT = 64

_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHER_BYTES = bytes(set(range(256)) - set(b'[]{}"'))


def check_depth(body: bytes) -> None:
    """
    Refuse JSON whose objects and arrays stand more than 64 deep.

    Raises:
        ClientError: they do.
    """
    if body.count(b"{") + body.count(b"[") <= DEPTH_LIMIT:
        return
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escaped quotes, every other piece between quotes is what stands outside of strings.
    pieces = body.translate(_BRACES_TO_BRACKETS, _OTHER_BYTES).split(b'"')
    brackets = b"".join(pieces[::2])
    for _ in range(DEPTH_LIMIT):  # each turn takes away what stands innermost
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            return  # nothing left, or brackets that don't match, which the decoder refuses
        brackets = outer
    if brackets:
        raise errors.nesting_too_deep(DEPTH_LIMIT)


class Reader(Generic[T]):
    """
    Reads one kind of message; made once, used for ever.

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
            path: where `body` stands in something larger, for error messages.

        Raises:
            ClientError: `body` is not JSON, or not such a message.
        """
        try:
            return self._decode(body)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.unparsable_json(str(error)) from None
        try:
            message: T = shape_for(self._kind).read(body.strip(), path)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.unparsable_json(str(error)) from None
        return message


def read_query(kind: type[W], pairs: Iterable[tuple[str, str]]) -> W:
    """
    The parameters of a query as a wire type; unknown ones are left out.

    Args:
        kind: the wire type.
        pairs: names and values in order; lists are repeated names, with or without `[]` at the end.

    Raises:
        ClientError: a value is not what its field takes.
    """
    texts: dict[str, list[str]] = {}
    for name, text in pairs:
        texts.setdefault(name.removesuffix("[]"), []).append(text)
    fields = {
        field.wire_name: _query_json(field.shape, texts[field.wire_name]) for field in _struct_fields(kind) if field.wire_name in texts
    }
    return Reader[W](kind).read(msgspec.json.encode(fields))


def _query_json(shape: "_Shape", texts: list[str]) -> Any:
    if "array" in shape.readers:
        return texts
    text = texts[-1]
    kind = next((kind for kind in _SCALAR_PATTERNS if kind in shape.readers), "boolean")
    plain = "string" not in shape.readers and re.fullmatch(_SCALAR_PATTERNS[kind], text, re.ASCII)
    return Raw(text.encode()) if plain else text


_SCALAR_PATTERNS = {"decimal": r"-?(0|[1-9]\d*)(\.\d+)?", "integer": r"-?(0|[1-9]\d*)", "boolean": "true|false"}
"""How values that are no strings stand in a query, as in JSON."""


# How each kind of JSON is named, and told by its first byte


# What an annotation allows: for each kind of JSON, how it is read, and a phrase that names it all


# Plain values


# Values made of values
