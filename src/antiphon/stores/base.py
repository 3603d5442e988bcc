"""The contract of a store. `tests/contracts/test_stores.py` holds every store to it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.errors import ClientError, conversation_too_large, history_too_large
from antiphon.records import (
    BackgroundRecord,
    ClientSecretRecord,
    ConversationRecord,
    ConversationTurn,
    Direction,
    EventRun,
    ItemRecord,
    KeyRecord,
    PromptRecord,
    PromptVersionRecord,
    ResponseRecord,
    SessionRecord,
)
from antiphon.stores.availability import Availability
from antiphon.stores.files import FileStore
from antiphon.stores.paging import UNFINISHED_STATUSES as UNFINISHED_STATUSES, SortOrder as SortOrder, UnknownCursor as UnknownCursor
from antiphon.stores.response_list import ResponseList
from antiphon.stores.usage import UsageStore
from antiphon.stores.vector_stores import IndexRecords, VectorStoreRecords
from antiphon.stores.webhooks import WebhookStore

MAX_CHAIN_LENGTH = 10_000
"""
The most responses in one conversation: far beyond any context window, and a bound on what a damaged store makes us
read.
"""

MAX_CHAIN_BYTES = 64 << 20
"""
The most that the responses and items of one conversation may come to: some 16 million tokens of text, and a bound on
the memory that continuing it takes.
"""


MAX_CONVERSATION_ITEMS = 50_000
"""The most items of a conversation that a response reads; as with a chain, far beyond any context window."""

PAGE_BYTES = 1 << 20
"""A page of events ends with the run that reaches this; what a client reads slowly waits in memory."""


class ItemPage(Struct, frozen=True):
    """One page of a list of items, and whether more follow in the order asked for."""

    items: tuple[ItemRecord, ...]
    has_more: bool


COMPACTION_ID_PREFIX = "cmp_"
"""
How the id of a compaction begins. One that a response produced stands for all that came before it, which is not read any
more.
"""


class ConversationWindow(Struct, frozen=True):
    """
    What a response reads of a conversation.

    Attributes:
        items: those from the newest compaction on, in order.
        ids: of all items.
    """

    items: Sequence[ItemRecord]
    ids: frozenset[str]


class SessionPage(Struct, frozen=True):
    """One page of a list of sessions, and whether more follow in the order asked for."""

    sessions: tuple[SessionRecord, ...]
    has_more: bool


class ConversationPage(Struct, frozen=True):
    """One page of a list of conversations, and whether more follow in the order asked for."""

    conversations: tuple[ConversationRecord, ...]
    has_more: bool


class EventPage(Struct, frozen=True):
    """
    Some events of a background response, and the state of the response at that moment.

    Attributes:
        status: of the response.
        is_expired: whether its events were stored once, and were deleted since.
        runs: in order; the first may begin before the event asked for.
    """

    status: str
    is_expired: bool
    runs: tuple[EventRun, ...]

    @property
    def is_unfinished(self) -> bool:
        """Whether more events may come."""
        return self.status in UNFINISHED_STATUSES


class ItemsTooLarge(ValueError):
    """Items that are read together come to more than `MAX_CHAIN_BYTES`."""


class MissingAncestor(LookupError):
    """A response continues one that is no longer stored; `args[0]` is the missing id."""


def chain_too_long() -> ClientError:
    """The conversation is longer than `MAX_CHAIN_LENGTH`."""
    return history_too_large(f"it has more than {MAX_CHAIN_LENGTH:,} responses")


def chain_too_large() -> ClientError:
    """The conversation is larger than `MAX_CHAIN_BYTES`."""
    return history_too_large(f"it has more than {MAX_CHAIN_BYTES >> 20} MiB")


def check_conversation_size(item_count: int, size_bytes: int) -> None:
    """
    Check that a response may read a conversation.

    Raises:
        ClientError: it has more than `MAX_CONVERSATION_ITEMS` items, or they come to more than `MAX_CHAIN_BYTES`.
    """
    if item_count > MAX_CONVERSATION_ITEMS:
        raise conversation_too_large(f"it has more than {MAX_CONVERSATION_ITEMS:,} items")
    if size_bytes > MAX_CHAIN_BYTES:
        raise conversation_too_large(f"it has more than {MAX_CHAIN_BYTES >> 20} MiB")


class UnknownConversation(LookupError):
    """There is no such conversation of the tenant; `args[0]` is its id."""


class ConversationLocked(Exception):
    """A response has the conversation, so no items may be added or deleted."""


class DuplicateItem(ValueError):
    """An item's id is already in the conversation, or twice among those to add; `args[0]` is the id."""


class ConversationStore(Protocol):
    """
    Conversations and their items, which belong to no response. An item's id is unique in its conversation.

    A response has its conversation from `lock` until `unlock`, or until its `ConversationTurn` is stored. The lock of a
    server that has died, or has opened the store anew, counts for nothing.
    """

    async def create(self, conversation: ConversationRecord, items: Sequence[ItemRecord]) -> None:
        """
        Store a new conversation.

        Raises:
            DuplicateItem: two of the items have the same id.
        """

    async def get(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """The conversation with that id, or None."""

    async def all(self, tenant: str, *, after: str | None, limit: int, order: SortOrder) -> ConversationPage:
        """
        A page of the conversations, in the order of their creation.

        Raises:
            UnknownCursor: `after` is none of the tenant's.
        """

    async def update(self, tenant: str, conversation_id: str, metadata: bytes) -> ConversationRecord | None:
        """Replace the metadata; returns the conversation, or None where there is none."""

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation with its items, locked or not; returns whether there was one."""

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRecord]) -> None:
        """
        Add items at the end, all or none.

        Raises:
            UnknownConversation: there is no such conversation.
            ConversationLocked: a response has it.
            DuplicateItem: an item's id is there already.
        """

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord | None:
        """
        Delete an item; returns its conversation, or None where there is no such item.

        Raises:
            ConversationLocked: a response has the conversation.
        """

    async def page(self, tenant: str, conversation_id: str, *, after: str | None, limit: int, order: SortOrder) -> ItemPage | None:
        """
        A page of a conversation's items, as `Store.list_items`.

        Raises:
            UnknownCursor: `after` is not among its items.
        """

    async def item(self, tenant: str, item_id: str, conversation_id: str) -> ItemRecord | None:
        """One item by its id."""

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        """As `Store.items`, those of conversations."""

    async def window(self, tenant: str, conversation_id: str) -> ConversationWindow | None:
        """
        What a response reads; None where there is no such conversation.

        Raises:
            ClientError: the items are too many or too large (`check_conversation_size`). They are counted before they are
                read.
        """

    async def lock(self, tenant: str, conversation_id: str, response_id: str) -> bool:
        """Give a conversation to a response; returns False where there is none, or another response has it."""

    async def unlock(self, response_id: str) -> None:
        """
        Take back the conversation that a response of this server still has; does nothing where it has none.

        Raises:
            StoreError: not now; the store tries again at each `Store.check`.
        """

    async def end_turn(self, turn: ConversationTurn) -> None:
        """
        Add the items of a response that is not stored itself, and give back its conversation.

        Raises:
            ServerError: another response has it by now; nothing was added.
        """


class KeyStore(Protocol):
    """API keys of all tenants: who looks one up doesn't know its tenant yet."""

    async def add(self, key: KeyRecord) -> None:
        """Store a new key."""

    async def all(self) -> Sequence[KeyRecord]:
        """Every key, revoked ones too, oldest first."""

    def is_empty_now(self) -> bool:
        """Whether it has no key at this moment; false as well where telling would take a wait, or fails."""

    async def revoke(self, key_id: str, at: int) -> bool:
        """Revoke a key; returns whether there was one that had not been revoked."""

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        """Store when keys were last used, by id; a time before the stored one changes nothing."""


class PromptStore(Protocol):
    """Stored prompts and their versions. A tenant of None means all tenants, for the operator."""

    async def add(self, prompt: PromptRecord, body: bytes) -> bool:
        """Store a new prompt with its first version; returns False, and changes nothing, if its tenant has one with that id."""

    async def add_version(self, tenant: str, prompt_id: str, body: bytes, *, at: int, is_default: bool) -> int | None:
        """
        Add a version to a prompt.

        Args:
            at: when, in Unix seconds.
            is_default: whether it is for requests that name no version, from now on.

        Returns:
            Its number, which no other version has; None where there is no such prompt.
        """

    async def find(self, tenant: str | None, prompt_id: str | None = None) -> Sequence[PromptRecord]:
        """The prompts, or those with that id, in the order in which they were added."""

    async def version(self, tenant: str, prompt_id: str, version: int | None = None) -> PromptVersionRecord | None:
        """A version of a prompt, by default the default one; None where there is none."""

    async def versions(self, tenant: str, prompt_id: str) -> Sequence[PromptVersionRecord]:
        """All versions of a prompt, oldest first; empty where there is no such prompt."""

    async def set_default(self, tenant: str, prompt_id: str, version: int) -> bool:
        """Set which version is the default one; returns whether there is such a version."""

    async def delete(self, tenant: str, prompt_id: str) -> bool:
        """Delete a prompt with its versions; returns whether there was one."""


class ClientSecretStore(Protocol):
    """Client secrets of all tenants: who looks one up doesn't know its tenant yet."""

    async def add(self, secret: ClientSecretRecord) -> None:
        """Store a new secret, and delete those that had expired when it was made."""

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        """The secret with that hash, expired or not; None where there is none."""

    async def delete(self, hash: bytes) -> None:
        """Forget the secret with that hash, if there is one."""


class SessionStore(Protocol):
    """Records of recorded sessions. A tenant of None means all tenants, for the operator."""

    async def put(self, session: SessionRecord) -> None:
        """Store a session, replacing an earlier record of it."""

    async def get(self, tenant: str | None, session_id: str) -> SessionRecord | None:
        """The session with that id, or None."""

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        """
        A page of the sessions.

        Args:
            after: id of the session before the page, in that order; None for the first page.
            limit: the most sessions in the page, at least 1.
            order: `asc` is the order in which they began.

        Raises:
            UnknownCursor: there is no such session.
        """

    async def delete(self, tenant: str | None, session_id: str) -> bool:
        """Delete a session's record; returns whether there was one."""

    async def oldest(self, limit: int) -> Sequence[SessionRecord]:
        """At most `limit` sessions of all tenants that have ended, oldest first."""

    async def live(self) -> Sequence[SessionRecord]:
        """The sessions of all tenants with the state `live`, oldest first."""

    async def total_bytes(self) -> int:
        """The bytes of all recordings together."""


class BackgroundStore(Protocol):
    """
    Background responses and their events. A response's record is also that of `Store.get`, and goes with `Store.delete`.
    """

    async def add(self, record: ResponseRecord, background: BackgroundRecord, events: EventRun | None) -> None:
        """Store a new response with its first events, all or nothing. This server works on it."""

    async def append(self, record: ResponseRecord, events: EventRun, *, is_repeated: bool = False) -> bool:
        """
        Store more events of an unfinished response that this server works on.

        Args:
            is_repeated: whether they may be stored already, as the answer to an earlier attempt was lost.

        Returns:
            False, and changes nothing, where the response has ended, is gone, or is another server's.
        """

    async def finish(self, record: ResponseRecord, events: EventRun | None, turn: ConversationTurn | None = None) -> bool:
        """As `Store.finish`, together with more events, all or nothing."""

    async def end(self, record: ResponseRecord, closing_events: Callable[[int], EventRun], *, is_orphan: bool = False) -> bool:
        """
        Give an unfinished response the status, the body and the notes of `record`, and the items that are not stored yet,
        whichever server works on it.

        Args:
            closing_events: the last events, if events are stored; is given the first free sequence number. If it raises,
                nothing is changed.
            is_orphan: whether only a response may be ended on which no living server works.

        Returns:
            False, and changes nothing, where it has ended or is gone, or is not an orphan.
        """

    async def take_over(self, record: ResponseRecord) -> bool:
        """
        Let this server work on a queued response on which no living server does.

        Returns:
            False, and changes nothing, where it is no such response.
        """

    async def get(self, tenant: str, response_id: str) -> BackgroundRecord | None:
        """What is stored of a background response; None for any other."""

    async def events(self, tenant: str, response_id: str, after: int, limit: int) -> EventPage | None:
        """
        A page of the events after a sequence number: at most `limit` runs of them, and no more after `PAGE_BYTES`.

        Returns:
            None where there is no such background response, or its events were never stored.
        """

    async def find_lost(self, response_ids: Collection[str]) -> Collection[str]:
        """
        Those of the responses, in the background or not, that are not unfinished any more, or that this server does not
        work on.
        """

    async def expire(self, ended_before: int, limit_bytes: int) -> int:
        """
        Delete events of responses that ended before a time, and the oldest as long as all take more than `limit_bytes`;
        at most a hundred responses' at once. Returns how many responses they were of.
        """


class Store(Protocol):
    """
    Responses and their items. Every look-up names the tenant; another tenant's id finds nothing.

    What a method wrote is durable when it returns: it survives the death of this process at any later moment.
    """

    @property
    def availability(self) -> Availability:
        """Whether it can be used now."""

    @property
    def keys(self) -> KeyStore:
        """The API keys, in the same place."""

    @property
    def prompts(self) -> PromptStore:
        """The stored prompts, in the same place."""

    @property
    def client_secrets(self) -> ClientSecretStore:
        """The client secrets, in the same place."""

    @property
    def sessions(self) -> SessionStore:
        """The records of recorded sessions, in the same place."""

    @property
    def files(self) -> FileStore:
        """The records of uploaded files, in the same place."""

    @property
    def vector_stores(self) -> VectorStoreRecords:
        """The vector stores, in the same place."""

    @property
    def indexes(self) -> IndexRecords:
        """What their files are found by, in the same place."""

    @property
    def lists(self) -> ResponseList:
        """Its responses as lists, and the search in them."""

    @property
    def conversations(self) -> ConversationStore:
        """The conversations, in the same place."""

    @property
    def background(self) -> BackgroundStore:
        """The background responses, in the same place."""

    @property
    def usage(self) -> UsageStore:
        """What was used, in the same place."""

    @property
    def webhooks(self) -> WebhookStore:
        """The deliveries of webhooks, in the same place."""

    async def open(self) -> None:
        """
        Connect and bring the schema up to date; once, before anything else.

        Raises:
            ServerError: the database can't be used; the message says what to do about it.
        """

    async def close(self) -> None:
        """Finish pending writes and disconnect; idempotent."""

    async def check(self) -> None:
        """
        Show other servers that this one lives, and see whether the store can be used; to be called all the time.

        Raises:
            StoreError: it can't.
        """

    async def put(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> None:
        """
        Store `record` with its items, replacing all of an earlier record with the same id.

        Args:
            turn: stored in the same transaction. Where its conversation was deleted, nothing is added to one.

        Raises:
            ServerError: another response has the conversation by now; nothing was stored.
        """

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """The record with all its items, or None."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response and its items; returns whether there was one."""

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        """
        The response and its ancestors, oldest first; empty when there is no such response. The oldest is the newest that
        produced a compaction, or else the first one.

        Raises:
            MissingAncestor: one of them was deleted, so the conversation is not complete.
            ClientError: there are more than `MAX_CHAIN_LENGTH`, or they come to more than `MAX_CHAIN_BYTES`. They are
                counted before they are read.
        """

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        """
        Items by their ids, without those that are not there. Where an id was used more than once it is the newest output, or
        else the newest input: a client may send an item again with other content, and what the server made stays what it is.

        Raises:
            ItemsTooLarge: they are counted before they are read.
        """

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        """
        A page of a response's items.

        Args:
            direction: which of its items.
            after: id of the item before the page, in that order; None for the first page.
            limit: the most items in the page, at least 1.
            order: `asc` is the order of the conversation.

        Returns:
            None when there is no such response.

        Raises:
            UnknownCursor: `after` is not among the response's items of that direction.
        """

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool:
        """
        Give an unfinished response that this server has put the status and the body of `record`, and add those of its
        items that come after the stored ones.

        Args:
            turn: stored in the same transaction, also where the response is gone. Where it has ended or is another
                server's, the turn adds nothing.

        Returns:
            False, and changes nothing else, where the stored one has ended, is gone, or is another server's.

        Raises:
            ServerError: another response has the conversation by now; nothing was stored.
        """

    async def orphans(self) -> Sequence[ResponseRecord]:
        """
        Unfinished records of every tenant that no living server works on, in the order they were put, without items.

        A server works on the records it has put until its store is closed or its process dies, or until it fails to
        `finish` one. In a store that several servers can't share, everything put before this server opened it is an
        orphan.
        """

    async def write_off(self, record: ResponseRecord) -> bool:
        """
        Give an orphan the status, the body and the notes of `record`, which ends it.

        Returns:
            False, and changes nothing, where it is no orphan.
        """
