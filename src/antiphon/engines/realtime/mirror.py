"""
What an upstream has of a conversation: its items in order, and what makes them equal to a history.

Items that the upstream made itself, of sound that it heard and of what it answered, stay as they are wherever the history still has
them: it knows more of them than words. What the history has not is deleted, what it has besides is created in its place.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import UNSET, Struct, field

from antiphon.engine_api import history as engine_history
from antiphon.engines.realtime.items import ItemFingerprint, assistant_fingerprint, fingerprint
from antiphon.wire.codec.types import Opt
from antiphon.wire.realtime.client_events import ClientEvent, ConversationItemCreate, ConversationItemDelete, ConversationItemTruncate
from antiphon.wire.realtime.items import InputItem, Item, ItemReference

WriteItem = Callable[[engine_history.HistoryItem, str], Item]
"""The item for a turn, of this id."""


class PartText(Struct):
    """
    What one part of an answer said.

    Attributes:
        pieces: each with where in the part's sound, in milliseconds, it came.
        sound_ms: how long its sound is so far; 0 for a part in writing.
    """

    chunks: list[tuple[float, str]] = field(default_factory=list)
    audio_ms: float = 0.0

    @property
    def text(self) -> str:
        """All of the words."""
        return "".join(text for _, text in self.chunks)

    def text_until(self, at_ms: float) -> str:
        """The words that had begun when the sound was so far."""
        return "".join(text for begin_ms, text in self.chunks if begin_ms < at_ms)

    def truncate(self, at_ms: float) -> None:
        """The sound ends there, and the words that had not begun go with it."""
        self.audio_ms = at_ms
        self.chunks = [piece for piece in self.chunks if piece[0] < at_ms]


class MirroredItem(Struct, eq=False):
    """
    An item upstream.

    Attributes:
        id: None while only the upstream knows it.
        fixed: its likeness, where that is not what `parts` say.
        parts: of an answer, by their index.
    """

    id: str | None = None
    fixed_fingerprint: ItemFingerprint = None
    parts: dict[int, PartText] = field(default_factory=dict)

    @property
    def fingerprint(self) -> ItemFingerprint:
        """What turn it is; None where it is no turn of ours."""
        if self.fixed_fingerprint is not None:
            return self.fixed_fingerprint
        texts = tuple(text for _, words in sorted(self.parts.items()) if (text := words.text))
        return assistant_fingerprint(texts) if texts else None


class Mirror:
    """
    The items of one upstream conversation.

    Args:
        mint: a new item's id.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._items: list[MirroredItem] = []

    def expect(self, fixed_fingerprint: ItemFingerprint, item_id: str | None = None) -> MirroredItem:
        """An item is made upstream, last of all."""
        placed = MirroredItem(item_id, fixed_fingerprint)
        self._items.append(placed)
        return placed

    def find(self, item_id: str) -> MirroredItem | None:
        """The item of that id."""
        return next((placed for placed in reversed(self._items) if placed.id == item_id), None)

    def register(self, item_id: str) -> None:
        """There is an item of that id, whoever made it."""
        if self.find(item_id) is None:
            self._items.append(MirroredItem(item_id))

    def remove(self, item: MirroredItem) -> None:
        """The item was not made after all, or is gone."""
        if item in self._items:
            self._items.remove(item)

    def assign_id(self, item: MirroredItem, item_id: str) -> list[ClientEvent]:
        """The upstream has told what an expected item is called; what is to be done with it now."""
        if (double := self.find(item_id)) is not None:
            self._items.remove(double)
        item.id = item_id
        return [ConversationItemDelete(item_id=item_id)] if item not in self._items else []

    def is_in_sync(self, history: Sequence[engine_history.HistoryItem]) -> bool:
        """Whether the conversation upstream is that history already."""
        return [placed.fingerprint for placed in self._items] == [kind for kind, _ in _with_fingerprints(history)]

    def sync(self, history: Sequence[engine_history.HistoryItem], write_item: WriteItem) -> list[ClientEvent]:
        """
        What makes the conversation upstream equal to `history`.

        Raises:
            ClientError: a turn can't be told upstream; nothing is to be done.
        """
        wanted = _with_fingerprints(history)
        events = list(self._truncations(wanted))
        have = [placed.fingerprint for placed in self._items]
        want = [kind for kind, _ in wanted]
        if have == want:
            return events
        items: list[MirroredItem] = []
        gone: list[ClientEvent] = []
        made: list[ClientEvent] = []
        for what, start, end, first, last in SequenceMatcher(None, have, want, autojunk=False).get_opcodes():
            old = self._items[start:end]
            if what == "equal":
                items += old
                continue
            gone += [ConversationItemDelete(item_id=placed.id) for placed in old if placed.id is not None]
            is_end = end == len(have)
            for kind, turn in wanted[first:last]:
                item_id = self._new_id()
                made.append(
                    ConversationItemCreate(previous_item_id=_previous_item_id(items, is_end=is_end), item=write_item(turn, item_id))
                )
                items.append(MirroredItem(item_id, kind))
        self._items = items
        return events + gone + made

    def to_input_items(self, history: Sequence[engine_history.HistoryItem], write_item: WriteItem) -> list[InputItem]:
        """
        `history` as the input of an answer that leaves the conversation upstream as it is; what is there already is only named.

        Raises:
            ClientError: a turn can't be told upstream.
        """
        known = {placed.fingerprint: placed.id for placed in self._items if placed.id is not None}
        return [
            ItemReference(id=item_id) if (item_id := known.get(kind)) is not None else write_item(turn, self._new_id())
            for kind, turn in _with_fingerprints(history)
        ]

    def _truncations(self, fingerprinted_items: Sequence[tuple[ItemFingerprint, engine_history.HistoryItem]]) -> Iterator[ClientEvent]:
        """Answers of which not all was heard, cut off where that ends."""
        cuts = {
            kind: turn.played_ms
            for kind, turn in fingerprinted_items
            if isinstance(turn, engine_history.Message) and turn.played_ms is not None
        }
        for placed in self._items if cuts else ():
            for index, words in placed.parts.items():
                heard_ms = next((cut for kind, cut in cuts.items() if kind == assistant_fingerprint((words.text_until(cut),))), None)
                if heard_ms is not None and heard_ms < words.audio_ms and placed.id is not None:
                    words.truncate(heard_ms)
                    yield ConversationItemTruncate(item_id=placed.id, content_index=index, audio_end_ms=heard_ms)


def _with_fingerprints(history: Sequence[engine_history.HistoryItem]) -> list[tuple[ItemFingerprint, engine_history.HistoryItem]]:
    return [(kind, turn) for turn in history if (kind := fingerprint(turn)) is not None]


def _previous_item_id(items: Sequence[MirroredItem], *, is_end: bool) -> Opt[str]:
    """Where an item goes: at the end wherever that is right, since that needs no item's id."""
    if is_end:
        return UNSET
    if not items:
        return "root"
    return items[-1].id or UNSET
