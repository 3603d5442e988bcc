"""The contract of a store. `tests/contracts/test_stores.py` holds every store to it."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.errors import ServerError
from antiphon.records import ClientSecretRecord, Direction, ItemRecord, KeyRecord, ResponseRecord, SessionRecord

SortOrder = Literal["asc", "desc"]

UNFINISHED_STATUSES = ("in_progress", "queued")
"""What a response says while somebody works on it, or is to."""

MAX_CHAIN_LENGTH = 10_000
"""Responses in one conversation: far beyond any model's context window, and what a damaged store can make us read at most."""


class ItemPage(Struct, frozen=True):
    """A slice of a list: the items, and whether more follow in the direction that was asked."""

    items: tuple[ItemRecord, ...]
    has_more: bool


class SessionPage(Struct, frozen=True):
    """A slice of a list of sessions, and whether more follow in the direction that was asked."""

    sessions: tuple[SessionRecord, ...]
    has_more: bool


class UnknownCursor(LookupError):
    """`after` names no item of the list."""


class MissingAncestor(LookupError):
    """A response continues one that is no longer stored; `args[0]` is the missing id."""


def chain_too_long_error(response_id: str) -> ServerError:
    """The conversation that ends in this response has more of them than a store reads at once."""
    return ServerError(f"The conversation of response '{response_id}' is longer than {MAX_CHAIN_LENGTH} responses.")


class KeyStore(Protocol):
    """Where API keys are kept; of all tenants, as whoever looks doesn't know yet whose it is."""

    async def add(self, key: KeyRecord) -> None:
        """Keep a new key."""

    async def all(self) -> Sequence[KeyRecord]:
        """Every key, revoked ones too, the oldest first."""

    async def revoke(self, key_id: str, at: int) -> bool:
        """Have a key open nothing from now on; whether there was such a key, not revoked before."""

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        """Keep when keys were used last, by their ids; never an earlier time than is kept already."""


class ClientSecretStore(Protocol):
    """Where client secrets are kept; of all tenants, as whoever looks doesn't know yet whose it is."""

    async def add(self, secret: ClientSecretRecord) -> None:
        """Keep a new secret, and forget those that had expired when it was made."""

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        """The secret with that hash, expired or not; None where there is none."""


class SessionStore(Protocol):
    """Where it is kept which sessions were recorded. A tenant of None stands for all of them: for who looks after the server."""

    async def put(self, session: SessionRecord) -> None:
        """Keep a session, in place of an earlier record of it."""

    async def get(self, tenant: str | None, session_id: str) -> SessionRecord | None:
        """The session with that id, or None."""

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        """
        A page of the sessions.

        Args:
            after: id of the session before the page, in the order asked; None for the first page.
            limit: at most so many, 1 or more.
            order: `asc` is the order in which they began.

        Raises:
            UnknownCursor: there is no such session.
        """

    async def delete(self, tenant: str | None, session_id: str) -> bool:
        """Forget a session; whether there was one."""

    async def oldest(self, limit: int) -> Sequence[SessionRecord]:
        """So many of the sessions that have ended, at most, of all tenants; the oldest first."""

    async def live(self) -> Sequence[SessionRecord]:
        """The sessions that say that they are live, of all tenants; the oldest first."""

    async def total_bytes(self) -> int:
        """What all recordings come to."""


class Store(Protocol):
    """
    Where responses and their items are kept. Every look-up names the tenant; another tenant's id is as good as none.

    Whatever a method wrote is durable when it returns: it survives the death of this process at any later moment.
    """

    @property
    def keys(self) -> KeyStore:
        """The API keys, kept in the same place."""

    @property
    def client_secrets(self) -> ClientSecretStore:
        """The client secrets, kept in the same place."""

    @property
    def sessions(self) -> SessionStore:
        """Which sessions were recorded, kept in the same place."""

    async def open(self) -> None:
        """Connect and bring the schema up to date; once, before anything else."""

    async def close(self) -> None:
        """Finish what was asked and let go; idempotent."""

    async def put(self, record: ResponseRecord) -> None:
        """Keep `record` with its items, replacing all of an earlier record with the same id."""

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """The record with all its items, or None."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response and its items; whether there was one."""

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        """
        The response and all that it continues, oldest first; empty when there is no such response.

        Raises:
            MissingAncestor: one of them was deleted, so that the conversation can't be told whole.
            ServerError: there are more than `LONGEST_CHAIN`.
        """

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        """One item by its id, input or output; the newest where the id was used more than once."""

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        """
        A page of a response's items.

        Args:
            direction: which of its items.
            after: id of the item before the page, in the order asked; None for the first page.
            limit: at most so many, 1 or more.
            order: `asc` is the order of the conversation.

        Returns:
            None when there is no such response.

        Raises:
            UnknownCursor: `after` is not among the response's items of that direction.
        """

    async def orphans(self) -> Sequence[ResponseRecord]:
        """
        Every tenant's records that say `in_progress` or `queued` though no living server works on them, in the order they were put.

        Who puts such a record works on it until its store is closed or its process dies. Where a store can't be shared by several
        servers, all that was put before this one opened it is nobody's.
        """

    async def put_if_unfinished(self, record: ResponseRecord) -> bool:
        """Put `record` in place of one that says `in_progress` or `queued`; whether it still said so, else nothing is done."""
