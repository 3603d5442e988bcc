"""
A live conversation: its items in order, what is known of them beyond what is told, and what of them a model is given.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from msgspec import UNSET, Struct, field, structs

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api import events as talk_events, history as turns
from antiphon.errors import ClientMistake, shown
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

SOUND_LIMIT_BYTES = 48 << 20
"""How much sound a conversation remembers, some 17 minutes at 24 kHz; beyond it, the oldest items keep their words only."""

NO_RESULT = "There is no result yet."
"""What a model is told of a call that has not returned."""

IMAGE_LIMIT_CHARACTERS = 64 << 10
"""The longest URL of a picture that is sent back to whoever sent it."""

ROOT = "root"
"""Where a client says that an item goes first of all."""


class Recording(Struct):
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
    words: list[tuple[int, str]] = field(default_factory=list)
    cut_ms: int | None = None

    @property
    def whole_ms(self) -> int:
        """How long it is, a millisecond that has begun counted as one: that is how clients count it who say that they heard it all."""
        return ceil(ms_of(self.length_bytes, self.rate_hz))

    @property
    def length_ms(self) -> int:
        """How long it is to whoever listens."""
        return self.whole_ms if self.cut_ms is None else min(self.whole_ms, self.cut_ms)

    def add(self, pcm: bytes) -> None:
        """More sound; what comes after the client stopped listening is only counted."""
        self.length_bytes += len(pcm)
        if self.cut_ms is not None:
            return
        if not isinstance(self.pcm, bytearray):
            self.pcm = bytearray(self.pcm)
        self.pcm += pcm

    def heard(self) -> str:
        """The words that had begun when the client stopped listening."""
        if self.cut_ms is None:
            return "".join(text for _, text in self.words)
        end = bytes_of(self.cut_ms, self.rate_hz)
        return "".join(text for _, text in self.words[: bisect_left(self.words, end, key=lambda word: word[0])])

    def cut(self, at_ms: int) -> None:
        """The client stopped listening there."""
        self.cut_ms = at_ms
        self.pcm = self.pcm[: bytes_of(at_ms, self.rate_hz)]


class Given(NamedTuple):
    """
    What a model was given of an item, so that a long conversation is not told anew at every answer.

    Attributes:
        item: that it was made of; likewise `hears` and `sounds`, what there was to hear.
    """

    item: Any
    hears: bool
    sounds: list[tuple[str | None, int | None, int]]
    turns: list[turns.Turn]


class Entry(Struct):
    """
    An item of the conversation.

    Attributes:
        item: as it was told last; replaced, never changed.
        recordings: by the index of the content part whose sound they are.
        is_open: whether it is still being answered; a model is not given it then.
        given: as it was last.
    """

    item: Any
    recordings: dict[int, Recording] = field(default_factory=dict)
    is_open: bool = False
    given: Given | None = None

    @property
    def sound_bytes(self) -> int:
        """The sound that is remembered of it."""
        return sum(len(recording.pcm) for recording in self.recordings.values())


class Conversation:
    """Items in order, each with an id of its own."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        # Whose sound is remembered, the oldest first, and how much; what stands last may still be growing and is not counted yet.
        self._sounding: dict[str, int] = {}
        self._sound_bytes = 0
        self._growing: list[str] = []

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[item_id] for item_id in self._order)

    @property
    def last_id(self) -> str | None:
        """The id of the item that stands last."""
        return self._order[-1] if self._order else None

    def get(self, item_id: str, action: str) -> Entry:
        """
        The item of that id.

        Args:
            action: what is about to be done: `delete`, `retrieve` or `truncate`.

        Raises:
            ClientMistake: there is none.
        """
        entry = self._entries.get(item_id)
        if entry is None:
            raise ClientMistake(
                f"Error {_DOING[action]} item: the item with id '{shown(item_id)}' does not exist.",
                code=f"item_{action}_invalid_item_id",
            )
        return entry

    def find(self, item_id: str) -> Entry | None:
        """The item of that id, if there is one."""
        return self._entries.get(item_id)

    def check_place(self, item_id: str, previous_id: str | None) -> None:
        """
        Ask whether an item of that id may stand behind another.

        Raises:
            ClientMistake: there is one of that id, or no such other.
        """
        if item_id in self._entries:
            raise ClientMistake(
                f"Error adding item: an item with id '{shown(item_id)}' already exists.", code="item_create_duplicate_item_id"
            )
        if previous_id not in (None, ROOT) and previous_id not in self._entries:
            raise ClientMistake(
                f"Error adding item: the previous item with id '{shown(previous_id)}' does not exist.",
                code="item_create_invalid_previous_item_id",
            )

    def add(self, entry: Entry, previous_id: str | None = None) -> str | None:
        """
        Put an item behind another, or last of all.

        Returns:
            The id of the item that it stands behind; None where it stands first.

        Raises:
            ClientMistake: as `check_place`.
        """
        item_id = entry.item.id
        self.check_place(item_id, previous_id)
        at = len(self._order) if previous_id is None else 0 if previous_id == ROOT else self._order.index(previous_id) + 1
        self._entries[item_id] = entry
        self._order.insert(at, item_id)
        self._growing.append(item_id)
        self._forget_sound()
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
            ClientMistake: there is none.
        """
        self.get(item_id, "delete")
        del self._entries[item_id]
        self._order.remove(item_id)
        self._sound_bytes -= self._sounding.pop(item_id, 0)
        if item_id in self._growing:
            self._growing.remove(item_id)

    def has_call(self, call_id: str) -> bool:
        """Whether a function was called under that id."""
        return any(isinstance(entry.item, FunctionCallItem) and entry.item.call_id == call_id for entry in self)

    def has_approval_request(self, request_id: str) -> bool:
        """Whether leave was asked for under that id."""
        found = self._entries.get(request_id)
        return found is not None and isinstance(found.item, McpApprovalRequestItem)

    def _forget_sound(self) -> None:
        growing = {item_id: self._entries[item_id] for item_id in self._growing}
        self._growing = [item_id for item_id, entry in growing.items() if entry.is_open]
        for item_id, entry in growing.items():
            if not entry.is_open and (size := entry.sound_bytes):
                self._sounding[item_id] = size
                self._sound_bytes += size
        still_bytes = sum(growing[item_id].sound_bytes for item_id in self._growing)
        while self._sounding and self._sound_bytes + still_bytes > SOUND_LIMIT_BYTES:
            oldest = next(iter(self._sounding))
            self._sound_bytes -= self._sounding.pop(oldest)
            for recording in self._entries[oldest].recordings.values():
                recording.pcm = b""


_DOING = {"delete": "deleting", "retrieve": "retrieving", "truncate": "truncating"}


# What a model is given


def history(entries: Iterable[Entry], *, hears: bool) -> tuple[turns.Turn, ...]:
    """
    What has been said, for an engine.

    Args:
        hears: whether it takes sound; else it is given the words of it.
    """
    said: list[turns.Turn] = []
    for entry in entries:
        if not entry.is_open:
            said += _given(entry, hears=hears)
    return tuple(_answered(said))


def _given(entry: Entry, *, hears: bool) -> list[turns.Turn]:
    sounds = [(recording.transcript, recording.cut_ms, len(recording.pcm)) for recording in entry.recordings.values()]
    given = entry.given
    if given is None or given.item is not entry.item or given.hears is not hears or given.sounds != sounds:
        given = entry.given = Given(entry.item, hears, sounds, _turns_of(entry, hears=hears))
    return given.turns


def _answered(told: list[turns.Turn]) -> Iterator[turns.Turn]:
    """
    Turns in which every call has its result right behind it.

    A person goes on speaking while a function runs, but most models are told of a call only together with its result.
    """
    results = {turn.call_id: turn for turn in told if isinstance(turn, turns.ToolResult)}
    called = {turn.call_id for turn in told if isinstance(turn, turns.ToolCall)}
    for turn in told:
        if not isinstance(turn, turns.ToolResult) or turn.call_id not in called:
            yield turn
        if isinstance(turn, turns.ToolCall):
            yield results.get(turn.call_id) or turns.ToolResult(turn.call_id, (turns.TextPart(NO_RESULT),))


def _turns_of(entry: Entry, *, hears: bool) -> list[turns.Turn]:
    item: Item = entry.item
    match item:
        case MessageItem():
            role: turns.Role = item.role
            parts = [part for index, content in enumerate(item.content) if (part := _part_of(entry, index, content, hears=hears))]
            heard_ms = next((recording.cut_ms for recording in entry.recordings.values()), None)
            return [turns.Message(role, tuple(parts), heard_ms=heard_ms)] if parts else []
        case FunctionCallItem():
            return [turns.ToolCall(_text(item.call_id) or _text(item.id), item.name, item.arguments)]
        case FunctionCallOutputItem():
            return [turns.ToolResult(item.call_id, (turns.TextPart(item.output),))]
        case McpCallItem():
            outcome = _text(item.output)
            return [
                turns.ToolCall(_text(item.id), item.name, item.arguments),
                turns.ToolResult(_text(item.id), (turns.TextPart(outcome),)),
            ]
        case _:  # lists of tools, and what was asked and answered about them
            return []


def _part_of(entry: Entry, index: int, content: Any, *, hears: bool) -> turns.Part | None:
    recording = entry.recordings.get(index)
    match content:
        case InputText() | OutputText():
            return turns.TextPart(_text(content.text))
        case InputImage():
            return turns.ImagePart(url=_text(content.image_url), detail=_text(content.detail) or "auto")
        case InputAudio() if hears and recording is not None and (recording.pcm or (recording.turn_id and recording.length_bytes)):
            # Whose sound is forgotten may yet be known to the engine that heard it.
            return turns.SpeechPart(bytes(recording.pcm), recording.rate_hz, recording.turn_id, recording.transcript)
        case InputAudio():
            words = (recording.transcript if recording else None) or _text(content.transcript)
            return turns.TextPart(words) if words else None
        case OutputAudio():
            words = recording.heard() if recording is not None else _text(content.transcript)
            return turns.TextPart(words) if words else None
        case _:
            return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# What a client is told


def told(item: Item) -> Item:
    """An item as it is told: a picture that is large is not sent back."""
    if not isinstance(item, MessageItem) or not any(map(_is_large, item.content)):
        return item
    content = [structs.replace(part, image_url=UNSET) if _is_large(part) else part for part in item.content]
    return structs.replace(item, content=content)


def _is_large(part: Any) -> bool:
    return isinstance(part, InputImage) and len(part.image_url or "") > IMAGE_LIMIT_CHARACTERS


def shown_with_sound(entry: Entry, encode: Callable[[Recording], bytes], most_bytes: int) -> Item:
    """
    An item with its sound, as it is told on request alone.

    Args:
        encode: sound as the client takes it.
        most_bytes: of sound; what is more than that is left out, as no client takes messages without end.
    """
    item = told(entry.item)
    if not isinstance(item, MessageItem) or not entry.recordings:
        return item
    contents: list[Any] = list(item.content)
    for index, part in enumerate(item.content):  # an answer that is being said may have sound before it has content
        sound = encode(entry.recordings[index]) if index in entry.recordings else b""
        if sound and len(sound) <= most_bytes and isinstance(part, InputAudio | OutputAudio):
            contents[index] = structs.replace(part, audio=sound)
            most_bytes -= len(sound)
    return structs.replace(item, content=contents)


def without_sound(contents: Sequence[Any]) -> list[Any]:
    """Content as it is kept: its sound is kept beside it, and not sent back."""
    return [structs.replace(content, audio=UNSET) if isinstance(content, InputAudio | OutputAudio) else content for content in contents]


def usage_kinds(used: talk_events.Used) -> tuple[int, int]:
    """Input and output tokens that are text: what is neither sound nor picture."""
    return (
        max(0, used.input_tokens - used.input_audio_tokens - used.input_image_tokens),
        max(0, used.output_tokens - used.output_audio_tokens),
    )
