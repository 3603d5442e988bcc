"""
The items of a streamed response, put into one order.

Engine events have no index: each belongs to the item begun last. Upstream events have one, and may interleave items. So
one item is active at a time, and the events of others wait until it is done. Servers also differ in how they name an
item: by its id, by its index, by an id that is new with each event, or not at all. `ItemSequencer.find` knows them all.
"""

import re
from typing import Literal

from antiphon.engine_api import events, history
from antiphon.errors import UpstreamError
from antiphon.wire.upstream.responses import Event

ItemKind = Literal["message", "reasoning", "call", "hosted"]

_NO_INDEX = -1
"""The index of a text before any event named one."""

MAX_ITEMS = 2048
"""Every event is compared with the items so far, so these must not become many. Researching models make hundreds."""

_VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TextProgress:
    """How much of one text of an item was read, so that a server which then sends it in full repeats nothing."""

    __slots__ = ("annotations", "chars", "index")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.chars = 0
        self.annotations = 0


class UpstreamItem:
    """
    One item.

    Attributes:
        upstream_id: its latest id; some servers change it from event to event.
        index: its index in the output, where the server sends one.
        current_text: the text of a message that grows.
        call_id: of a call that was started; empty before.
        early_arguments: those that came before the call's name.
        phase: of a message, where the server sends one.
        is_announced: the server sent `output_item.added`, not just content of it.
        is_text_complete: its texts so far are complete, though the item may not be.
        is_done: it gets no more events.
        pending_events: those that wait for it to become active.
    """

    def __init__(self, kind: ItemKind) -> None:
        self.kind = kind
        self.upstream_id: str | None = None
        self.index: int | None = None
        self.current_text = TextProgress(_NO_INDEX)
        self.texts: dict[tuple[str, int], TextProgress] = {}
        self.summary_index: int | None = None
        self.call_id = ""
        self.name = ""
        self.is_custom = False
        self.early_arguments: list[str] = []
        self.phase: history.Phase | None = None
        self.is_announced = False
        self.is_text_complete = False
        self.is_done = False
        self.pending_events: list[events.EngineEvent] = []
        self._has_started = False

    def text_progress(self, channel: str, index: int | None) -> TextProgress:
        """The text at that index of a channel."""
        key = (channel, index or 0)
        if (part := self.texts.get(key)) is None:
            part = self.texts[key] = TextProgress(index)
        return part

    @property
    def can_yield(self) -> bool:
        """Whether another item may become active though this one is not done: some servers never end an item."""
        return self.kind in ("message", "reasoning") and (self.is_text_complete or not self.is_announced)

    def take_id(self) -> str | None:
        """
        The upstream's id if it is valid here, else None; None the second time too, as no two items may share an id.
        """
        is_first, self._has_started = not self._has_started, True
        id = self.upstream_id
        return id if is_first and id is not None and _VALID_ID.fullmatch(id) else None


class ItemSequencer:
    """
    The items of one response.

    Args:
        id: of the response.
        keep_ids: items keep their upstream ids.

    Attributes:
        active_item: the one whose events go out at once.
    """

    def __init__(self, id: str, keep_ids: bool) -> None:
        self.active_item: UpstreamItem | None = None
        self._id = id
        self._keep_ids = keep_ids
        self._items: list[UpstreamItem] = []
        self._by_id: dict[str, UpstreamItem] = {}
        self._by_index: dict[int, UpstreamItem] = {}
        self._waiting_items: list[UpstreamItem] = []
        self._used_ids: set[str] = set()

    def find(self, event: Event, kind: ItemKind, *, is_late: bool = False) -> UpstreamItem:
        """The item of `event`, new if there is none yet. An event that `is_late` may belong to an item that is done."""
        item = self._look_up(event.item_id, event.output_index, kind)
        if item is None and is_late and (candidate := self._by_index.get(-1 if event.output_index is None else event.output_index)):
            item = candidate if candidate.kind == kind else None
        item = item or UpstreamItem(kind)
        return self._register(item, event.item_id, event.output_index)

    def find_hosted(self, event: Event) -> UpstreamItem | None:
        """The hosted tool's item of `event`."""
        return self._look_up(event.item_id, event.output_index, "hosted")

    def begin(self, upstream_id: str | None, index: int | None, kind: ItemKind) -> UpstreamItem:
        """
        The item that begins: a new one, unless content of it came before. Some servers give several items the same id.
        """
        item = self._look_up(upstream_id, index, kind)
        is_elsewhere = item is not None and item.is_done and None not in (index, item.index) and index != item.index
        if item is None or is_elsewhere or (item.is_announced and item is not self._by_id.get(upstream_id or "")):
            item = UpstreamItem(kind)
        item.is_announced = True
        return self._register(item, upstream_id, index)

    def end(self, upstream_id: str | None, index: int | None, kind: ItemKind) -> UpstreamItem:
        """The item that the server ended."""
        return self._register(self._look_up(upstream_id, index, kind) or UpstreamItem(kind), upstream_id, index)

    def match(self, upstream_id: str | None, kind: ItemKind, number: int) -> UpstreamItem:
        """The item that is the `number`-th of its kind in the final output, from 0."""
        item = self._by_id.get(upstream_id or "")
        if item is None or item.kind != kind:
            alike = [each for each in self._items if each.kind == kind]
            item = alike[number] if number < len(alike) else UpstreamItem(kind)
        return self._register(item, upstream_id, None)

    def _look_up(self, upstream_id: str | None, index: int | None, kind: ItemKind) -> UpstreamItem | None:
        item = self._by_id.get(upstream_id or "")
        if item is not None and item.kind == kind:
            return item
        if index is not None:
            item = self._by_index.get(index)
        elif upstream_id is None or kind != "hosted":
            item = next((each for each in reversed(self._items) if each.kind == kind), None)
        return item if item is not None and item.kind == kind and not item.is_done else None

    def _register(self, item: UpstreamItem, upstream_id: str | None, index: int | None) -> UpstreamItem:
        if item not in self._items:
            if len(self._items) >= MAX_ITEMS:
                raise UpstreamError(f"The model server sent more than {MAX_ITEMS} items in one response.", code="upstream_malformed")
            self._items.append(item)
        if upstream_id:
            item.upstream_id = upstream_id
            self._by_id[upstream_id] = item
        if index is not None:
            item.index = index
            self._by_index[index] = item
        return item

    # Order

    def emit(self, item: UpstreamItem, event: events.EngineEvent, out: list[events.EngineEvent]) -> None:
        """Append an event of `item` to `out`, or to what waits until the item is active."""
        if item is self.active_item:
            out.append(event)
            return
        item.pending_events.append(event)
        if item not in self._waiting_items:
            self._waiting_items.append(item)
        self._advance(out)

    def close(self, item: UpstreamItem, out: list[events.EngineEvent], *, is_complete: bool = True) -> None:
        """End `item`. An incomplete one gets no boundary: the end of the response says that it is incomplete."""
        item.is_done = True
        if item is self.active_item:
            self.active_item = None
            if is_complete:
                out.append(events.ItemBoundary(self._id))
        self._advance(out)

    def flush(self, out: list[events.EngineEvent]) -> None:
        """Append everything that waits."""
        self.active_item = None
        for item in self._waiting_items:
            self._start_item(item, out)
        self._waiting_items.clear()

    @property
    def items(self) -> list[UpstreamItem]:
        """Every item, in the order in which they began."""
        return self._items

    def _advance(self, out: list[events.EngineEvent]) -> None:
        while self._waiting_items and (self.active_item is None or self.active_item.can_yield):
            item = self._waiting_items.pop(0)
            self._start_item(item, out)
            self.active_item = None if item.is_done else item

    def _start_item(self, item: UpstreamItem, out: list[events.EngineEvent]) -> None:
        id = item.take_id() if self._keep_ids else None
        if id in self._used_ids:
            id = None
        elif id is not None:
            self._used_ids.add(id)
        out.append(events.ItemBoundary(self._id, id, item.phase))
        out += item.pending_events
        item.pending_events.clear()
