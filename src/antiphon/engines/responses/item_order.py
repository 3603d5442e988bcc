"""
The items of a streamed response, put back into one order.

Words carry no index: what an engine says belongs to the item said last. Upstream events do carry one, and may mix items, so one item
speaks at a time and the others wait until it is done. Servers also differ in how they name an item: by its id, by its place, by an id that
is new with each event, or not at all. `Items.find` knows them all.
"""

import re
from typing import Literal

from antiphon.engine_api import events as talk_events, history as turns
from antiphon.wire.upstream.responses import Event

Kind = Literal["message", "reasoning", "call", "hosted"]

_NO_INDEX = -1
"""Of a stretch of text that no event is about."""

_SOUND_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Part:
    """A stretch of an item's text: how much of it was said, so that a server which says it again in full is not heard twice."""

    __slots__ = ("annotations", "chars", "index")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.chars = 0
        self.annotations = 0


class UpstreamItem:
    """
    One item as it comes.

    Attributes:
        given_id: the id that was seen last; some servers change it from event to event.
        index: its place in the output, where the server tells it.
        part: of a message, the stretch of text that grows.
        call_id: of a call that was told; empty before.
        early: arguments that came before the call's name did.
        is_announced: whether the server said that it begins; else only that something of it came.
        is_settled: all of its text so far is complete, though the item may not be.
        is_done: nothing more of it is to be told.
        phase: of a message, as the server tells it.
        held: its words, while another item speaks.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.given_id: str | None = None
        self.index: int | None = None
        self.part = Part(_NO_INDEX)
        self.parts: dict[tuple[str, int], Part] = {}
        self.summary_index: int | None = None
        self.call_id = ""
        self.name = ""
        self.is_custom = False
        self.early: list[str] = []
        self.phase: turns.Phase | None = None
        self.is_announced = False
        self.is_settled = False
        self.is_done = False
        self.held: list[talk_events.FromEngine] = []
        self._has_spoken = False

    def part_of(self, channel: str, index: int | None) -> Part:
        """The stretch of text with that index."""
        key = (channel, index or 0)
        if (part := self.parts.get(key)) is None:
            part = self.parts[key] = Part(index)
        return part

    @property
    def gives_way(self) -> bool:
        """Whether another item may speak though this one is not done: some servers never say that an item is."""
        return self.kind in ("message", "reasoning") and (self.is_settled or not self.is_announced)

    def first_id(self) -> str | None:
        """The upstream's id, where it can be the item's name here; only once, as no two items may share it."""
        first, self._has_spoken = not self._has_spoken, True
        given = self.given_id
        return given if first and given is not None and _SOUND_ID.fullmatch(given) else None


class Items:
    """
    The items of one answer.

    Args:
        id: of the response.
        keeps_ids: whether items are called here as they are upstream.

    Attributes:
        speaking: the item whose words go out as they come.
    """

    def __init__(self, id: str, keeps_ids: bool) -> None:
        self.speaking: UpstreamItem | None = None
        self._id = id
        self._keeps_ids = keeps_ids
        self._all: list[UpstreamItem] = []
        self._by_id: dict[str, UpstreamItem] = {}
        self._by_index: dict[int, UpstreamItem] = {}
        self._waiting: list[UpstreamItem] = []
        self._ids_given: set[str] = set()

    def find(self, event: Event, kind: Kind, *, is_late: bool = False) -> UpstreamItem:
        """The item that `event` is about: a new one if it is about none so far. What `is_late` may be about one that is done."""
        item = self._known(event.item_id, event.output_index, kind)
        if item is None and is_late and (there := self._by_index.get(-1 if event.output_index is None else event.output_index)):
            item = there if there.kind == kind else None
        item = item or UpstreamItem(kind)
        return self._note(item, event.item_id, event.output_index)

    def hosted(self, event: Event) -> UpstreamItem | None:
        """The hosted tool's item that `event` is about."""
        return self._known(event.item_id, event.output_index, "hosted")

    def begin(self, given_id: str | None, index: int | None, kind: Kind) -> UpstreamItem:
        """The item that the server says begins: a new one, unless something of it came before; some give several items the same id."""
        item = self._known(given_id, index, kind)
        is_elsewhere = item is not None and item.is_done and None not in (index, item.index) and index != item.index
        if item is None or is_elsewhere or (item.is_announced and item is not self._by_id.get(given_id or "")):
            item = UpstreamItem(kind)
        item.is_announced = True
        return self._note(item, given_id, index)

    def end(self, given_id: str | None, index: int | None, kind: Kind) -> UpstreamItem:
        """The item that the server says is done."""
        return self._note(self._known(given_id, index, kind) or UpstreamItem(kind), given_id, index)

    def match(self, given_id: str | None, kind: Kind, number: int) -> UpstreamItem:
        """The item that the final output shows as the `number`-th of its kind."""
        item = self._by_id.get(given_id or "")
        if item is None or item.kind != kind:
            alike = [each for each in self._all if each.kind == kind]
            item = alike[number] if number < len(alike) else UpstreamItem(kind)
        return self._note(item, given_id, None)

    def _known(self, given_id: str | None, index: int | None, kind: Kind) -> UpstreamItem | None:
        item = self._by_id.get(given_id or "")
        if item is not None and item.kind == kind:
            return item
        if index is not None:
            item = self._by_index.get(index)
        elif given_id is None or kind != "hosted":
            item = next((each for each in reversed(self._all) if each.kind == kind), None)
        return item if item is not None and item.kind == kind and not item.is_done else None

    def _note(self, item: UpstreamItem, given_id: str | None, index: int | None) -> UpstreamItem:
        if item not in self._all:
            self._all.append(item)
        if given_id:
            item.given_id = given_id
            self._by_id[given_id] = item
        if index is not None:
            item.index = index
            self._by_index[index] = item
        return item

    # Who speaks

    def say(self, item: UpstreamItem, word: talk_events.FromEngine, words: list[talk_events.FromEngine]) -> None:
        """Add a word of `item`: to `words`, or to what waits until it is the item's turn."""
        if item is self.speaking:
            words.append(word)
            return
        item.held.append(word)
        if item not in self._waiting:
            self._waiting.append(item)
        self._go_on(words)

    def close(self, item: UpstreamItem, words: list[talk_events.FromEngine], *, is_whole: bool = True) -> None:
        """Nothing more of `item` comes; one that is not whole stays open for the answer's end to say so."""
        item.is_done = True
        if item is self.speaking:
            self.speaking = None
            if is_whole:
                words.append(talk_events.ItemBreak(self._id))
        self._go_on(words)

    def flush(self, words: list[talk_events.FromEngine]) -> None:
        """Everything that waits is to be said now."""
        self.speaking = None
        for item in self._waiting:
            self._begin(item, words)
        self._waiting.clear()

    @property
    def all(self) -> list[UpstreamItem]:
        """Every item, in the order in which they came."""
        return self._all

    def _go_on(self, words: list[talk_events.FromEngine]) -> None:
        while self._waiting and (self.speaking is None or self.speaking.gives_way):
            item = self._waiting.pop(0)
            self._begin(item, words)
            self.speaking = None if item.is_done else item

    def _begin(self, item: UpstreamItem, words: list[talk_events.FromEngine]) -> None:
        name = item.first_id() if self._keeps_ids else None
        if name in self._ids_given:
            name = None
        elif name is not None:
            self._ids_given.add(name)
        words.append(talk_events.ItemBreak(self._id, name, item.phase))
        words += item.held
        item.held.clear()
