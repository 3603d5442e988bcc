"""A Realtime event is one JSON object to a frame, told by its `type`: how a frame is read, and what is wrong with one that is none."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec

from antiphon import errors
from antiphon.wire.codec.reading import Reader, check_depth
from antiphon.wire.codec.types import Extra, Tagged, Unknown

E = TypeVar("E", bound=Tagged)

EVENT_ID_LENGTH = 512
"""The most characters of an event's id: errors tell it back."""


_decode_object: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventReader(Generic[E]):
    """
    Reads the events of one side; made once, used for ever.

    Args:
        kind: the union of them; with `Unknown` in it, an event that is not as its type has it is `Unknown`, not a mistake.
    """

    def __init__(self, kind: Any) -> None:
        self._reader: Reader[E] = Reader(kind)
        self._decode: Callable[[bytes], E] = msgspec.json.Decoder(kind).decode
        kinds = get_args(kind)
        self._tags = [each.__struct_config__.tag for each in kinds if each is not Unknown]
        self._takes_unknown = Unknown in kinds

    def read(self, frame: bytes) -> E:
        """
        The event in `frame`.

        Raises:
            ClientError: it is none.
        """
        try:
            return self._decode(frame)
        except _DECODE_ERRORS:
            check_depth(frame)
            return self._read_slowly(frame)

    def _read_slowly(self, frame: bytes) -> E:
        fields = _event_fields(frame)
        tag = fields["type"]
        if isinstance(tag, str) and tag not in self._tags and not self._takes_unknown:
            raise errors.invalid_value("type", tag, self._tags)
        try:
            return self._reader.read(frame)
        except errors.ClientError:
            if not self._takes_unknown or not isinstance(tag, str):
                raise
        return cast(E, Unknown(extra=Extra(fields)))


def _event_fields(frame: bytes) -> dict[str, Any]:
    try:
        fields = _decode_object(frame)
    except msgspec.ValidationError:
        raise errors.invalid_event("An event must be a JSON object.") from None
    except _DECODE_ERRORS as error:
        raise errors.invalid_json(str(error)) from None
    if fields.get("type") is None:
        raise errors.invalid_event("The 'type' field is missing.")
    return fields


def find_event_id(frame: bytes) -> str | None:
    """The client's own id of the event in `frame`, for the error about it; None where it has none that can be told back."""
    try:
        event_id = _decode_object(frame).get("event_id")
    except _DECODE_ERRORS:
        return None
    return event_id if isinstance(event_id, str) and len(event_id) <= EVENT_ID_LENGTH else None
