"""
A live conversation: its items in order, what is known of them beyond what is told, and what of them a model is given.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from msgspec import UNSET, Struct, field, structs

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import events, history
from antiphon.errors import ClientError, shorten
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    McpApprovalRequestItem,
    McpCallItem,
    MessageItem,
    OutputAudio,
    OutputText,
)

AUDIO_LIMIT_BYTES = 48 << 20
"""How much sound a conversation remembers, some 17 minutes at 24 kHz; beyond it, the oldest items keep their words only."""

NO_RESULT_TEXT = "There is no result yet."
"""What a model is told of a call that has not returned."""

IMAGE_LIMIT_CHARACTERS = 64 << 10
"""The longest URL of a picture that is sent back to whoever sent it."""

ROOT_ITEM_ID = "root"
"""Where a client says that an item goes first of all."""


class ItemAudio(Struct):
    """
    The sound of an item, from the person or the model.

    Attributes:
        pcm: s16le; empty where it is forgotten.
        length_bytes: how much there was, forgotten or not.
        turn_id: the engine's name for it, where it heard it live.
        words: of an answer, each with where in the sound, in bytes, it begins.
        cut_ms: where the client stopped listening; None where it heard all.
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
        """How long it is, a millisecond that has begun counted as one: that is how clients count it who say that they heard it all."""
        return ceil(duration_ms(self.length_bytes, self.rate_hz))

    @property
    def length_ms(self) -> int:
        """How long it is to whoever listens."""
        return self.full_length_ms if self.truncated_at_ms is None else min(self.full_length_ms, self.truncated_at_ms)

    def append(self, pcm: bytes) -> None:
        """More sound; what comes after the client stopped listening is only counted."""
        self.length_bytes += len(pcm)
        if self.truncated_at_ms is not None:
            return
        if not isinstance(self.pcm, bytearray):
            self.pcm = bytearray(self.pcm)
        self.pcm += pcm

    def heard_transcript(self) -> str:
        """The words that had begun when the client stopped listening."""
        if self.truncated_at_ms is None:
            return "".join(text for _, text in self.transcript_chunks)
        end = size_bytes(self.truncated_at_ms, self.rate_hz)
        return "".join(text for _, text in self.transcript_chunks[: bisect_left(self.transcript_chunks, end, key=lambda word: word[0])])

    def truncate(self, at_ms: int) -> None:
        """The client stopped listening there."""
        self.truncated_at_ms = at_ms
        self.pcm = self.pcm[: size_bytes(at_ms, self.rate_hz)]


class HistoryCache(NamedTuple):
    """
    What a model was given of an item, so that a long conversation is not told anew at every answer.

    Attributes:
        item: that it was made of; likewise `hears` and `sounds`, what there was to hear.
    """

    item: Any
    with_audio: bool
    audio_state: list[tuple[str | None, int | None, int]]
    history_items: list[history.HistoryItem]


class ConversationEntry(Struct):
    """
    An item of the conversation.

    Attributes:
        item: as it was told last; replaced, never changed.
        recordings: by the index of the content part whose sound they are.
        is_open: whether it is still being answered; a model is not given it then.
        given: as it was last.
    """

    item: Any
    audio_by_part: dict[int, ItemAudio] = field(default_factory=dict)
    is_open: bool = False
    history_cache: HistoryCache | None = None

    @property
    def audio_bytes(self) -> int:
        """The sound that is remembered of it."""
        return sum(len(recording.pcm) for recording in self.audio_by_part.values())


class ConversationItems:
    """Items in order, each with an id of its own."""

    def __init__(self) -> None:
        self._entries: dict[str, ConversationEntry] = {}
        self._order: list[str] = []
        # Whose sound is remembered, the oldest first, and how much; what stands last may still be growing and is not counted yet.
        self._audio_bytes_by_item: dict[str, int] = {}
        self._audio_bytes = 0
        self._growing_ids: list[str] = []

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def __iter__(self) -> Iterator[ConversationEntry]:
        return (self._entries[item_id] for item_id in self._order)

    @property
    def last_id(self) -> str | None:
        """The id of the item that stands last."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str, action: str) -> ConversationEntry:
        """
        The item of that id.

        Args:
            action: what is about to be done: `delete`, `retrieve` or `truncate`.

        Raises:
            ClientError: there is none.
        """
        entry = self._entries.get(item_id)
        if entry is None:
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
        Ask whether an item of that id may stand behind another.

        Raises:
            ClientError: there is one of that id, or no such other.
        """
        if item_id in self._entries:
            raise ClientError(
                f"Error adding item: an item with id '{shorten(item_id)}' already exists.", code="item_create_duplicate_item_id"
            )
        if previous_id not in (None, ROOT_ITEM_ID) and previous_id not in self._entries:
            raise ClientError(
                f"Error adding item: the previous item with id '{shorten(previous_id)}' does not exist.",
                code="item_create_invalid_previous_item_id",
            )

    def add(self, entry: ConversationEntry, previous_id: str | None = None) -> str | None:
        """
        Put an item behind another, or last of all.

        Returns:
            The id of the item that it stands behind; None where it stands first.

        Raises:
            ClientError: as `check_place`.
        """
        item_id = entry.item.id
        self.check_position(item_id, previous_id)
        at = len(self._order) if previous_id is None else 0 if previous_id == ROOT_ITEM_ID else self._order.index(previous_id) + 1
        self._entries[item_id] = entry
        self._order.insert(at, item_id)
        self._growing_ids.append(item_id)
        self._evict_audio()
        return self._order[at - 1] if at else None

    def previous_id(self, item_id: str) -> str | None:
        """The id of the item that one stands behind; None where it stands first, or is none."""
        if item_id not in self._entries:
            return None
        at = self._order.index(item_id)
        return self._order[at - 1] if at else None

    def delete(self, item_id: str) -> None:
        """
        Take an item away.

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
        """Whether a function was called under that id."""
        return any(isinstance(entry.item, FunctionCallItem) and entry.item.call_id == call_id for entry in self)

    def has_approval_request(self, request_id: str) -> bool:
        """Whether leave was asked for under that id."""
        found = self._entries.get(request_id)
        return found is not None and isinstance(found.item, McpApprovalRequestItem)

    def _evict_audio(self) -> None:
        growing = {item_id: self._entries[item_id] for item_id in self._growing_ids}
        self._growing_ids = [item_id for item_id, entry in growing.items() if entry.is_open]
        for item_id, entry in growing.items():
            if not entry.is_open and (size := entry.audio_bytes):
                self._audio_bytes_by_item[item_id] = size
                self._audio_bytes += size
        still_bytes = sum(growing[item_id].audio_bytes for item_id in self._growing_ids)
        while self._audio_bytes_by_item and self._audio_bytes + still_bytes > AUDIO_LIMIT_BYTES:
            oldest = next(iter(self._audio_bytes_by_item))
            self._audio_bytes -= self._audio_bytes_by_item.pop(oldest)
            for recording in self._entries[oldest].audio_by_part.values():
                recording.pcm = b""


_ACTION_GERUNDS = {"delete": "deleting", "retrieve": "retrieving", "truncate": "truncating"}


# What a model is given


def engine_history(entries: Iterable[ConversationEntry], *, with_audio: bool) -> tuple[history.HistoryItem, ...]:
    """
    What has been said, for an engine.

    Args:
        hears: whether it takes sound; else it is given the words of it.
    """
    said: list[history.HistoryItem] = []
    for entry in entries:
        if not entry.is_open:
            said += _entry_history(entry, with_audio=with_audio)
    return tuple(_with_results(said))


def _entry_history(entry: ConversationEntry, *, with_audio: bool) -> list[history.HistoryItem]:
    sounds = [(recording.transcript, recording.truncated_at_ms, len(recording.pcm)) for recording in entry.audio_by_part.values()]
    given = entry.history_cache
    if given is None or given.item is not entry.item or given.with_audio is not with_audio or given.audio_state != sounds:
        given = entry.history_cache = HistoryCache(entry.item, with_audio, sounds, _convert_entry(entry, with_audio=with_audio))
    return given.history_items


def _with_results(history_items: list[history.HistoryItem]) -> Iterator[history.HistoryItem]:
    """
    Turns in which every call has its result right behind it.

    A person goes on speaking while a function runs, but most models are told of a call only together with its result.
    """
    results = {turn.call_id: turn for turn in history_items if isinstance(turn, history.ToolResult)}
    called = {turn.call_id for turn in history_items if isinstance(turn, history.ToolCall)}
    for turn in history_items:
        if not isinstance(turn, history.ToolResult) or turn.call_id not in called:
            yield turn
        if isinstance(turn, history.ToolCall):
            yield results.get(turn.call_id) or history.ToolResult(turn.call_id, (history.TextPart(NO_RESULT_TEXT),))


def _convert_entry(entry: ConversationEntry, *, with_audio: bool) -> list[history.HistoryItem]:
    item: Item = entry.item
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
            outcome = _text_or_empty(item.output)
            return [
                history.ToolCall(_text_or_empty(item.id), item.name, item.arguments),
                history.ToolResult(_text_or_empty(item.id), (history.TextPart(outcome),)),
            ]
        case _:  # lists of tools, and what was asked and answered about them
            return []


def _history_part(entry: ConversationEntry, index: int, content: Any, *, with_audio: bool) -> history.HistoryPart | None:
    recording = entry.audio_by_part.get(index)
    match content:
        case InputText() | OutputText():
            return history.TextPart(_text_or_empty(content.text))
        case InputImage():
            return history.ImagePart(url=_text_or_empty(content.image_url), detail=_text_or_empty(content.detail) or "auto")
        case InputAudio() if with_audio and recording is not None and (recording.pcm or (recording.turn_id and recording.length_bytes)):
            # Whose sound is forgotten may yet be known to the engine that heard it.
            return history.SpeechPart(bytes(recording.pcm), recording.rate_hz, recording.turn_id, recording.transcript)
        case InputAudio():
            words = (recording.transcript if recording else None) or _text_or_empty(content.transcript)
            return history.TextPart(words) if words else None
        case OutputAudio():
            words = recording.heard_transcript() if recording is not None else _text_or_empty(content.transcript)
            return history.TextPart(words) if words else None
        case _:
            return None


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


# What a client is told


def without_large_images(item: Item) -> Item:
    """An item as it is told: a picture that is large is not sent back."""
    if not isinstance(item, MessageItem) or not any(map(_is_large, item.content)):
        return item
    content = [structs.replace(part, image_url=UNSET) if _is_large(part) else part for part in item.content]
    return structs.replace(item, content=content)


def _is_large(part: Any) -> bool:
    return isinstance(part, InputImage) and len(part.image_url or "") > IMAGE_LIMIT_CHARACTERS


def item_with_audio(entry: ConversationEntry, encode: Callable[[ItemAudio], bytes], max_bytes: int) -> Item:
    """
    An item with its sound, as it is told on request alone.

    Args:
        encode: sound as the client takes it.
        most_bytes: of sound; what is more than that is left out, as no client takes messages without end.
    """
    item = without_large_images(entry.item)
    if not isinstance(item, MessageItem) or not entry.audio_by_part:
        return item
    contents: list[Any] = list(item.content)
    for index, part in enumerate(item.content):  # an answer that is being said may have sound before it has content
        sound = encode(entry.audio_by_part[index]) if index in entry.audio_by_part else b""
        if sound and len(sound) <= max_bytes and isinstance(part, InputAudio | OutputAudio):
            contents[index] = structs.replace(part, audio=sound)
            max_bytes -= len(sound)
    return structs.replace(item, content=contents)


def without_audio(contents: Sequence[Any]) -> list[Any]:
    """Content as it is kept: its sound is kept beside it, and not sent back."""
    return [structs.replace(content, audio=UNSET) if isinstance(content, InputAudio | OutputAudio) else content for content in contents]


def text_token_counts(usage: events.Usage) -> tuple[int, int]:
    """Input and output tokens that are text: what is neither sound nor picture."""
    return (
        max(0, usage.input_tokens - usage.input_audio_tokens - usage.input_image_tokens),
        max(0, usage.output_tokens - usage.output_audio_tokens),
    )
