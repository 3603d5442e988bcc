"""
Lists of stored responses, and the search in them.

Responses that continue each other make a tree: two may continue the same one, and one that continues none may say that
it stands beside the root. The tree is known by the id of its root, which is noted with each of its responses when it is
stored.

Words are looked for as `search_words` makes them of a text. A response is found once it was indexed (`index`): that is
done after it was stored, so that storing it costs no more.
"""

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.records import ResponseRecord
from antiphon.stores.paging import UNFINISHED_STATUSES, SortOrder, UnknownCursor

MAX_WORD_LENGTH = 64
"""What comes after these characters of a word is not looked at."""

MAX_WORDS = 2000
"""The most different words of a text that it is found by, from its beginning."""

MAX_SEARCH_BYTES = 256 << 10
"""Larger items are not searched: most of each is a picture or a document."""

_SINGLE = ((0x0E00, 0x0EFF), (0x2E80, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Letters of scripts that put no space between words: each is a word of its own."""


class ResponseQuery(Struct, frozen=True, kw_only=True):
    """
    Which responses to list.

    Attributes:
        after: id of the response before the page, in that order; None for the first page.
        order: of their storing.
        model, status, root: only those with this one.
        ids: only these; None for any.
        words: only those that have a word beginning with each of these.
    """

    limit: int
    after: str | None = None
    order: SortOrder = "desc"
    model: str | None = None
    status: str | None = None
    root: str | None = None
    ids: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()


class ResponseRow(Struct, frozen=True, kw_only=True):
    """
    A response in a list.

    Attributes:
        root_id: of its tree.
        key_id: the key that it was created with; None where no key was needed, or an older server stored it.
        body: the response object as JSON.
    """

    id: str
    created_at: int
    status: str
    model: str
    previous_response_id: str | None
    root_id: str
    key_id: str | None
    body: bytes


class ResponsePage(Struct, frozen=True):
    """One page of a list of responses, and whether more follow in the order asked for."""

    rows: tuple[ResponseRow, ...]
    has_more: bool


class RootRow(Struct, frozen=True, kw_only=True):
    """
    A tree of responses.

    Attributes:
        root: None where it was deleted, and others of the tree were not.
        latest: that was stored last.
        count: of all responses in it.
    """

    id: str
    root: ResponseRow | None
    latest: ResponseRow
    count: int


class RootPage(Struct, frozen=True):
    """One page of a list of trees."""

    rows: tuple[RootRow, ...]
    has_more: bool


class UnindexedResponse(Struct, frozen=True, kw_only=True):
    """
    A response that is not found by its words yet.

    Attributes:
        number: what `index` knows it by.
        body: the response object as JSON.
        items: the bodies of its items, without those over `MAX_SEARCH_BYTES`.
    """

    number: int
    body: bytes
    items: tuple[bytes, ...]


class ResponseList(Protocol):
    """The responses of a store, as lists. Every look-up names the tenant."""

    async def page(self, tenant: str, query: ResponseQuery) -> ResponsePage:
        """
        A page of the responses.

        Raises:
            UnknownCursor: `after` is none of the tenant's responses.
        """

    async def inputs(self, tenant: str, rows: Sequence[ResponseRow], max_bytes: int) -> Sequence[Sequence[bytes]]:
        """
        The bodies of the input items of responses in a list: of as many from the first on as have at most `max_bytes`
        together with their own bodies, and of the first one in any case.
        """

    async def roots(self, tenant: str, *, after: str | None, limit: int, words: tuple[str, ...] = ()) -> RootPage:
        """
        A page of the trees, those first to which something was added last.

        Args:
            after: the root of the tree before the page; None for the first page.
            words: only trees with a response that has a word beginning with each of these.

        Raises:
            UnknownCursor: `after` is none of the tenant's trees.
        """

    async def replace_body(self, tenant: str, response_id: str, body: bytes) -> bool:
        """Replace the body of a response that has ended; returns whether there is such a one. It is to be indexed again."""

    async def to_index(self, tenant: str | None, limit: int) -> Sequence[UnindexedResponse]:
        """Responses that have ended and are to be indexed, the newest first; a tenant of None means all."""

    async def index(self, words: Mapping[int, Sequence[str]], bodies: Mapping[int, bytes] | None = None) -> None:
        """
        Note the words that responses are found by, by their numbers; responses that are gone are skipped.

        Args:
            bodies: those that the words were taken from. A response whose body was replaced since is skipped, too.
        """


def count_fitting(sizes_bytes: Iterable[int], max_bytes: int) -> int:
    """How many of these sizes, from the first on, are at most `max_bytes` together; the first one counts in any case."""
    totals = list(accumulate(sizes_bytes))
    return max(bisect_right(totals, max_bytes), min(len(totals), 1))


def search_words(text: str) -> list[str]:
    """The different words of a text in their order: in lower case, without accents, at most `MAX_WORDS`."""
    # ASCII has no accents. Elsewhere NFKD (Unicode, UAX 15) separates letters from their accents, which are then left out.
    if not text.isascii():
        decomposition = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(_with_spaces(character) for character in decomposition if not unicodedata.combining(character))
    letters = "".join(character if character.isalnum() else " " for character in text.lower())
    words: dict[str, None] = {}
    for word in letters.split():
        words[word[:MAX_WORD_LENGTH]] = None
        if len(words) == MAX_WORDS:
            break
    return [*words]


def _with_spaces(character: str) -> str:
    code = ord(character)
    return f" {character} " if any(first <= code <= last for first, last in _SINGLE) else character


class MemoryResponseList:
    """
    The responses of a store in memory.

    Args:
        records: by id, in the order they were put; `replace_record` changes one.
    """

    def __init__(self, records: Mapping[str, ResponseRecord], replace_record: Callable[[ResponseRecord], None]) -> None:
        self._records = records
        self._replace_record = replace_record
        self._roots: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._words: dict[int, Sequence[str]] = {}
        self._latest_number = 0

    def add(self, record: ResponseRecord) -> None:
        """Note the tree of a record that is put; its words are yet to be indexed."""
        self.forget(record.id)
        previous, beside = record.previous_response_id, record.previous_response_id or record.branch_of
        self._latest_number += 1
        self._numbers[record.id] = self._latest_number
        # For a tenant, another tenant's response is one that does not exist.
        is_ours = beside is not None and beside in self._records and self._records[beside].tenant == record.tenant
        self._roots[record.id] = self._roots[beside] if is_ours and beside is not None else previous or record.id

    def forget(self, response_id: str) -> None:
        """Forget what is known of a record that was deleted."""
        self._words.pop(self._numbers.pop(response_id, 0), None)
        self._roots.pop(response_id, None)

    async def page(self, tenant: str, query: ResponseQuery) -> ResponsePage:
        rows = [row for row in self._rows(tenant, query.words) if _matches(row, query)]
        if query.order == "desc":
            rows.reverse()
        if query.after is not None:
            cursor = self._records.get(query.after)
            if cursor is None or cursor.tenant != tenant:
                raise UnknownCursor(query.after)
            number, sign = self._numbers[query.after], 1 if query.order == "asc" else -1
            rows = [row for row in rows if sign * self._numbers[row.id] > sign * number]
        return ResponsePage(tuple(rows[: query.limit]), len(rows) > query.limit)

    async def inputs(self, tenant: str, rows: Sequence[ResponseRow], max_bytes: int) -> Sequence[Sequence[bytes]]:
        records = [self._records.get(row.id) for row in rows]
        inputs = [
            [item.body for item in record.items if item.direction == "input"] if record and record.tenant == tenant else []
            for record in records
        ]
        sizes_bytes = (len(row.body) + sum(map(len, bodies)) for row, bodies in zip(rows, inputs, strict=True))
        return inputs[: count_fitting(sizes_bytes, max_bytes)]

    async def roots(self, tenant: str, *, after: str | None, limit: int, words: tuple[str, ...] = ()) -> RootPage:
        all_rows = {row.id: row for row in self._rows(tenant, ())}
        counts = Counter(row.root_id for row in all_rows.values())
        latest = {row.root_id: row for row in all_rows.values()}  # the last one wins
        if after is not None and after not in latest:
            raise UnknownCursor(after)
        places = {root: self._numbers[row.id] for root, row in latest.items()}
        wanted_roots = {row.root_id for row in self._rows(tenant, words)}
        ids = sorted(wanted_roots, key=lambda id: -places[id])
        ids = [id for id in ids if after is None or places[id] < places[after]]
        rows = [RootRow(id=id, root=all_rows.get(id), latest=latest[id], count=counts[id]) for id in ids[:limit]]
        return RootPage(tuple(rows), len(ids) > limit)

    async def replace_body(self, tenant: str, response_id: str, body: bytes) -> bool:
        record = self._records.get(response_id)
        if record is None or record.tenant != tenant or record.status in UNFINISHED_STATUSES:
            return False
        self._replace_record(replace(record, body=body))
        self._words.pop(self._numbers[response_id], None)
        return True

    async def to_index(self, tenant: str | None, limit: int) -> Sequence[UnindexedResponse]:
        records = [
            record
            for record in self._records.values()
            if tenant in (None, record.tenant) and record.status not in UNFINISHED_STATUSES and self._numbers[record.id] not in self._words
        ]
        return [
            UnindexedResponse(
                number=self._numbers[record.id],
                body=record.body,
                items=tuple(item.body for item in record.items if len(item.body) <= MAX_SEARCH_BYTES),
            )
            for record in records[: -limit - 1 : -1]
        ]

    async def index(self, words: Mapping[int, Sequence[str]], bodies: Mapping[int, bytes] | None = None) -> None:
        stored_bodies = {number: self._records[id].body for id, number in self._numbers.items() if number in words}
        known_bodies = stored_bodies if bodies is None else bodies
        self._words.update({number: words[number] for number, body in stored_bodies.items() if body == known_bodies[number]})

    def _rows(self, tenant: str, words: Collection[str]) -> list[ResponseRow]:
        return [
            ResponseRow(
                id=record.id,
                created_at=record.created_at,
                status=record.status,
                model=record.model,
                previous_response_id=record.previous_response_id,
                root_id=self._roots[record.id],
                key_id=record.key_id,
                body=record.body,
            )
            for record in self._records.values()
            if record.tenant == tenant and self._has_words(self._numbers[record.id], words)
        ]

    def _has_words(self, number: int, words: Collection[str]) -> bool:
        own_words = self._words.get(number, ())
        return all(any(own.startswith(word) for own in own_words) for word in words)


def _matches(row: ResponseRow, query: ResponseQuery) -> bool:
    pairs = ((query.model, row.model), (query.status, row.status), (query.root, row.root_id))
    return (query.ids is None or row.id in query.ids) and all(choice is None or choice == value for choice, value in pairs)
