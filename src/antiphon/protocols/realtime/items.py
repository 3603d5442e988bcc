"""What a client does to the items of a Realtime conversation: create, retrieve, truncate, delete."""

from msgspec import UNSET, structs

from antiphon.audio import SampleAligner
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.history import HistoryItem
from antiphon.errors import ClientError, shorten, unsupported_parameter
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import (
    ConversationEntry,
    ConversationItems,
    ItemAudio,
    duplicate_item_id,
    engine_history,
    item_with_audio,
    recordings_to_show,
    without_audio,
    without_large_images,
)
from antiphon.protocols.realtime.input_audio import audio_unsupported
from antiphon.protocols.realtime.input_buffer import AudioCodec
from antiphon.protocols.realtime.response import AUDIO_ENCODERS, EVENT_LIMIT_BYTES, without_truncated_transcripts
from antiphon.protocols.realtime.settings import RealtimeSessionConfig, codec_of, has_audio_input
from antiphon.protocols.session import NewId
from antiphon.wire.codec.types import Maybe, Wire, encode
from antiphon.wire.realtime import client_events as client, server_events as events
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputItem,
    InputMessage,
    Item,
    ItemReference,
    McpApprovalResponseItem,
    MessageItem,
    OutputAudio,
    Part,
)
from antiphon.wire.realtime.session import Format

RETRIEVE_LIMIT_BYTES = 15 * (1 << 20) * 3 // 4
"""
How much audio a retrieved item may have: as much as a client can append at once, four minutes at 24 kHz. More would hold
the event loop for too long.
"""


class ItemCommands:
    """The client events that change or show items of the conversation."""

    def __init__(
        self, config: RealtimeSessionConfig, outbox: Outbox[events.ServerEvent], new_id: NewId, conversation: ConversationItems
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._new_id = new_id
        self._conversation = conversation

    def create(self, event: client.ConversationItemCreate, codec: AudioCodec, announced_id: str | None = None) -> None:
        """
        Add an item.

        Args:
            codec: of the audio in it.
            announced_id: the id that an item to come will have.

        Raises:
            ClientError: the item or its position is invalid; nothing was added.
        """
        previous_id = event.previous_item_id if isinstance(event.previous_item_id, str) else None
        entry = self._create_entry(event.item, codec, "item")
        if entry.item.id == announced_id:
            raise duplicate_item_id(announced_id)
        self._check_references(entry.item)
        item = without_large_images(entry.item)
        check_event_size(item, "item")
        previous_id = self._conversation.add(entry, previous_id)
        # Realtime GA: both events acknowledge the item; livekit waits five seconds for the first.
        self._outbox.send(events.ConversationItemAdded, previous_item_id=previous_id, item=item)
        self._outbox.send(events.ConversationItemDone, previous_item_id=previous_id, item=item)

    def retrieve(self, event: client.ConversationItemRetrieve, format: Maybe[Format]) -> None:
        """
        Send an item with its audio, or without if that has another sample rate than `format`.

        Args:
            format: of the session's input or output audio.

        Raises:
            ClientError: there is no item with that id, or its audio is too long for one event.
        """
        entry = self._conversation.get(event.item_id, "retrieve")
        # One that is so long that the conversation did not keep its audio is no different from a shorter one.
        audio_bytes = sum(_encoded_bytes(recording, format) for recording in recordings_to_show(entry).values())
        if audio_bytes > RETRIEVE_LIMIT_BYTES:
            raise ClientError(
                f"The item has {audio_bytes} bytes of audio, too many for one event. The maximum is {RETRIEVE_LIMIT_BYTES} bytes.",
                code="event_too_large",
                param="item_id",
            )
        item = item_with_audio(entry, lambda recording: _encode_audio(recording, format))
        self._outbox.send(events.ConversationItemRetrieved, item=item)

    def is_assistant_item(self, item_id: str) -> bool:
        """Whether an item is a message of the assistant."""
        entry = self._conversation.find(item_id)
        return entry is not None and getattr(entry.item, "role", None) == "assistant"

    def truncate(self, event: client.ConversationItemTruncate) -> None:
        """
        Truncate assistant audio at the point where the client stopped playing it.

        Raises:
            ClientError: the item has no assistant audio, or less than that.
        """
        entry = self._conversation.get(event.item_id, "truncate")
        recording = entry.audio_by_part.get(event.content_index)
        if recording is None or not recording.length_bytes or getattr(entry.item, "role", None) != "assistant":
            # This error and the next have the original's code and text.
            raise ClientError("Only model output audio messages can be truncated", code="unsupported_content_type")
        if event.audio_end_ms > recording.full_length_ms:
            raise ClientError(
                f"Audio content of {recording.full_length_ms}ms is already shorter than {event.audio_end_ms}ms",
                code="invalid_value",
                param="audio_end_ms",
            )
        self._truncate_entry(entry, event.content_index, event.audio_end_ms)

    def truncate_playback(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """
        Truncate assistant audio that the server itself stopped playing; nothing if its item is not in the conversation
        (any more).
        """
        entry = self._conversation.find(item_id)
        if entry is not None and content_index in entry.audio_by_part:
            self._truncate_entry(entry, content_index, heard_ms)

    def _truncate_entry(self, entry: ConversationEntry, content_index: int, at_ms: int) -> None:
        recording = entry.audio_by_part[content_index]
        # At an interruption both client and server may truncate the same audio: the earlier position holds.
        recording.truncate(min(at_ms, recording.length_ms))
        # Realtime: a client may truncate while the response still runs; the item then loses its transcript when it is
        # done.
        if not entry.is_open:
            entry.item = without_truncated_transcripts(entry.item, entry)
        self._outbox.send(
            events.ConversationItemTruncated, item_id=entry.item.id, content_index=content_index, audio_end_ms=recording.length_ms
        )

    def delete(self, event: client.ConversationItemDelete) -> None:
        """
        Delete an item.

        Raises:
            ClientError: there is no item with that id.
        """
        self._conversation.delete(event.item_id)
        self._outbox.send(events.ConversationItemDeleted, item_id=event.item_id)

    def history(self, input_items: list[InputItem] | None, codec: AudioCodec) -> tuple[HistoryItem, ...]:
        """
        The history for a response: `input_items`, or the conversation if there are none.

        Raises:
            ClientError: one of the items is invalid.
        """
        with_audio = has_audio_input(self._config.capabilities)
        # Realtime: `response.input` takes the place of the conversation, and an empty list is an empty one.
        if input_items is None:
            return engine_history(self._conversation, with_audio=with_audio)
        call_ids = {item.call_id for item in input_items if isinstance(item, FunctionCallItem)}
        for index, item in enumerate(input_items):
            if isinstance(item, FunctionCallOutputItem) and item.call_id not in call_ids:
                self._check_call_exists(item, f"response.input[{index}]")
        entries = [
            entry for index, item in enumerate(input_items) for entry in self._input_entries(item, codec, f"response.input[{index}]")
        ]
        return engine_history(entries, with_audio=with_audio)

    def _input_entries(self, item: InputItem, codec: AudioCodec, path: str) -> list[ConversationEntry]:
        if isinstance(item, ItemReference):
            return [self._reference_entry(item, path)]
        if isinstance(item, InputMessage):
            return self._message_entries(item, codec, path)
        return [self._create_entry(item, codec, path)]

    def _message_entries(self, message: InputMessage, codec: AudioCodec, path: str) -> list[ConversationEntry]:
        """A message, cut in two where one of its parts refers to an item, which has a role of its own."""
        entries: list[ConversationEntry] = []
        parts: list[Part] = []
        for index, part in enumerate([*message.content, None]):
            if part is not None and not isinstance(part, ItemReference):
                parts.append(part)
                continue
            if parts:
                piece = MessageItem(id=message.id, role=message.role, content=parts)
                entries.append(self._create_entry(piece, codec, path, index - len(parts)))
                parts = []
            if part is not None:
                entries.append(self._reference_entry(part, f"{path}.content[{index}]"))
        return entries

    def _reference_entry(self, reference: ItemReference, path: str) -> ConversationEntry:
        entry = self._conversation.find(reference.id)
        if entry is None:
            raise ClientError(
                f"Item with id '{shorten(reference.id)}' not found in conversation.", code="item_not_found", param=f"{path}.id"
            )
        return entry

    def _create_entry(self, item: Item, codec: AudioCodec, path: str, first_part: int = 0) -> ConversationEntry:
        """A client's item as the conversation stores it: with an id, and its audio beside it."""
        changes: dict[str, object] = {}
        # Realtime: clients may choose ids, as livekit and pipecat do, and find their items by them.
        if item.id is UNSET or not item.id:
            changes["id"] = self._new_id("item")
        if "status" in item.__struct_fields__:
            changes |= {"object": "realtime.item", "status": "completed"}
        if isinstance(item, FunctionCallItem) and item.call_id is UNSET:
            changes["call_id"] = self._new_id("call")
        if not isinstance(item, MessageItem):
            return ConversationEntry(structs.replace(item, **changes))
        recordings = {}
        for index, part in enumerate(item.content):
            recording = self._item_audio(part, codec, f"{path}.content[{first_part + index}]")
            if recording is not None:
                recordings[index] = recording
        content = without_audio(item.content) if recordings else item.content
        return ConversationEntry(structs.replace(item, **changes, content=content), recordings)

    def _item_audio(self, part: Part, codec: AudioCodec, path: str) -> ItemAudio | None:
        capabilities: Capabilities = self._config.capabilities
        match part:
            # Realtime reference: `conversation.item.create` can't create audio of the assistant.
            case OutputAudio():
                raise ClientError(
                    "Assistant audio can't be created by clients. Send the transcript as 'output_text'.",
                    code="invalid_value",
                    param=f"{path}.type",
                )
            case InputImage() if not capabilities.images:
                raise unsupported_parameter(f"{path}.image_url", self._config.model)
            case InputAudio() if isinstance(part.audio, bytes):
                if not has_audio_input(capabilities):
                    raise audio_unsupported(self._config.model)
                pcm = SampleAligner().align(part.audio) if codec.decode is None else codec.decode(part.audio)
                return ItemAudio(codec.rate_hz, pcm, len(pcm), None, part.transcript if isinstance(part.transcript, str) else None)
            case _:
                return None

    def _check_references(self, item: Item) -> None:
        """
        Check that the call or approval request that an item answers exists.

        Raises:
            ClientError: it doesn't.
        """
        match item:
            case FunctionCallOutputItem():
                self._check_call_exists(item, "item")
            case McpApprovalResponseItem(approval_request_id=request_id) if not self._conversation.has_approval_request(request_id):
                raise ClientError(
                    f"Approval request with id '{shorten(request_id)}' not found in conversation.",
                    code="invalid_value",
                    param="item.approval_request_id",
                )
            case McpApprovalResponseItem(approval_request_id=request_id) if self._conversation.has_approval_answer(request_id):
                raise ClientError(
                    f"Approval request '{shorten(request_id)}' has been answered already.",
                    code="invalid_value",
                    param="item.approval_request_id",
                )
            case _:
                pass

    def _check_call_exists(self, item: FunctionCallOutputItem, path: str) -> None:
        if not self._conversation.has_call(item.call_id):
            raise ClientError(
                f"Tool call ID '{shorten(item.call_id)}' not found in conversation.", code="invalid_tool_call_id", param=f"{path}.call_id"
            )


def _encoded_bytes(item_audio: ItemAudio, format: Maybe[Format]) -> int:
    codec = codec_of(format)
    if codec.rate_hz != item_audio.rate_hz:
        return 0
    return item_audio.heard_bytes if codec.decode is None else item_audio.heard_bytes // 2  # G.711 has one byte a sample


def _encode_audio(item_audio: ItemAudio, format: Maybe[Format]) -> bytes:
    if codec_of(format).rate_hz != item_audio.rate_hz:
        return b""
    return AUDIO_ENCODERS[getattr(format, "type", "audio/pcm")](bytes(item_audio.pcm))


def check_event_size(value: Wire, path: str) -> None:
    """
    Check that what a client sets fits into the one event that reports it.

    Raises:
        ClientError: it is too large.
    """
    length_bytes = len(encode(value))
    if length_bytes > EVENT_LIMIT_BYTES:
        raise ClientError(
            f"Invalid '{path}': {length_bytes} bytes are too many. The maximum is {EVENT_LIMIT_BYTES} bytes.",
            code="string_above_max_length",
            param=path,
        )
