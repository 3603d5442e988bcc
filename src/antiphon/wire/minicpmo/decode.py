"""Decoding of fields in MiniCPM-o client events, and the errors for them."""

import re
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, UnsetType

from antiphon.errors import ClientError, invalid_json, quote_list, shorten
from antiphon.wire.codec.json_errors import JSON_ERRORS, describe_json_error

T = TypeVar("T")

ID_LIMIT = 128
"""Characters of a client's id or reason: they are sent back."""

_ERROR_MESSAGE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")
_ENUM_VALUE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_TYPE_NAMES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_JSON_TYPES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_NULL = "got `null`"
_REASON_LIMIT_CHARACTERS = 200
"""Characters of a decoder's message: it may quote the value."""


def read(decoder: msgspec.json.Decoder[T], raw: bytes, path: str) -> T:
    """
    Decode a value.

    Args:
        raw: JSON of the value.
        path: of the value in the event; empty for the whole event.

    Raises:
        ClientError: the decoder does not accept it.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _validation_error(str(error), path, decoder.type) from None
    except JSON_ERRORS as error:
        raise invalid_json(describe_json_error(raw, error)) from None


def _validation_error(message: str, path: str, kind: Any) -> ClientError:
    match = _ERROR_MESSAGE.fullmatch(message)
    assert match is not None
    reason, inside = match[1], match[2] or ""
    param = f"{path}{inside}" if path else inside.removeprefix(".")
    if missing := _MISSING_FIELD.fullmatch(reason):
        return missing_field(f"{param}.{missing[1]}" if param else missing[1])
    if reason.endswith(_NULL) and param and not param.endswith("]"):  # optional fields accept null, so this one is required
        return missing_field(param)
    if value := _ENUM_VALUE.fullmatch(reason):
        values = quote_list(_literal_values(kind, inside), "or")
        return invalid_field(param, f"expected one of {values}, but got '{shorten(value[1])}'")
    reason = _TYPE_NAMES.sub(_describe_types, reason).replace(", got ", ", but got ")
    return invalid_field(param or "event", shorten(reason[:1].lower() + reason[1:], _REASON_LIMIT_CHARACTERS))


def _describe_types(names: re.Match[str]) -> str:
    """The decoder's names of JSON types in words. That null is as good as an absent field needs no mention."""
    kinds = names[1].split(" | ")
    return " or ".join(_JSON_TYPES.get(kind, kind) for kind in kinds if kind != "null" or len(kinds) == 1)


def _literal_values(kind: Any, path: str) -> tuple[str, ...]:
    """The values that the field at `path` within a type may have."""
    for name in re.findall(r"\.(\w+)|\[", path):  # without a name, the members of an array
        kinds = get_args(kind) or (kind,)
        if name:
            kind = next(hints[name] for each in kinds if isinstance(each, type) and name in (hints := get_type_hints(each)))
        else:
            kind = get_args(next((each for each in kinds if get_origin(each) is list), kind))[0]
    return next((get_args(each) for each in (kind, *get_args(kind)) if get_origin(each) is Literal), ())


def invalid_field(param: str, reason: str) -> ClientError:
    """A field is invalid; `reason` says what was expected and what came."""
    return ClientError(f"Invalid '{param}': {reason}.", code="invalid_payload", param=param)


def missing_field(param: str) -> ClientError:
    """A required field is missing."""
    return ClientError(f"Missing required field: '{param}'.", code="missing_field", param=param)


def require_field(raw: Raw | UnsetType, param: str) -> bytes:
    """
    The JSON of a required field.

    Raises:
        ClientError: it is absent or null.
    """
    if isinstance(raw, UnsetType) or bytes(raw) == b"null":
        raise missing_field(param)
    return bytes(raw)


def first_field(fields: object, names: tuple[str, ...]) -> tuple[Any, str]:
    """
    The value and name of the first field that is neither absent nor null; None with the first name if there is none.
    """
    for name in names:
        value = getattr(fields, name, None)
        if value is not None and not isinstance(value, UnsetType) and not (isinstance(value, Raw) and bytes(value) == b"null"):
            return value, name
    return None, names[0]


def validate_id(id: str | None, param: str) -> str | None:
    """
    A client's id; None for an empty one.

    Raises:
        ClientError: it is too long.
    """
    if id is not None and len(id) > ID_LIMIT:
        raise invalid_field(param, f"expected at most {ID_LIMIT} characters, but got {len(id)}")
    return id or None
