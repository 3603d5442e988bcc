"""
A mirror of the items of an upstream conversation, and the client events that make them equal to a history.

Items that the server made itself, from the user's audio and its own responses, are kept as long as the history has
them: the server has their audio, not only their text. Items that the history lacks are deleted, and missing ones are
created in their place.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import UNSET, Struct, field

from antiphon.engine_api import history as engine_history
from antiphon.engines.realtime.items import ItemFingerprint, assistant_fingerprint, fingerprint
from antiphon.wire.codec.types import Opt
from antiphon.wire.realtime.client_events import ClientEvent, ConversationItemCreate, ConversationItemDelete, ConversationItemTruncate
from antiphon.wire.realtime.items import InputItem, Item, ItemReference, input_item

WriteItem = Callable[[engine_history.HistoryItem, str], Item]
"""Makes the Realtime item, with this id, for a history item."""


class PartText(Struct):
    """
    The text of one part of a response.

    Attributes:
        chunks: texts, each with its offset in the part's audio in milliseconds.
        audio_ms: the length of the part's audio so far; 0 for a text part.
    """

    chunks: list[tuple[float, str]] = field(default_factory=list)
    audio_ms: float = 0.0

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(text for _, text in self.chunks)

    def text_until(self, at_ms: float) -> str:
        """The text that had begun when so much of the audio had played."""
        return "".join(text for start_ms, text in self.chunks if start_ms < at_ms)

    def truncate(self, at_ms: float) -> None:
        """Cut the audio, and the text that had not begun by then."""
        self.audio_ms = at_ms
        self.chunks = [(start_ms, text) for start_ms, text in self.chunks if start_ms < at_ms]


class MirroredItem(Struct, eq=False):
    """
    An item upstream.

    Attributes:
        id: None until the server has named it.
        fixed_fingerprint: its fingerprint, unless `parts` give it.
        parts: those of a response's message, by their index.
    """

    id: str | None = None
    fixed_fingerprint: ItemFingerprint = None
    parts: dict[int, PartText] = field(default_factory=dict)

    @property
    def fingerprint(self) -> ItemFingerprint:
        """The fingerprint of its history item; None if it has none."""
        if self.fixed_fingerprint is not None:
            return self.fixed_fingerprint
        texts = tuple(text for _, part in sorted(self.parts.items()) if (text := part.text))
        return assistant_fingerprint(texts) if texts else None


class Mirror:
    """
    The items of one upstream conversation.

    Args:
        new_id: makes the id of an item.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._items: list[MirroredItem] = []

    def expect(self, fixed_fingerprint: ItemFingerprint, item_id: str | None = None) -> MirroredItem:
        """Append an item that the server will make; its id may come later (`assign_id`)."""
        item = MirroredItem(item_id, fixed_fingerprint)
        self._items.append(item)
        return item

    def find(self, item_id: str) -> MirroredItem | None:
        """The item with this id."""
        return next((item for item in reversed(self._items) if item.id == item_id), None)

    def register(self, item_id: str) -> None:
        """Append the item with this id, unless it is known."""
        if self.find(item_id) is None:
            self._items.append(MirroredItem(item_id))

    def remove(self, item: MirroredItem) -> None:
        """Remove an item that was deleted upstream, or was not made after all."""
        if item in self._items:
            self._items.remove(item)

    def assign_id(self, item: MirroredItem, item_id: str) -> list[ClientEvent]:
        """
        Store the id that the server gave to an expected item; returns what to send, if the item was removed meanwhile.
        """
        # The item itself may have been reported before its id was known to be this one's.
        if (duplicate := self.find(item_id)) is not None:
            self._items.remove(duplicate)
        item.id = item_id
        return [ConversationItemDelete(item_id=item_id)] if item not in self._items else []

    def is_in_sync(self, history: Sequence[engine_history.HistoryItem]) -> bool:
        """Whether the conversation upstream equals the history."""
        return [item.fingerprint for item in self._items] == [key for key, _ in _with_fingerprints(history)]

    def sync(self, history: Sequence[engine_history.HistoryItem], write_item: WriteItem) -> list[ClientEvent]:
        """
        The events that make the conversation upstream equal to `history`.

        Raises:
            ClientError: an item has no form in the Realtime API.
        """
        target = _with_fingerprints(history)
        # Before the comparison, as they change the fingerprints.
        truncations = list(self._truncations(target))
        current_keys = [item.fingerprint for item in self._items]
        target_keys = [key for key, _ in target]
        if current_keys == target_keys:
            return truncations
        items: list[MirroredItem] = []
        deletions: list[ClientEvent] = []
        creations: list[ClientEvent] = []
        # difflib: from 200 items on, `autojunk` would take frequent ones for noise.
        for tag, start, end, first, last in SequenceMatcher(None, current_keys, target_keys, autojunk=False).get_opcodes():
            replaced_items = self._items[start:end]
            if tag == "equal":
                items += replaced_items
                continue
            # One that has no id yet is deleted as soon as the server names it (`assign_id`).
            deletions += [ConversationItemDelete(item_id=item.id) for item in replaced_items if item.id is not None]
            is_end = end == len(current_keys)
            for key, history_item in target[first:last]:
                item_id = self._new_id()
                previous_item_id = _previous_item_id(items, is_end=is_end)
                creations.append(ConversationItemCreate(previous_item_id=previous_item_id, item=write_item(history_item, item_id)))
                items.append(MirroredItem(item_id, key))
        self._items = items
        return truncations + deletions + creations

    def to_input_items(self, history: Sequence[engine_history.HistoryItem], write_item: WriteItem) -> list[InputItem]:
        """
        `history` as the `input` of an out-of-band response; items that are upstream already become references.

        Raises:
            ClientError: an item has no form in the Realtime API.
        """
        ids = {item.fingerprint: item.id for item in self._items if item.id is not None}
        return [
            ItemReference(id=item_id) if (item_id := ids.get(key)) is not None else input_item(write_item(history_item, self._new_id()))
            for key, history_item in _with_fingerprints(history)
        ]

    def _truncations(self, fingerprinted_items: Sequence[tuple[ItemFingerprint, engine_history.HistoryItem]]) -> Iterator[ClientEvent]:
        """Truncate the responses that were not played to their end."""
        played_ms_by_key = {
            key: history_item.played_ms
            for key, history_item in fingerprinted_items
            if isinstance(history_item, engine_history.Message) and history_item.played_ms is not None
        }
        for item in self._items if played_ms_by_key else ():
            for index, part in item.parts.items():
                end_ms = next((ms for key, ms in played_ms_by_key.items() if key == assistant_fingerprint((part.text_until(ms),))), None)
                if end_ms is not None and end_ms < part.audio_ms and item.id is not None:
                    part.truncate(end_ms)
                    yield ConversationItemTruncate(item_id=item.id, content_index=index, audio_end_ms=end_ms)


def _with_fingerprints(history: Sequence[engine_history.HistoryItem]) -> list[tuple[ItemFingerprint, engine_history.HistoryItem]]:
    return [(key, item) for item in history if (key := fingerprint(item)) is not None]


def _previous_item_id(items: Sequence[MirroredItem], *, is_end: bool) -> Opt[str]:
    """`previous_item_id` of a new item; absent at the end, because the last item may not have its id yet."""
    if is_end:
        return UNSET
    if not items:
        return "root"
    return items[-1].id or UNSET
