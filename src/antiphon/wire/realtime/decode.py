"""Reads Realtime events: one JSON object in each frame, of the kind that its `type` names."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec

from antiphon import errors
from antiphon.wire.codec.json_errors import JSON_ERRORS, describe_json_error
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import Extra, JsonDict, Tagged, Unknown

E = TypeVar("E", bound=Tagged)

EVENT_ID_LENGTH = 512
"""How long a client's event id may be, in characters (Realtime reference: `event_id`); errors repeat it."""


_decode_object: Callable[[bytes], JsonDict] = msgspec.json.Decoder(JsonDict).decode


class EventReader(Generic[E]):
    """
    Reads the events of one side; build it once.

    Args:
        kind: the union of all events. If `Unknown` is in it, an event that doesn't fit its type is `Unknown` instead of
            an error.
    """

    def __init__(self, kind: Any) -> None:
        self._reader: Reader[E] = Reader(kind)
        self._decode: Callable[[bytes], E] = msgspec.json.Decoder(kind).decode
        kinds = get_args(kind)
        self._tags = [each.__struct_config__.tag for each in kinds if each is not Unknown]
        self._takes_unknown = Unknown in kinds

    def read(self, frame: bytes) -> E:
        """
        Decode a frame.

        Raises:
            ClientError: it is not a valid event.
        """
        try:
            return self._decode(frame)
        except JSON_ERRORS:
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


def _event_fields(frame: bytes) -> JsonDict:
    try:
        fields = _decode_object(frame)
    except msgspec.ValidationError:
        is_object = frame.lstrip().startswith(b"{")  # then the decoder has only met a number that it can't hold
        raise errors.invalid_event("A number in the event is out of range." if is_object else "An event must be a JSON object.") from None
    except JSON_ERRORS as error:
        raise errors.invalid_json(describe_json_error(frame, error)) from None
    if fields.get("type") is None:
        raise errors.invalid_event("The 'type' field is missing.")
    return fields


class _EventId(msgspec.Struct):
    event_id: str | None = None


_event_id_decoder = msgspec.json.Decoder(_EventId)


def find_event_id(frame: bytes) -> str | None:
    """
    The client's id of the event in `frame`, for an error about it; None if it has none, or one too long to repeat.
    """
    try:
        event_id = _event_id_decoder.decode(frame).event_id  # makes no objects of the other values: there may be millions
    except JSON_ERRORS:
        return None
    return event_id if event_id is not None and len(event_id) <= EVENT_ID_LENGTH else None
