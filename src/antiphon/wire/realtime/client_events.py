"""What a client of a Realtime session says."""

from collections.abc import Callable
from typing import Annotated

from msgspec import UNSET, Meta

from antiphon.wire.codec.reading import check_depth
from antiphon.wire.codec.types import Opt, Tagged, encode
from antiphon.wire.realtime.decode import EVENT_ID_LENGTH, EventReader, find_event_id as find_event_id
from antiphon.wire.realtime.items import Item, ItemId, check_item
from antiphon.wire.realtime.response import ResponseParams, check_params
from antiphon.wire.realtime.session import Session, TranscriptionSession, check_session


class Event(Tagged, kw_only=True):
    """What every event may have: an id of the client's own, which errors about the event tell."""

    null_is_absent = True

    event_id: Opt[Annotated[str, Meta(max_length=EVENT_ID_LENGTH)]] = UNSET


class SessionUpdate(Event, kw_only=True, tag="session.update"):
    """Change the session."""

    session: Session | TranscriptionSession


class InputAudioBufferAppend(Event, kw_only=True, tag="input_audio_buffer.append"):
    """More sound."""

    audio: bytes


class InputAudioBufferCommit(Event, kw_only=True, tag="input_audio_buffer.commit"):
    """The sound so far is a turn."""


class InputAudioBufferClear(Event, kw_only=True, tag="input_audio_buffer.clear"):
    """Drop the sound so far."""


class OutputAudioBufferClear(Event, kw_only=True, tag="output_audio_buffer.clear"):
    """Drop the sound that was not played yet; where the server plays it."""


class ConversationItemCreate(Event, kw_only=True, tag="conversation.item.create"):
    """Put an item after `previous_item_id`: at the end without one, at the beginning for `root`."""

    previous_item_id: Opt[str] = UNSET
    item: Item


class ConversationItemRetrieve(Event, kw_only=True, tag="conversation.item.retrieve"):
    """Show an item, its sound too."""

    item_id: ItemId


class ConversationItemTruncate(Event, kw_only=True, tag="conversation.item.truncate"):
    """Cut off the model's sound at `audio_end_ms`, because the rest was not heard."""

    item_id: ItemId
    content_index: Annotated[int, Meta(ge=0)]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ConversationItemDelete(Event, kw_only=True, tag="conversation.item.delete"):
    """Take an item out of the conversation."""

    item_id: ItemId


class ResponseCreate(Event, kw_only=True, tag="response.create"):
    """Answer."""

    response: Opt[ResponseParams] = UNSET


class ResponseCancel(Event, kw_only=True, tag="response.cancel"):
    """Stop answering; without a `response_id`, what is answered in the conversation."""

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
    Refuse what the types of an event can't tell to be wrong.

    Raises:
        ClientError: there is something wrong with it.
    """
    if isinstance(event, SessionUpdate):
        check_session(event.session)
    elif isinstance(event, ConversationItemCreate):
        check_item(event.item, "item")
    elif isinstance(event, ResponseCreate) and event.response is not UNSET:
        check_params(event.response)


def decode_client(frame: bytes) -> ClientEvent:
    """
    The event in a frame that a client sent.

    Raises:
        ClientError: it is none.
    """
    event = _reader.read(frame)
    if type(event) is not InputAudioBufferAppend:  # fifty of which come in a second, and none of which is nested
        check_depth(frame)
        check_event(event)
    return event


encode_client: Callable[[ClientEvent], bytes] = encode
"""JSON of a client's event."""
