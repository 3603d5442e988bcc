"""
What an upstream has of a conversation: its items in order, and what makes them equal to a history.

Items that the upstream made itself, of sound that it heard and of what it answered, stay as they are wherever the history still has
them: it knows more of them than words. What the history has not is deleted, what it has besides is created in its place.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import UNSET, Struct, field

from antiphon.engine_api import history as turns
from antiphon.engines.realtime.items import Likeness, answer_likeness, likeness
from antiphon.wire.codec.types import Opt
from antiphon.wire.realtime.client_events import ClientEvent, ConversationItemCreate, ConversationItemDelete, ConversationItemTruncate
from antiphon.wire.realtime.items import InputItem, Item, ItemReference

Write = Callable[[turns.Turn, str], Item]
"""The item for a turn, of this id."""


class Words(Struct):
    """
    What one part of an answer said.

    Attributes:
        pieces: each with where in the part's sound, in milliseconds, it came.
        sound_ms: how long its sound is so far; 0 for a part in writing.
    """

    pieces: list[tuple[float, str]] = field(default_factory=list)
    sound_ms: float = 0.0

    @property
    def text(self) -> str:
        """All of the words."""
        return "".join(text for _, text in self.pieces)

    def until(self, at_ms: float) -> str:
        """The words that had begun when the sound was so far."""
        return "".join(text for begin_ms, text in self.pieces if begin_ms < at_ms)

    def cut(self, at_ms: float) -> None:
        """The sound ends there, and the words that had not begun go with it."""
        self.sound_ms = at_ms
        self.pieces = [piece for piece in self.pieces if piece[0] < at_ms]


class Placed(Struct, eq=False):
    """
    An item upstream.

    Attributes:
        id: None while only the upstream knows it.
        fixed: its likeness, where that is not what `parts` say.
        parts: of an answer, by their index.
    """

    id: str | None = None
    fixed: Likeness = None
    parts: dict[int, Words] = field(default_factory=dict)

    @property
    def likeness(self) -> Likeness:
        """What turn it is; None where it is no turn of ours."""
        if self.fixed is not None:
            return self.fixed
        texts = tuple(text for _, words in sorted(self.parts.items()) if (text := words.text))
        return answer_likeness(texts) if texts else None


class Mirror:
    """
    The items of one upstream conversation.

    Args:
        mint: a new item's id.
    """

    def __init__(self, mint: Callable[[], str]) -> None:
        self._mint = mint
        self._placed: list[Placed] = []

    def expect(self, fixed: Likeness, item_id: str | None = None) -> Placed:
        """An item is made upstream, last of all."""
        placed = Placed(item_id, fixed)
        self._placed.append(placed)
        return placed

    def find(self, item_id: str) -> Placed | None:
        """The item of that id."""
        return next((placed for placed in reversed(self._placed) if placed.id == item_id), None)

    def notice(self, item_id: str) -> None:
        """There is an item of that id, whoever made it."""
        if self.find(item_id) is None:
            self._placed.append(Placed(item_id))

    def forget(self, placed: Placed) -> None:
        """The item was not made after all, or is gone."""
        if placed in self._placed:
            self._placed.remove(placed)

    def named(self, placed: Placed, item_id: str) -> list[ClientEvent]:
        """The upstream has told what an expected item is called; what is to be done with it now."""
        if (double := self.find(item_id)) is not None:
            self._placed.remove(double)
        placed.id = item_id
        return [ConversationItemDelete(item_id=item_id)] if placed not in self._placed else []

    def is_like(self, history: Sequence[turns.Turn]) -> bool:
        """Whether the conversation upstream is that history already."""
        return [placed.likeness for placed in self._placed] == [kind for kind, _ in _wanted(history)]

    def equalise(self, history: Sequence[turns.Turn], write: Write) -> list[ClientEvent]:
        """
        What makes the conversation upstream equal to `history`.

        Raises:
            ClientMistake: a turn can't be told upstream; nothing is to be done.
        """
        wanted = _wanted(history)
        events = list(self._shortened(wanted))
        have = [placed.likeness for placed in self._placed]
        want = [kind for kind, _ in wanted]
        if have == want:
            return events
        items: list[Placed] = []
        gone: list[ClientEvent] = []
        made: list[ClientEvent] = []
        for what, start, end, first, last in SequenceMatcher(None, have, want, autojunk=False).get_opcodes():
            old = self._placed[start:end]
            if what == "equal":
                items += old
                continue
            gone += [ConversationItemDelete(item_id=placed.id) for placed in old if placed.id is not None]
            is_end = end == len(have)
            for kind, turn in wanted[first:last]:
                item_id = self._mint()
                made.append(ConversationItemCreate(previous_item_id=_behind(items, is_end=is_end), item=write(turn, item_id)))
                items.append(Placed(item_id, kind))
        self._placed = items
        return events + gone + made

    def told(self, history: Sequence[turns.Turn], write: Write) -> list[InputItem]:
        """
        `history` as the input of an answer that leaves the conversation upstream as it is; what is there already is only named.

        Raises:
            ClientMistake: a turn can't be told upstream.
        """
        known = {placed.likeness: placed.id for placed in self._placed if placed.id is not None}
        return [
            ItemReference(id=item_id) if (item_id := known.get(kind)) is not None else write(turn, self._mint())
            for kind, turn in _wanted(history)
        ]

    def _shortened(self, wanted: Sequence[tuple[Likeness, turns.Turn]]) -> Iterator[ClientEvent]:
        """Answers of which not all was heard, cut off where that ends."""
        cuts = {kind: turn.heard_ms for kind, turn in wanted if isinstance(turn, turns.Message) and turn.heard_ms is not None}
        for placed in self._placed if cuts else ():
            for index, words in placed.parts.items():
                heard_ms = next((cut for kind, cut in cuts.items() if kind == answer_likeness((words.until(cut),))), None)
                if heard_ms is not None and heard_ms < words.sound_ms and placed.id is not None:
                    words.cut(heard_ms)
                    yield ConversationItemTruncate(item_id=placed.id, content_index=index, audio_end_ms=heard_ms)


def _wanted(history: Sequence[turns.Turn]) -> list[tuple[Likeness, turns.Turn]]:
    return [(kind, turn) for turn in history if (kind := likeness(turn)) is not None]


def _behind(items: Sequence[Placed], *, is_end: bool) -> Opt[str]:
    """Where an item goes: at the end wherever that is right, since that needs no item's id."""
    if is_end:
        return UNSET
    if not items:
        return "root"
    return items[-1].id or UNSET
