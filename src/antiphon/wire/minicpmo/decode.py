"""How the fields of a MiniCPM-o client's event are read, and what is said of one that can't be."""

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from antiphon.errors import ClientError, invalid_json, shorten

T = TypeVar("T")

ID_LIMIT = 128
"""The most characters of an id, and of a reason, of the client's: they are told back."""

_ERROR_MESSAGE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")
_NULL = "got `null`"
_REASON_LIMIT_CHARACTERS = 200
"""The most characters of what is said of a value: some of it may be the value."""


def read(decoder: msgspec.json.Decoder[T], raw: bytes, path: str) -> T:
    """
    What `raw` holds.

    Args:
        raw: JSON of the value.
        path: where it stands in the event; empty for all of it.

    Raises:
        ClientError: it is not what the decoder reads.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _validation_error(str(error), path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(str(error)) from None


def _validation_error(message: str, path: str) -> ClientError:
    matched = _ERROR_MESSAGE.fullmatch(message)
    assert matched is not None
    why, inside = matched[1], matched[2] or ""
    param = f"{path}{inside}" if path else inside.removeprefix(".")
    if missing := _MISSING_FIELD.fullmatch(why):
        return missing_field(f"{param}.{missing[1]}" if param else missing[1])
    if why.endswith(_NULL) and param and not param.endswith("]"):  # a field that may be absent may be null: this one must be there
        return missing_field(param)
    return invalid_field(param or "event", shorten(why[:1].lower() + why[1:], _REASON_LIMIT_CHARACTERS))


def invalid_field(param: str, reason: str) -> ClientError:
    """A field can't be used; `why` says what was expected and what came."""
    return ClientError(f"Invalid '{param}': {reason}.", code="invalid_payload", param=param)


def missing_field(param: str) -> ClientError:
    """A field is not there that must be."""
    return ClientError(f"Missing required field: '{param}'.", code="missing_field", param=param)


def require_field(raw: Raw | UnsetType, param: str) -> bytes:
    """
    A field that must be there.

    Raises:
        ClientError: it isn't, or is null.
    """
    if isinstance(raw, UnsetType) or bytes(raw) == b"null":
        raise missing_field(param)
    return bytes(raw)


def first_field(fields: Any, names: tuple[str, ...]) -> tuple[Any, str]:
    """The first of these fields that says something, and its name; None where none does."""
    for name in names:
        value = getattr(fields, name, None)
        if value is not None and not isinstance(value, UnsetType) and not (isinstance(value, Raw) and bytes(value) == b"null"):
            return value, name
    return None, names[0]


def validate_id(id: str | None, param: str) -> str | None:
    """
    An id of the client's; None for an empty one.

    Raises:
        ClientError: it is too long.
    """
    if id is not None and len(id) > ID_LIMIT:
        raise invalid_field(param, f"expected at most {ID_LIMIT} characters, but got {len(id)}")
    return id or None
