"""The events of a Realtime client."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from antiphon.errors import ClientError
from antiphon.wire.codec.structure import check_depth
from antiphon.wire.codec.types import Opt, encode
from antiphon.wire.realtime.base import RealtimeTagged
from antiphon.wire.realtime.decode import EVENT_ID_LENGTH, EventReader, find_event_id as find_event_id
from antiphon.wire.realtime.items import Item, ItemId, check_item, check_part_types
from antiphon.wire.realtime.response import ResponseParams, check_params
from antiphon.wire.realtime.session import Session, TranscriptionSession, check_session


class Event(RealtimeTagged, kw_only=True):
    """The base of all events: `event_id` is the client's own id, which errors about the event repeat."""

    event_id: Opt[Annotated[str, Meta(max_length=EVENT_ID_LENGTH)]] = UNSET


class SessionUpdate(Event, kw_only=True, tag="session.update"):
    """Change the session."""

    session: Session | TranscriptionSession


class InputAudioBufferAppend(Event, kw_only=True, tag="input_audio_buffer.append"):
    """Add input audio."""

    audio: bytes


class InputAudioBufferCommit(Event, kw_only=True, tag="input_audio_buffer.commit"):
    """Make the buffered audio a turn."""


class InputAudioBufferClear(Event, kw_only=True, tag="input_audio_buffer.clear"):
    """Drop the buffered audio."""


class OutputAudioBufferClear(Event, kw_only=True, tag="output_audio_buffer.clear"):
    """Stop the playback and drop the rest, if the server plays the audio."""


class ConversationItemCreate(Event, kw_only=True, tag="conversation.item.create"):
    """Add an item after `previous_item_id`: at the end without one, first for `root`."""

    previous_item_id: Opt[str] = UNSET
    item: Item


class ConversationItemRetrieve(Event, kw_only=True, tag="conversation.item.retrieve"):
    """Get an item with its audio."""

    item_id: ItemId


class ConversationItemTruncate(Event, kw_only=True, tag="conversation.item.truncate"):
    """Truncate the model's audio at `audio_end_ms`: the rest was not heard."""

    item_id: ItemId
    content_index: Annotated[int, Meta(ge=0)]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ConversationItemDelete(Event, kw_only=True, tag="conversation.item.delete"):
    """Delete an item."""

    item_id: ItemId


class ResponseCreate(Event, kw_only=True, tag="response.create"):
    """Create a response."""

    response: Opt[ResponseParams] = UNSET


class ResponseCancel(Event, kw_only=True, tag="response.cancel"):
    """Cancel a response; without a `response_id`, the active one in the conversation."""

    response_id: Opt[str] = UNSET


ClientEvent = (
    SessionUpdate
    | InputAudioBufferAppend
    | InputAudioBufferCommit
    | InputAudioBufferClear
    | OutputAudioBufferClear
    | ConversationItemCreate
    | ConversationItemRetrieve
    | ConversationItemTruncate
    | ConversationItemDelete
    | ResponseCreate
    | ResponseCancel
)

_reader: EventReader[ClientEvent] = EventReader(ClientEvent)


def check_event(event: ClientEvent) -> None:
    """
    Check what the types of an event can't express.

    Raises:
        ClientError: the event is invalid.
    """
    if isinstance(event, SessionUpdate):
        check_session(event.session)
    elif isinstance(event, ConversationItemCreate):
        check_item(event.item, "item")
    elif isinstance(event, ResponseCreate) and event.response is not UNSET:
        check_params(event.response)


def decode_client(frame: bytes) -> ClientEvent:
    """
    Decode a client's frame.

    Raises:
        ClientError: it is not a valid event.
    """
    try:
        event = _reader.read(frame)
        if type(event) is not InputAudioBufferAppend:  # some fifty a second, and never nested
            check_depth(frame)
            check_event(event)
    except ClientError as error:
        if error.param and ".content[" in error.param:
            _check_part_types(frame)
        raise
    return event


def _check_part_types(frame: bytes) -> None:
    fields = msgspec.json.decode(frame)
    check_part_types(fields.get("item"), "item")
    response = fields.get("response")
    items = response.get("input") if isinstance(response, dict) else None
    for index, item in enumerate(items if isinstance(items, list) else ()):
        check_part_types(item, f"response.input[{index}]", takes_references=True)


encode_client: Callable[[ClientEvent], bytes] = encode
"""JSON of a client's event."""
