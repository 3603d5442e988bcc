"""
A live conversation: its items in order, the audio behind them, and the history that a model gets of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from operator import itemgetter
from typing import NamedTuple

from msgspec import UNSET, Struct, field, structs

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import events, history
from antiphon.errors import ClientError, shorten
from antiphon.protocols.call_results import place_results
from antiphon.protocols.tool_loop import denial
from antiphon.tool_api import mcp_function_name
from antiphon.wire.codec.types import Maybe
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    MessageItem,
    OutputAudio,
    OutputText,
    Part,
)

AUDIO_LIMIT_BYTES = 48 << 20
"""
How much audio a conversation keeps, some 17 minutes at 24 kHz. Beyond it, the oldest items keep their transcripts only.
"""

IMAGE_LIMIT_CHARACTERS = 64 << 10
"""The longest URL of an image that is echoed to the client."""

ROOT_ITEM_ID = "root"
"""The `previous_item_id` with which a client puts an item first."""


class ItemAudio(Struct):
    """
    The audio of an item, from the user or the model.

    Attributes:
        pcm: s16le; empty once it was evicted.
        length_bytes: of all of it, evicted or not.
        turn_id: the engine's id for it, if the engine heard it live.
        transcript_chunks: of model audio, each with its offset in the audio, in bytes.
        truncated_at_ms: where the client stopped listening; None if it heard all.
    """

    rate_hz: int
    pcm: bytes | bytearray = b""
    length_bytes: int = 0
    turn_id: str | None = None
    transcript: str | None = None
    transcript_chunks: list[tuple[int, str]] = field(default_factory=list)
    truncated_at_ms: int | None = None

    @property
    def full_length_ms(self) -> int:
        """The whole length, rounded up: clients that report having heard everything round up too."""
        return ceil(duration_ms(self.length_bytes, self.rate_hz))

    @property
    def length_ms(self) -> int:
        """The length up to where it was truncated."""
        return self.full_length_ms if self.truncated_at_ms is None else min(self.full_length_ms, self.truncated_at_ms)

    @property
    def heard_bytes(self) -> int:
        """How much audio there is up to where it was truncated, evicted or not."""
        end_ms = self.truncated_at_ms
        return self.length_bytes if end_ms is None else min(self.length_bytes, size_bytes(end_ms, self.rate_hz))

    def append(self, pcm: bytes) -> None:
        """Add audio; after a truncation it is only counted."""
        self.length_bytes += len(pcm)
        if self.truncated_at_ms is not None:
            return
        if not isinstance(self.pcm, bytearray):
            self.pcm = bytearray(self.pcm)
        self.pcm += pcm

    def heard_transcript(self) -> str:
        """The transcript up to where the client stopped listening."""
        if self.truncated_at_ms is None:
            return "".join(text for _, text in self.transcript_chunks)
        end = size_bytes(self.truncated_at_ms, self.rate_hz)
        return "".join(text for _, text in self.transcript_chunks[: bisect_left(self.transcript_chunks, end, key=itemgetter(0))])

    def truncate(self, at_ms: int) -> None:
        """Drop the audio after `at_ms`: it was not heard."""
        self.truncated_at_ms = at_ms
        self.pcm = self.pcm[: size_bytes(at_ms, self.rate_hz)]


class HistoryCache(NamedTuple):
    """
    The history that was made of an item, so that a long conversation is not converted again for every response.

    Attributes:
        item: what it was made of; so are `with_audio` and `audio_state`.
    """

    item: Item
    with_audio: bool
    audio_state: list[tuple[str | None, int | None, int]]
    history_items: list[history.HistoryItem]


class ConversationEntry(Struct):
    """
    An item of the conversation.

    Attributes:
        item: as the client saw it last, with its id; replaced, never changed in place.
        audio_by_part: by the index of the content part.
        is_open: whether it is still being produced; it is then left out of the history.
        history_cache: what it was converted to last.
    """

    item: Item
    audio_by_part: dict[int, ItemAudio] = field(default_factory=dict)
    is_open: bool = False
    history_cache: HistoryCache | None = None

    @property
    def audio_bytes(self) -> int:
        """How much audio is kept of it."""
        return sum(len(recording.pcm) for recording in self.audio_by_part.values())


class ConversationItems:
    """Items in order, each with a unique id."""

    def __init__(self) -> None:
        self._entries: dict[str, ConversationEntry] = {}
        self._order: list[str] = []
        # How much audio each item keeps, oldest first. Items in `_growing_ids` may still grow and are not counted yet.
        self._audio_bytes_by_item: dict[str, int] = {}
        self._audio_bytes = 0
        self._growing_ids: list[str] = []

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def __iter__(self) -> Iterator[ConversationEntry]:
        return (self._entries[item_id] for item_id in self._order)

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str, action: str) -> ConversationEntry:
        """
        The item of that id.

        Args:
            action: `delete`, `retrieve` or `truncate`, for the error message.

        Raises:
            ClientError: there is none.
        """
        entry = self._entries.get(item_id)
        if entry is None:
            # The original's codes: pipecat goes on after the one for `retrieve`, and stops reading after most others.
            raise ClientError(
                f"Error {_ACTION_GERUNDS[action]} item: the item with id '{shorten(item_id)}' does not exist.",
                code=f"item_{action}_invalid_item_id",
            )
        return entry

    def find(self, item_id: str) -> ConversationEntry | None:
        """The item of that id, if there is one."""
        return self._entries.get(item_id)

    def check_position(self, item_id: str, previous_id: str | None) -> None:
        """
        Check that an item of that id can be added after another.

        Raises:
            ClientError: the id exists already, or the other item doesn't.
        """
        # It would never be found again: as the previous item's id it stands for the beginning.
        if item_id == ROOT_ITEM_ID:
            raise ClientError(f"Error adding item: no item can have the id '{ROOT_ITEM_ID}'.", code="invalid_value", param="item.id")
        if item_id in self._entries:
            raise duplicate_item_id(item_id)
        if previous_id not in (None, ROOT_ITEM_ID) and previous_id not in self._entries:
            raise ClientError(
                f"Error adding item: the previous item with id '{shorten(previous_id)}' does not exist.",
                code="item_create_invalid_previous_item_id",
            )

    def add(self, entry: ConversationEntry, previous_id: str | None = None) -> str | None:
        """
        Add an item after another, or at the end.

        Returns:
            The id of the item before it; None if it is the first.

        Raises:
            ClientError: as `check_position`.
        """
        item_id = str(entry.item.id)
        self.check_position(item_id, previous_id)
        # Realtime: null or absent is the end, `root` the beginning.
        position = len(self._order) if previous_id is None else 0 if previous_id == ROOT_ITEM_ID else self._order.index(previous_id) + 1
        self._entries[item_id] = entry
        self._order.insert(position, item_id)
        self._growing_ids.append(item_id)
        self._evict_audio()
        return self._order[position - 1] if position else None

    def previous_id(self, item_id: str) -> str | None:
        """The id of the item before another; None if that is the first, or does not exist."""
        if item_id not in self._entries:
            return None
        position = self._order.index(item_id)
        return self._order[position - 1] if position else None

    def delete(self, item_id: str) -> None:
        """
        Delete an item.

        Raises:
            ClientError: there is none.
        """
        self.get(item_id, "delete")
        del self._entries[item_id]
        self._order.remove(item_id)
        self._audio_bytes -= self._audio_bytes_by_item.pop(item_id, 0)
        if item_id in self._growing_ids:
            self._growing_ids.remove(item_id)

    def has_call(self, call_id: str) -> bool:
        """Whether there is a function call with that id."""
        return any(isinstance(entry.item, FunctionCallItem) and entry.item.call_id == call_id for entry in self)

    def has_approval_request(self, request_id: str) -> bool:
        """Whether there is an MCP approval request with that id."""
        entry = self._entries.get(request_id)
        return entry is not None and isinstance(entry.item, McpApprovalRequestItem)

    def has_approval_answer(self, request_id: str) -> bool:
        """Whether the MCP approval request with that id has been answered."""
        answers = (McpApprovalResponseItem, McpCallItem)
        return any(isinstance(entry.item, answers) and entry.item.approval_request_id == request_id for entry in self)

    def approval_request(self, request_id: str) -> McpApprovalRequestItem:
        """The MCP approval request with that id, which there is."""
        item = self._entries[request_id].item
        assert isinstance(item, McpApprovalRequestItem)
        return item

    def _evict_audio(self) -> None:
        growing = {item_id: self._entries[item_id] for item_id in self._growing_ids}
        self._growing_ids = [item_id for item_id, entry in growing.items() if entry.is_open]
        for item_id, entry in growing.items():
            if not entry.is_open and (size := entry.audio_bytes):
                self._audio_bytes_by_item[item_id] = size
                self._audio_bytes += size
        growing_bytes = sum(growing[item_id].audio_bytes for item_id in self._growing_ids)
        while self._audio_bytes_by_item and self._audio_bytes + growing_bytes > AUDIO_LIMIT_BYTES:
            oldest = next(iter(self._audio_bytes_by_item))
            self._audio_bytes -= self._audio_bytes_by_item.pop(oldest)
            for recording in self._entries[oldest].audio_by_part.values():
                recording.pcm = b""


def duplicate_item_id(item_id: str) -> ClientError:
    """The error for an item whose id another one has."""
    return ClientError(
        f"Error adding item: an item with id '{shorten(item_id)}' already exists.",
        code="item_create_duplicate_item_id",  # livekit looks for it
    )


_ACTION_GERUNDS = {"delete": "deleting", "retrieve": "retrieving", "truncate": "truncating"}


# History for a model


def engine_history(entries: Iterable[ConversationEntry], *, with_audio: bool) -> tuple[history.HistoryItem, ...]:
    """
    The conversation for an engine, without open items.

    Args:
        with_audio: whether the engine takes audio; if not, it gets the transcripts.
    """
    history_items: list[history.HistoryItem] = []
    approvals: dict[str, McpApprovalRequestItem] = {}
    for entry in entries:
        if isinstance(entry.item, McpApprovalRequestItem):
            approvals[str(entry.item.id)] = entry.item
        elif isinstance(entry.item, McpApprovalResponseItem):
            history_items += _denied_call(approvals.get(entry.item.approval_request_id), entry.item)
        elif not entry.is_open:
            history_items += _entry_history(entry, with_audio=with_audio)
    return tuple(place_results(history_items))


def _denied_call(request: McpApprovalRequestItem | None, response: McpApprovalResponseItem) -> list[history.HistoryItem]:
    """What the model reads of a call that was not approved; one that was is told by its own item."""
    if request is None or response.approve:
        return []
    id, name = _text_or_empty(request.id), mcp_function_name(request.server_label, request.name)
    return [
        history.ToolCall(id, name, request.arguments, namespace=request.server_label),
        history.ToolResult(id, (denial(_text_or_empty(response.reason)),)),
    ]


def _entry_history(entry: ConversationEntry, *, with_audio: bool) -> list[history.HistoryItem]:
    audio_state = [(recording.transcript, recording.truncated_at_ms, len(recording.pcm)) for recording in entry.audio_by_part.values()]
    cache = entry.history_cache
    if cache is None or cache.item is not entry.item or cache.with_audio is not with_audio or cache.audio_state != audio_state:
        cache = entry.history_cache = HistoryCache(entry.item, with_audio, audio_state, _convert_entry(entry, with_audio=with_audio))
    return cache.history_items


def _convert_entry(entry: ConversationEntry, *, with_audio: bool) -> list[history.HistoryItem]:
    item = entry.item
    match item:
        case MessageItem():
            role: history.Role = item.role
            parts = [
                part for index, content in enumerate(item.content) if (part := _history_part(entry, index, content, with_audio=with_audio))
            ]
            heard_ms = next((recording.truncated_at_ms for recording in entry.audio_by_part.values()), None)
            return [history.Message(role, tuple(parts), played_ms=heard_ms)] if parts else []
        case FunctionCallItem():
            return [history.ToolCall(_text_or_empty(item.call_id) or _text_or_empty(item.id), item.name, item.arguments)]
        case FunctionCallOutputItem():
            return [history.ToolResult(item.call_id, (history.TextPart(item.output),))]
        case McpCallItem():
            outcome = _text_or_empty(item.output) if not item.error else f"The call failed: {item.error.message}"
            name = mcp_function_name(item.server_label, item.name)
            return [
                history.ToolCall(_text_or_empty(item.id), name, item.arguments, namespace=item.server_label),
                history.ToolResult(_text_or_empty(item.id), (history.TextPart(outcome),)),
            ]
        case _:  # MCP tool lists, approval requests and their answers
            return []


def _history_part(entry: ConversationEntry, index: int, content: Part, *, with_audio: bool) -> history.HistoryPart | None:
    recording = entry.audio_by_part.get(index)
    match content:
        case InputText() | OutputText():
            return history.TextPart(_text_or_empty(content.text))
        case InputImage():
            return history.ImagePart(url=_text_or_empty(content.image_url), detail=_text_or_empty(content.detail) or "auto")
        case InputAudio() if with_audio and recording is not None and (recording.pcm or (recording.turn_id and recording.length_bytes)):
            # The engine that heard the turn live may still know audio that was evicted here.
            return history.SpeechPart(bytes(recording.pcm), recording.rate_hz, recording.turn_id, recording.transcript)
        case InputAudio():
            text = (recording.transcript if recording else None) or _text_or_empty(content.transcript)
            return history.TextPart(text) if text else None
        case OutputAudio():
            text = recording.heard_transcript() if recording is not None else _text_or_empty(content.transcript)
            return history.TextPart(text) if text else None


def _text_or_empty(value: Maybe[str]) -> str:
    return value if isinstance(value, str) else ""


# Items for a client


def without_large_images(item: Item) -> Item:
    """The item as the client sees it: large images are not sent back."""
    if not isinstance(item, MessageItem) or not any(map(_is_large, item.content)):
        return item
    content = [structs.replace(part, image_url=UNSET) if _is_large(part) else part for part in item.content]
    return structs.replace(item, content=content)


def _is_large(part: Part) -> bool:
    return isinstance(part, InputImage) and len(part.image_url or "") > IMAGE_LIMIT_CHARACTERS


def recordings_to_show(entry: ConversationEntry) -> dict[int, ItemAudio]:
    """The audio that a client can retrieve, by the index of its part: an open response may have audio before it has content."""
    content = entry.item.content if isinstance(entry.item, MessageItem) else []
    audio_parts = [index for index, part in enumerate(content) if isinstance(part, InputAudio | OutputAudio)]
    return {index: entry.audio_by_part[index] for index in audio_parts if index in entry.audio_by_part}


def item_with_audio(entry: ConversationEntry, encode: Callable[[ItemAudio], bytes]) -> Item:
    """
    The item with its audio, for `conversation.item.retrieve`.

    Args:
        encode: encodes audio for the client.
    """
    item = without_large_images(entry.item)
    audio_by_part = {index: audio for index, recording in recordings_to_show(entry).items() if (audio := encode(recording))}
    if not isinstance(item, MessageItem) or not audio_by_part:
        return item
    parts = enumerate(item.content)
    content = [structs.replace(part, audio=audio_by_part[index]) if index in audio_by_part else part for index, part in parts]
    return structs.replace(item, content=content)


def without_audio(contents: Sequence[Part]) -> list[Part]:
    """The parts without their audio, which is stored beside the item and not sent back."""
    return [structs.replace(content, audio=UNSET) if isinstance(content, InputAudio | OutputAudio) else content for content in contents]


def text_token_counts(usage: events.Usage) -> tuple[int, int]:
    """The text tokens of input and output: those that are neither audio nor images."""
    return (
        max(0, usage.input_tokens - usage.input_audio_tokens - usage.input_image_tokens),
        max(0, usage.output_tokens - usage.output_audio_tokens),
    )
