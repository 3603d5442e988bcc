"""A store that forgets everything when the process ends: for tests, and for servers that must leave no trace."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from antiphon.records import ClientSecretRecord, Direction, ItemRecord, KeyRecord, ResponseRecord, SessionRecord
from antiphon.stores.availability import Availability
from antiphon.stores.background import MemoryBackgroundStore
from antiphon.stores.base import (
    MAX_CHAIN_BYTES,
    MAX_CHAIN_LENGTH,
    UNFINISHED_STATUSES,
    ItemPage,
    MissingAncestor,
    SessionPage,
    SortOrder,
    UnknownCursor,
    chain_too_large,
    chain_too_long,
)


class MemoryStore:
    """The contract in its plainest form; other stores are tested against it."""

    def __init__(self) -> None:
        self.availability = Availability()
        self.keys = MemoryKeyStore()
        self.client_secrets = MemoryClientSecretStore()
        self.sessions = MemorySessionStore()
        self._records: dict[str, ResponseRecord] = {}  # in the order they were put
        self._ids_since_open: set[str] = set()  # put since it was opened
        self.background = MemoryBackgroundStore(self, self._records, self._ids_since_open)

    async def open(self) -> None:
        self._ids_since_open.clear()  # what an earlier opening left unfinished has no owner any more

    async def close(self) -> None:
        """Do nothing: records stay for as long as this object."""

    async def check(self) -> None:
        self.availability.mark_reached()

    async def put(self, record: ResponseRecord) -> None:
        self._records.pop(record.id, None)
        self.background.forget(record.id)
        self._records[record.id] = record
        self._ids_since_open.add(record.id)

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        record = self._records.get(response_id)
        return record if record and record.tenant == tenant else None

    async def delete(self, tenant: str, response_id: str) -> bool:
        if await self.get(tenant, response_id) is None:
            return False
        del self._records[response_id]
        self.background.forget(response_id)
        return True

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        newest = await self.get(tenant, response_id)
        if newest is None:
            return ()
        chain, size_bytes = [newest], _size_bytes(newest)
        while (previous := chain[-1].previous_response_id) is not None:
            if len(chain) == MAX_CHAIN_LENGTH:
                raise chain_too_long()
            ancestor = await self.get(tenant, previous)
            if ancestor is None:
                raise MissingAncestor(previous)
            chain.append(ancestor)
            size_bytes += _size_bytes(ancestor)
        if size_bytes > MAX_CHAIN_BYTES:
            raise chain_too_large()
        return chain[::-1]

    async def item(self, tenant: str, item_id: str) -> ItemRecord | None:
        # Reads all records: a look-up by item is rare.
        for record in reversed(self._records.values()):
            if record.tenant == tenant:
                for item in reversed(record.items):
                    if item.id == item_id:
                        return item
        return None

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        record = await self.get(tenant, response_id)
        if record is None:
            return None
        items = [item for item in record.items if item.direction == direction]
        if order == "desc":
            items.reverse()
        if after is not None:
            # Of several items with that id the last, so that following the cursors always ends.
            positions = [position for position, item in enumerate(items) if item.id == after]
            if not positions:
                raise UnknownCursor(after)
            items = items[positions[-1] + 1 :]
        return ItemPage(tuple(items[:limit]), has_more=len(items) > limit)

    async def finish(self, record: ResponseRecord) -> bool:
        if record.id not in self._ids_since_open or not self._is_unfinished(record):
            return False
        old = self._records[record.id]
        items = old.items + record.items[len(old.items) :]
        self._records[record.id] = replace(old, status=record.status, body=record.body, items=items)
        return True

    async def orphans(self) -> Sequence[ResponseRecord]:
        return [
            replace(record, items=())
            for record in self._records.values()
            if record.status in UNFINISHED_STATUSES and record.id not in self._ids_since_open
        ]

    async def write_off(self, record: ResponseRecord) -> bool:
        if record.id in self._ids_since_open or not self._is_unfinished(record):
            return False
        self._records[record.id] = replace(self._records[record.id], status=record.status, body=record.body)
        return True

    def _is_unfinished(self, record: ResponseRecord) -> bool:
        old = self._records.get(record.id)
        return old is not None and old.tenant == record.tenant and old.status in UNFINISHED_STATUSES


def _size_bytes(record: ResponseRecord) -> int:
    return len(record.body) + sum(len(item.body) for item in record.items)


class MemoryKeyStore:
    """API keys, until the process ends."""

    def __init__(self) -> None:
        self._keys: dict[str, KeyRecord] = {}

    async def add(self, key: KeyRecord) -> None:
        self._keys[key.id] = key

    async def all(self) -> Sequence[KeyRecord]:
        return sorted(self._keys.values(), key=lambda key: (key.created_at, key.id))

    async def revoke(self, key_id: str, at: int) -> bool:
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[key_id] = replace(key, revoked_at=at)
        return True

    async def mark_used(self, last_used_at: Mapping[str, int]) -> None:
        for key_id, at in last_used_at.items():
            if (key := self._keys.get(key_id)) is not None:
                self._keys[key_id] = replace(key, last_used_at=max(at, key.last_used_at or 0))


class MemoryClientSecretStore:
    """Client secrets, until the process ends."""

    def __init__(self) -> None:
        self._secrets: dict[bytes, ClientSecretRecord] = {}

    async def add(self, secret: ClientSecretRecord) -> None:
        self._secrets = {hash: old for hash, old in self._secrets.items() if old.expires_at > secret.created_at}
        self._secrets[secret.hash] = secret

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        return self._secrets.get(hash)


class MemorySessionStore:
    """Records of sessions, until the process ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}  # in the order in which they began

    async def put(self, session: SessionRecord) -> None:
        self._sessions[session.id] = session

    async def get(self, tenant: str | None, session_id: str) -> SessionRecord | None:
        session = self._sessions.get(session_id)
        return session if session is not None and tenant in (None, session.tenant) else None

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        visible = [session for session in self._sessions.values() if tenant in (None, session.tenant)]
        if order == "desc":
            visible.reverse()
        if after is not None:
            position = next((position for position, session in enumerate(visible) if session.id == after), None)
            if position is None:
                raise UnknownCursor(after)
            visible = visible[position + 1 :]
        return SessionPage(tuple(visible[:limit]), has_more=len(visible) > limit)

    async def delete(self, tenant: str | None, session_id: str) -> bool:
        if await self.get(tenant, session_id) is None:
            return False
        del self._sessions[session_id]
        return True

    async def oldest(self, limit: int) -> Sequence[SessionRecord]:
        return [session for session in self._sessions.values() if session.state != "live"][:limit]

    async def live(self) -> Sequence[SessionRecord]:
        return [session for session in self._sessions.values() if session.state == "live"]

    async def total_bytes(self) -> int:
        return sum(session.bytes for session in self._sessions.values())
