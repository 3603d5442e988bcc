r"""
The base of every wire type.

A field that is absent is `UNSET`, one that is null is `None`. Fields unknown to a type are kept in `extra` and encoded
again where they were, so that a newer client and a newer upstream can talk through this version. An object of an
unknown type is `Unknown`.

How `extra` gets back into its object: msgspec has no flattening, so the field is encoded as a marker, `"\x7fextra":0,`,
followed by the unknown fields; `encode` cuts the markers out. For the usual object this costs one search for a byte. A
quote inside a JSON string is escaped, so no text can look like a marker; a field that a client names like one is lost,
and nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

T = TypeVar("T")

JsonDict: TypeAlias = dict[str, Any]
"""A JSON object as plain values."""

if TYPE_CHECKING:
    JsonValue: TypeAlias = object
else:
    JsonValue = Any
    """A JSON value of any kind, which is narrowed before use; at run time `Any`, which msgspec decodes faster."""

Maybe: TypeAlias = T | UnsetType | None
"""A field that may be absent or null."""

Opt: TypeAlias = T | UnsetType
"""A field that may be absent, but not null."""


class Extra(Mapping[str, JsonValue]):
    """
    Fields unknown to this version: a mapping of plain values, whose JSON is kept exactly, numbers included.

    Args:
        fields: plain values, or JSON as `msgspec.Raw`.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = {name: _compact_json(value) for name, value in fields.items()}

    def __getitem__(self, name: str) -> JsonValue:
        return msgspec.json.decode(self._fields[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Extra({dict(self)!r})"

    @property
    def json(self) -> bytes:
        """The fields as one JSON object, on one line."""
        return msgspec.json.encode(self._fields)


def _compact_json(value: object) -> Raw:
    # On one line: a line break would end a server-sent event.
    compact = msgspec.json.format(msgspec.json.encode(value), indent=-1)
    msgspec.json.decode(compact)  # `Raw` was skipped unread, and may be invalid JSON
    return Raw(compact)


EXTRA_NAME = "\x7fextra"
"""The name of `extra` in what `ENCODER` writes; no protocol has such a field."""


class Wire(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """
    An object of a protocol.

    Attributes:
        extra: the fields that the type does not know; `UNSET` when there are none.
        aliases: other values of `type` that mean the same, in what is read.
        null_is_absent: whether null says no more than an absent field does, where null is none of a field's values.
    """

    aliases: ClassVar[tuple[str, ...]] = ()
    null_is_absent: ClassVar[bool] = False

    extra: Opt[Extra] = field(default=UNSET, name=EXTRA_NAME)

    @classmethod
    def takes_untyped(cls, fields: Mapping[str, object]) -> bool:
        """Whether an object with these fields but without the `type` it should have is one of these."""
        return False


class Tagged(Wire, kw_only=True, tag_field="type"):
    """An object with a `type`."""

    @property
    def type(self) -> str:
        """The `type` on the wire."""
        return str(self.__struct_config__.tag)


class Unknown(Tagged, kw_only=True, tag="\x7funknown"):
    """An object whose `type` is unknown to this version; all of it is in `extra`."""

    extra: Extra = field(name=EXTRA_NAME)

    @property
    def type(self) -> str:
        """The `type` on the wire."""
        return str(self.extra["type"])

    @property
    def json(self) -> bytes:
        """The object as it came."""
        return self.extra.json


class Nothing(Tagged, kw_only=True, tag="\x7fnothing"):
    """Stands for no object: see `Typed`."""


if TYPE_CHECKING:
    Typed: TypeAlias = T
else:
    Typed = T | Nothing
    """An object that must have its `type` though only one is possible: msgspec requires the tag only in unions."""


def _encode_extra(value: object) -> Raw:
    if not isinstance(value, Extra):
        raise NotImplementedError(f"{type(value).__name__} has no place on the wire")
    return Raw(b"0," + value.json[1:-1] if value else b"0")


ENCODER = msgspec.json.Encoder(enc_hook=_encode_extra)
"""Encodes wire types, with markers: `strip_markers` makes it JSON."""

MARKER_BYTE = 0x7F
"""A byte in every marker, and in hardly any text: without it there are no markers to strip."""


# Each removes one whole member of an object, so JSON stays JSON whatever a client has sent.
_MARKERS = (
    (b'"\x7fextra":0,', b""),
    (b',"\x7fextra":0}', b"}"),
    (b'{"\x7fextra":0}', b"{}"),
    (b'"type":"\x7funknown",', b""),
)


def strip_markers(encoded_json: bytes) -> bytes:
    """JSON, from the output of `ENCODER`."""
    for marker, rest in _MARKERS:
        encoded_json = encoded_json.replace(marker, rest)
    return encoded_json


def encode(value: object) -> bytes:
    """Wire types, or lists and dicts of them, as JSON on one line."""
    content = ENCODER.encode(value)
    return strip_markers(content) if MARKER_BYTE in content else content
