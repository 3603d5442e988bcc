"""What a client does to the items of a Realtime conversation: create, retrieve, truncate, delete."""

from typing import Any

from msgspec import UNSET, structs

from antiphon.audio import Samples
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.history import Turn
from antiphon.errors import ClientMistake, shown, unsupported_parameter
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.realtime.conversation import Conversation, Entry, Recording, history, shown_with_sound, told, without_sound
from antiphon.protocols.realtime.input_audio import deaf
from antiphon.protocols.realtime.input_buffer import Coding
from antiphon.protocols.realtime.response import ENCODE, TOLD_LIMIT_BYTES, cut_short
from antiphon.protocols.realtime.settings import Opening, can_hear, coding_of
from antiphon.protocols.session import Mint
from antiphon.wire.codec.types import encode
from antiphon.wire.realtime import client_events as client, server_events as events
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputItem,
    Item,
    ItemReference,
    McpApprovalResponseItem,
    MessageItem,
    OutputAudio,
)


class Items:
    """The client's hand on the conversation."""

    def __init__(self, opening: Opening, outbox: Outbox, mint: Mint, conversation: Conversation) -> None:
        self._opening = opening
        self._outbox = outbox
        self._mint = mint
        self._conversation = conversation

    def create(self, event: client.ConversationItemCreate, coding: Coding) -> None:
        """
        Add an item.

        Args:
            coding: of the sound in it.

        Raises:
            ClientMistake: it can't be one, or not there; nothing was added.
        """
        previous_id = event.previous_item_id if isinstance(event.previous_item_id, str) else None
        entry = self._entry(event.item, coding, "item")
        self._check_belongs(entry.item)
        item = told(entry.item)
        check_told(item, "item")
        behind = self._conversation.add(entry, previous_id)
        self._outbox.send(events.ConversationItemAdded, previous_item_id=behind, item=item)
        self._outbox.send(events.ConversationItemDone, previous_item_id=behind, item=item)

    def retrieve(self, event: client.ConversationItemRetrieve, format: Any) -> None:
        """
        Show an item with its sound, unless that is of another rate.

        Args:
            format: of the person's sound, or of the model's.

        Raises:
            ClientMistake: there is none of that id.
        """
        entry = self._conversation.get(event.item_id, "retrieve")
        room = TOLD_LIMIT_BYTES - len(encode(told(entry.item)))
        item = shown_with_sound(entry, lambda recording: _encoded(recording, format), room * 3 // 4)
        self._outbox.send(events.ConversationItemRetrieved, item=item)

    def is_answer(self, item_id: str) -> bool:
        """Whether an item is what the model said."""
        entry = self._conversation.find(item_id)
        return entry is not None and getattr(entry.item, "role", None) == "assistant"

    def truncate(self, event: client.ConversationItemTruncate) -> None:
        """
        The client stopped listening in the middle of an answer.

        Raises:
            ClientMistake: that is no answer that was heard, or it ended before.
        """
        entry = self._conversation.get(event.item_id, "truncate")
        recording = entry.recordings.get(event.content_index)
        if recording is None or not recording.length_bytes or getattr(entry.item, "role", None) != "assistant":
            raise ClientMistake("Only model output audio messages can be truncated", code="unsupported_content_type")
        if event.audio_end_ms > recording.whole_ms:
            raise ClientMistake(
                f"Audio content of {recording.whole_ms}ms is already shorter than {event.audio_end_ms}ms",
                code="invalid_value",
                param="audio_end_ms",
            )
        self._cut(entry, event.content_index, event.audio_end_ms)

    def cut(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """The server stopped playing in the middle of an answer; nothing, where that is not of the conversation or not there any more."""
        entry = self._conversation.find(item_id)
        if entry is not None and content_index in entry.recordings:
            self._cut(entry, content_index, heard_ms)

    def _cut(self, entry: Entry, content_index: int, at_ms: int) -> None:
        recording = entry.recordings[content_index]
        # Two that both stop an answer, as client and server do at an interruption, are both right: the earlier stop holds.
        recording.cut(min(at_ms, recording.length_ms))
        if not entry.is_open:
            entry.item = cut_short(entry.item, entry)
        self._outbox.send(
            events.ConversationItemTruncated, item_id=entry.item.id, content_index=content_index, audio_end_ms=recording.length_ms
        )

    def delete(self, event: client.ConversationItemDelete) -> None:
        """
        Take an item out of the conversation.

        Raises:
            ClientMistake: there is none of that id.
        """
        self._conversation.delete(event.item_id)
        self._outbox.send(events.ConversationItemDeleted, item_id=event.item_id)

    def history(self, given: list[InputItem] | None, coding: Coding) -> tuple[Turn, ...]:
        """
        What an answer reads: these items, or where none are given the conversation.

        Raises:
            ClientMistake: one of them can't be read.
        """
        hears = can_hear(self._opening.abilities)
        if given is None:
            return history(self._conversation, hears=hears)
        called = {item.call_id for item in given if isinstance(item, FunctionCallItem)}
        for index, item in enumerate(given):
            if isinstance(item, FunctionCallOutputItem) and item.call_id not in called:
                self._check_called(item, f"response.input[{index}]")
        return history([self._read(item, coding, f"response.input[{index}]") for index, item in enumerate(given)], hears=hears)

    def _read(self, item: InputItem, coding: Coding, path: str) -> Entry:
        if not isinstance(item, ItemReference):
            return self._entry(item, coding, path)
        entry = self._conversation.find(item.id)
        if entry is None:
            raise ClientMistake(f"Item with id '{shown(item.id)}' not found in conversation.", code="item_not_found", param=f"{path}.id")
        return entry

    def _entry(self, item: Item, coding: Coding, path: str) -> Entry:
        """An item of the client's as it is kept: with an id, and its sound beside it."""
        given: dict[str, Any] = {}
        if item.id is UNSET or not item.id:
            given["id"] = self._mint("item")
        if "status" in item.__struct_fields__:
            given |= {"object": "realtime.item", "status": "completed"}
        if isinstance(item, FunctionCallItem) and item.call_id is UNSET:
            given["call_id"] = self._mint("call")
        if not isinstance(item, MessageItem):
            return Entry(structs.replace(item, **given))
        recordings = {}
        for index, part in enumerate(item.content):
            recording = self._recorded(part, coding, f"{path}.content[{index}]")
            if recording is not None:
                recordings[index] = recording
        content = without_sound(item.content) if recordings else item.content
        return Entry(structs.replace(item, **given, content=content), recordings)

    def _recorded(self, part: Any, coding: Coding, place: str) -> Recording | None:
        abilities: Abilities = self._opening.abilities
        match part:
            case OutputAudio():
                raise ClientMistake(
                    "Assistant audio can't be created: only the model makes it. Send what was said as 'output_text'.",
                    code="invalid_value",
                    param=f"{place}.type",
                )
            case InputImage() if not abilities.images:
                raise unsupported_parameter(f"{place}.image_url", self._opening.model)
            case InputAudio() if isinstance(part.audio, bytes):
                if not can_hear(abilities):
                    raise deaf(self._opening.model)
                pcm = Samples().take(part.audio) if coding.decode is None else coding.decode(part.audio)
                return Recording(coding.rate_hz, pcm, len(pcm), None, part.transcript if isinstance(part.transcript, str) else None)
            case _:
                return None

    def _check_belongs(self, item: Item) -> None:
        """
        Ask whether what an item answers is there.

        Raises:
            ClientMistake: it isn't.
        """
        match item:
            case FunctionCallOutputItem():
                self._check_called(item, "item")
            case McpApprovalResponseItem(approval_request_id=request_id) if not self._conversation.has_approval_request(request_id):
                raise ClientMistake(
                    f"Approval request with id '{shown(request_id)}' not found in conversation.",
                    code="invalid_value",
                    param="item.approval_request_id",
                )
            case _:
                pass

    def _check_called(self, item: FunctionCallOutputItem, path: str) -> None:
        if not self._conversation.has_call(item.call_id):
            raise ClientMistake(
                f"Tool call ID '{shown(item.call_id)}' not found in conversation.", code="invalid_tool_call_id", param=f"{path}.call_id"
            )


def _encoded(recording: Recording, format: Any) -> bytes:
    if coding_of(format).rate_hz != recording.rate_hz:
        return b""
    return ENCODE[getattr(format, "type", "audio/pcm")](bytes(recording.pcm))


def check_told(value: Any, path: str) -> None:
    """
    Ask whether what a client sets can be told back to it in one event.

    Raises:
        ClientMistake: it is too long.
    """
    length_bytes = len(encode(value))
    if length_bytes > TOLD_LIMIT_BYTES:
        raise ClientMistake(
            f"Invalid '{path}': {length_bytes} bytes are too many. The maximum is {TOLD_LIMIT_BYTES} bytes.",
            code="string_above_max_length",
            param=path,
        )
