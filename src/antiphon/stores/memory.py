"""
A store that forgets when the process ends: for tests, and for servers that must leave no trace.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from antiphon.records import ClientSecretRecord, Direction, ItemRecord, KeyRecord, ResponseRecord, SessionRecord
from antiphon.stores.base import (
    MAX_CHAIN_LENGTH,
    UNFINISHED_STATUSES,
    ItemPage,
    MissingAncestor,
    SessionPage,
    SortOrder,
    UnknownCursor,
    chain_too_long_error,
)


class MemoryStore:
    """The contract in its plainest form; the other stores are tested against it."""

    def __init__(self) -> None:
        self.keys = MemoryKeyStore()
        self.client_secrets = MemoryClientSecretStore()
        self.sessions = MemorySessionStore()
        self._records: dict[str, ResponseRecord] = {}  # in the order they were put
        self._ids_since_open: set[str] = set()  # put since it was opened

    async def open(self) -> None:
        """Nothing to connect to; what an earlier opening left unfinished is nobody's any more."""
        self._ids_since_open.clear()

    async def close(self) -> None:
        """Forget nothing yet: what was put stays for as long as this object."""

    async def put(self, record: ResponseRecord) -> None:
        """Keep `record` with its items, replacing all of an earlier record with the same id."""
        self._records.pop(record.id, None)
        self._records[record.id] = record
        self._ids_since_open.add(record.id)

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """The record with all its items, or None."""
        record = self._records.get(response_id)
        return record if record and record.tenant == tenant else None

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response and its items; whether there was one."""
        if await self.get(tenant, response_id) is None:
            return False
        del self._records[response_id]
        return True

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        """The response and all that it continues, oldest first."""
        newest = await self.get(tenant, response_id)
        if newest is None:
            return ()
        found = [newest]
        while (previous := found[-1].previous_response_id) is not None:
            if len(found) == MAX_CHAIN_LENGTH:
                raise chain_too_long_error(response_id)
            ancestor = await self.get(tenant, previous)
            if ancestor is None:
                raise MissingAncestor(previous)
            found.append(ancestor)
        return found[::-1]

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        """The newest item with that id. Reads all that is kept, as a look-up by item is rare."""
        for record in reversed(self._records.values()):
            if record.tenant == tenant:
                for item in reversed(record.items):
                    if item.id == item_id:
                        return item
        return None

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        """A page of a response's items."""
        record = await self.get(tenant, response_id)
        if record is None:
            return None
        items = [item for item in record.items if item.direction == direction]
        if order == "desc":
            items.reverse()
        if after is not None:
            # The last of several with that id, so that following the cursors always ends.
            places = [place for place, item in enumerate(items) if item.id == after]
            if not places:
                raise UnknownCursor(after)
            items = items[places[-1] + 1 :]
        return ItemPage(tuple(items[:limit]), has_more=len(items) > limit)

    async def orphans(self) -> Sequence[ResponseRecord]:
        """Every tenant's unfinished records from before the store was opened."""
        return [
            record for record in self._records.values() if record.status in UNFINISHED_STATUSES and record.id not in self._ids_since_open
        ]

    async def put_if_unfinished(self, record: ResponseRecord) -> bool:
        """Put `record` in place of an unfinished one; whether there was one."""
        stored = self._records.get(record.id)
        if stored is None or stored.status not in UNFINISHED_STATUSES:
            return False
        await self.put(record)
        return True


class MemoryKeyStore:
    """API keys that are forgotten when the process ends."""

    def __init__(self) -> None:
        self._keys: dict[str, KeyRecord] = {}

    async def add(self, key: KeyRecord) -> None:
        """Keep a new key."""
        self._keys[key.id] = key

    async def all(self) -> Sequence[KeyRecord]:
        """Every key, the oldest first."""
        return sorted(self._keys.values(), key=lambda key: (key.created_at, key.id))

    async def revoke(self, key_id: str, at: int) -> bool:
        """Have a key open nothing from now on; whether there was such a key, not revoked before."""
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[key_id] = replace(key, revoked_at=at)
        return True

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        """Keep when keys were used last."""
        for key_id, at in last_used_at.items():
            if (key := self._keys.get(key_id)) is not None:
                self._keys[key_id] = replace(key, last_used_at=max(at, key.last_used_at or 0))


class MemoryClientSecretStore:
    """Client secrets that are forgotten when the process ends."""

    def __init__(self) -> None:
        self._secrets: dict[bytes, ClientSecretRecord] = {}

    async def add(self, secret: ClientSecretRecord) -> None:
        """Keep a new secret, and forget those that had expired when it was made."""
        self._secrets = {hash: known for hash, known in self._secrets.items() if known.expires_at > secret.created_at}
        self._secrets[secret.hash] = secret

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        """The secret with that hash, expired or not; None where there is none."""
        return self._secrets.get(hash)


class MemorySessionStore:
    """Which sessions were recorded, until the process ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}  # in the order in which they began

    async def put(self, session: SessionRecord) -> None:
        """Keep a session, in place of an earlier record of it."""
        self._sessions[session.id] = session

    async def get(self, tenant: str | None, session_id: str) -> SessionRecord | None:
        """The session with that id, or None."""
        found = self._sessions.get(session_id)
        return found if found is not None and tenant in (None, found.tenant) else None

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        """A page of the sessions."""
        theirs = [session for session in self._sessions.values() if tenant in (None, session.tenant)]
        if order == "desc":
            theirs.reverse()
        if after is not None:
            places = [place for place, session in enumerate(theirs) if session.id == after]
            if not places:
                raise UnknownCursor(after)
            theirs = theirs[places[0] + 1 :]
        return SessionPage(tuple(theirs[:limit]), has_more=len(theirs) > limit)

    async def delete(self, tenant: str | None, session_id: str) -> bool:
        """Forget a session; whether there was one."""
        if await self.get(tenant, session_id) is None:
            return False
        del self._sessions[session_id]
        return True

    async def oldest(self, limit: int) -> Sequence[SessionRecord]:
        """So many of the sessions that have ended, the oldest first."""
        return [session for session in self._sessions.values() if session.state != "live"][:limit]

    async def live(self) -> Sequence[SessionRecord]:
        """The sessions that say that they are live, the oldest first."""
        return [session for session in self._sessions.values() if session.state == "live"]

    async def total_bytes(self) -> int:
        """What all recordings come to."""
        return sum(session.bytes for session in self._sessions.values())
