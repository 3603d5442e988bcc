"""A store that forgets everything when the process ends: for tests, and for servers that must leave no trace."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from antiphon.errors import conversation_lock_lost
from antiphon.records import (
    ClientSecretRecord,
    ConversationRecord,
    ConversationTurn,
    Direction,
    ItemRecord,
    KeyRecord,
    PromptRecord,
    PromptVersionRecord,
    ResponseRecord,
    SessionRecord,
)
from antiphon.stores.availability import Availability
from antiphon.stores.background import MemoryBackgroundStore
from antiphon.stores.base import (
    COMPACTION_ID_PREFIX,
    MAX_CHAIN_BYTES,
    MAX_CHAIN_LENGTH,
    UNFINISHED_STATUSES,
    ConversationLocked,
    ConversationPage,
    ConversationWindow,
    DuplicateItem,
    ItemPage,
    ItemsTooLarge,
    MissingAncestor,
    SessionPage,
    SortOrder,
    UnknownConversation,
    UnknownCursor,
    chain_too_large,
    chain_too_long,
    check_conversation_size,
)
from antiphon.stores.memory_files import MemoryFileStore
from antiphon.stores.response_list import MemoryResponseList
from antiphon.stores.usage import MemoryUsageStore
from antiphon.stores.vectors.memory import MemoryIndexRecords, MemoryVectorStoreRecords
from antiphon.stores.webhooks import MemoryWebhookStore


class MemoryStore:
    """The contract in its plainest form; other stores are tested against it."""

    def __init__(self) -> None:
        self.availability = Availability()
        self.keys = MemoryKeyStore()
        self.prompts = MemoryPromptStore()
        self.client_secrets = MemoryClientSecretStore()
        self.sessions = MemorySessionStore()
        self.files = MemoryFileStore()
        self.usage = MemoryUsageStore()
        self.vector_stores = MemoryVectorStoreRecords()
        self.indexes = MemoryIndexRecords(self.vector_stores)
        self.conversations = MemoryConversationStore()
        self._records: dict[str, ResponseRecord] = {}  # in the order they were put
        self._ids_since_open: set[str] = set()  # put since it was opened
        self.lists = MemoryResponseList(self._records, self._replace)
        self.webhooks = MemoryWebhookStore()
        self.background = MemoryBackgroundStore(self, self._records, self._ids_since_open, self.webhooks.add)

    async def open(self) -> None:
        self.conversations.unlock_all()
        self.webhooks.release_all()
        await self.indexes.release()
        self._ids_since_open.clear()  # what an earlier opening left unfinished has no owner any more

    async def close(self) -> None:
        """Do nothing: records stay for as long as this object."""

    async def check(self) -> None:
        self.availability.mark_reached()

    async def put(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> None:
        # First: it raises where another response has the conversation by now, and then nothing may be stored.
        if turn is not None:
            await self.conversations.end_turn(turn)
        # Taken out, so that it comes last: a record's place is that of its latest put.
        self._records.pop(record.id, None)
        self.background.forget(record.id)
        self.lists.add(record)
        self._records[record.id] = record
        self._ids_since_open.add(record.id)

    def _replace(self, record: ResponseRecord) -> None:
        self._records[record.id] = record

    async def get(self, tenant: str, response_id: str) -> ResponseRecord | None:
        record = self._records.get(response_id)
        return record if record and record.tenant == tenant else None

    async def delete(self, tenant: str, response_id: str) -> bool:
        if await self.get(tenant, response_id) is None:
            return False
        del self._records[response_id]
        self._ids_since_open.discard(response_id)
        self.lists.forget(response_id)
        self.background.forget(response_id)
        return True

    async def chain(self, tenant: str, response_id: str) -> Sequence[ResponseRecord]:
        newest = await self.get(tenant, response_id)
        if newest is None:
            return ()
        chain, size_bytes = [newest], _size_bytes(newest)
        while (previous := chain[-1].previous_response_id) is not None and not any(map(_is_compaction, chain[-1].items)):
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

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        # Reads all records once, whatever the number of ids.
        newest_first = (item for record in reversed(self._records.values()) if record.tenant == tenant for item in reversed(record.items))
        return _select_items(newest_first, item_ids)

    async def list_items(
        self, tenant: str, response_id: str, *, direction: Direction, after: str | None, limit: int, order: SortOrder
    ) -> ItemPage | None:
        record = await self.get(tenant, response_id)
        if record is None:
            return None
        items = [item for item in record.items if item.direction == direction]
        return _page(items, after, limit, order)

    async def finish(self, record: ResponseRecord, turn: ConversationTurn | None = None) -> bool:
        is_open = record.id in self._ids_since_open and self._is_unfinished(record)
        if turn is not None:
            await self.conversations.end_turn(turn if is_open or record.id not in self._records else replace(turn, items=()))
        if not is_open:
            return False
        old = self._records[record.id]
        items = old.items + record.items[len(old.items) :]
        self._records[record.id] = replace(old, status=record.status, body=record.body, notes=record.notes, items=items)
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
        self._records[record.id] = replace(self._records[record.id], status=record.status, body=record.body, notes=record.notes)
        return True

    def _is_unfinished(self, record: ResponseRecord) -> bool:
        old = self._records.get(record.id)
        return old is not None and old.tenant == record.tenant and old.status in UNFINISHED_STATUSES


def _size_bytes(record: ResponseRecord) -> int:
    return len(record.body) + sum(len(item.body) for item in record.items)


def _is_compaction(item: ItemRecord) -> bool:
    return item.direction == "output" and item.id.startswith(COMPACTION_ID_PREFIX)


def _select_items(newest_first: Iterable[ItemRecord], ids: Collection[str]) -> Mapping[str, ItemRecord]:
    """Those with these ids, of each the newest output, or else the newest input."""
    items: dict[str, ItemRecord] = {}
    missing_ids = set(ids)  # of which an older output may follow
    for item in newest_first:
        if item.id not in missing_ids:
            continue
        if item.direction == "output":
            items[item.id] = item
            missing_ids.discard(item.id)
            if not missing_ids:
                break
        else:
            items.setdefault(item.id, item)
    if sum(len(item.body) for item in items.values()) > MAX_CHAIN_BYTES:
        raise ItemsTooLarge
    return items


def _page(items: list[ItemRecord], after: str | None, limit: int, order: SortOrder) -> ItemPage:
    if order == "desc":
        items.reverse()
    if after is not None:
        # Of several items with that id the last, so that following the cursors always ends.
        positions = [position for position, item in enumerate(items) if item.id == after]
        if not positions:
            raise UnknownCursor(after)
        items = items[positions[-1] + 1 :]
    return ItemPage(tuple(items[:limit]), has_more=len(items) > limit)


class _Conversation:
    """A conversation, its items by id and in order, and the response that has it."""

    def __init__(self, record: ConversationRecord) -> None:
        self.record = record
        self.items: dict[str, ItemRecord] = {}
        self.response_id: str | None = None

    def add(self, items: Sequence[ItemRecord]) -> None:
        ids = {*self.items}
        for item in items:
            if item.id in ids:
                raise DuplicateItem(item.id)
            ids.add(item.id)
        self.items.update({item.id: item for item in items})


class MemoryConversationStore:
    """A `ConversationStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._conversations: dict[str, _Conversation] = {}
        self._by_response: dict[str, _Conversation] = {}  # by the response that has it

    async def create(self, conversation: ConversationRecord, items: Sequence[ItemRecord]) -> None:
        new = _Conversation(conversation)
        new.add(items)
        self._conversations[conversation.id] = new

    async def get(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        current = self._find(tenant, conversation_id)
        return current.record if current else None

    async def all(self, tenant: str, *, after: str | None, limit: int, order: SortOrder) -> ConversationPage:
        records = [each.record for each in self._conversations.values() if each.record.tenant == tenant]
        if order == "desc":
            records.reverse()
        if after is not None:
            place = next((place for place, record in enumerate(records) if record.id == after), None)
            if place is None:
                raise UnknownCursor(after)
            records = records[place + 1 :]
        return ConversationPage(tuple(records[:limit]), has_more=len(records) > limit)

    async def update(self, tenant: str, conversation_id: str, metadata: bytes) -> ConversationRecord | None:
        current = self._find(tenant, conversation_id)
        if current is None:
            return None
        current.record = replace(current.record, metadata=metadata)
        return current.record

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        return self._find(tenant, conversation_id) is not None and self._conversations.pop(conversation_id) is not None

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRecord]) -> None:
        current = self._find(tenant, conversation_id)
        if current is None:
            raise UnknownConversation(conversation_id)
        if current.response_id is not None:
            raise ConversationLocked
        current.add(items)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord | None:
        current = self._find(tenant, conversation_id)
        if current is not None and current.response_id is not None:
            raise ConversationLocked
        return current.record if current is not None and current.items.pop(item_id, None) is not None else None

    async def page(self, tenant: str, conversation_id: str, *, after: str | None, limit: int, order: SortOrder) -> ItemPage | None:
        current = self._find(tenant, conversation_id)
        return _page([*current.items.values()], after, limit, order) if current else None

    async def item(self, tenant: str, item_id: str, conversation_id: str) -> ItemRecord | None:
        current = self._find(tenant, conversation_id)
        return None if current is None else current.items.get(item_id)

    async def items(self, tenant: str, item_ids: Collection[str]) -> Mapping[str, ItemRecord]:
        ids = set(item_ids)
        newest_first = (
            each.items[item_id]
            for each in reversed(self._conversations.values())
            if each.record.tenant == tenant
            for item_id in ids & each.items.keys()
        )
        return _select_items(newest_first, ids)

    async def window(self, tenant: str, conversation_id: str) -> ConversationWindow | None:
        current = self._find(tenant, conversation_id)
        if current is None:
            return None
        items = [*current.items.values()]
        items = items[max((position for position, item in enumerate(items) if _is_compaction(item)), default=0) :]
        check_conversation_size(len(items), sum(len(item.body) for item in items))
        return ConversationWindow(items, frozenset(current.items))

    async def lock(self, tenant: str, conversation_id: str, response_id: str) -> bool:
        current = self._find(tenant, conversation_id)
        if current is None or current.response_id is not None:
            return False
        current.response_id = response_id
        self._by_response[response_id] = current
        return True

    async def unlock(self, response_id: str) -> None:
        if (current := self._by_response.pop(response_id, None)) is not None:
            current.response_id = None

    def unlock_all(self) -> None:
        """Take all conversations back: the responses that had them died with an earlier opening."""
        for each in self._by_response.values():
            each.response_id = None
        self._by_response.clear()

    async def end_turn(self, turn: ConversationTurn) -> None:
        current = self._find(turn.tenant, turn.conversation_id)
        if current is None:
            return
        if current.response_id != turn.response_id:
            raise conversation_lock_lost()
        current.add(turn.items)
        await self.unlock(turn.response_id)

    def _find(self, tenant: str, conversation_id: str) -> _Conversation | None:
        current = self._conversations.get(conversation_id)
        return current if current is not None and current.record.tenant == tenant else None


class MemoryKeyStore:
    """A `KeyStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._keys: dict[str, KeyRecord] = {}

    async def add(self, key: KeyRecord) -> None:
        self._keys[key.id] = key

    async def all(self) -> Sequence[KeyRecord]:
        return sorted(self._keys.values(), key=lambda key: (key.created_at, key.id))

    def is_empty_now(self) -> bool:
        return not self._keys

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


class MemoryPromptStore:
    """A `PromptStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[str, str], PromptRecord] = {}
        self._versions: dict[tuple[str, str], list[PromptVersionRecord]] = {}

    async def add(self, prompt: PromptRecord, body: bytes) -> bool:
        key = (prompt.tenant, prompt.id)
        if key in self._prompts:
            return False
        self._prompts[key] = replace(prompt, default_version=1, latest_version=1)
        self._versions[key] = [PromptVersionRecord(version=1, created_at=prompt.created_at, body=body)]
        return True

    async def add_version(self, tenant: str, prompt_id: str, body: bytes, *, at: int, is_default: bool) -> int | None:
        prompt = self._prompts.get((tenant, prompt_id))
        if prompt is None:
            return None
        number = prompt.latest_version + 1
        self._versions[tenant, prompt_id].append(PromptVersionRecord(version=number, created_at=at, body=body))
        default = number if is_default else prompt.default_version
        self._prompts[tenant, prompt_id] = replace(prompt, latest_version=number, default_version=default)
        return number

    async def find(self, tenant: str | None, prompt_id: str | None = None) -> Sequence[PromptRecord]:
        return [each for each in self._prompts.values() if tenant in (None, each.tenant) and prompt_id in (None, each.id)]

    async def version(self, tenant: str, prompt_id: str, version: int | None = None) -> PromptVersionRecord | None:
        prompt = self._prompts.get((tenant, prompt_id))
        if prompt is None:
            return None
        number = prompt.default_version if version is None else version
        return next((each for each in self._versions[tenant, prompt_id] if each.version == number), None)

    async def versions(self, tenant: str, prompt_id: str) -> Sequence[PromptVersionRecord]:
        return [*self._versions.get((tenant, prompt_id), ())]

    async def set_default(self, tenant: str, prompt_id: str, version: int) -> bool:
        if await self.version(tenant, prompt_id, version) is None:
            return False
        self._prompts[tenant, prompt_id] = replace(self._prompts[tenant, prompt_id], default_version=version)
        return True

    async def delete(self, tenant: str, prompt_id: str) -> bool:
        self._versions.pop((tenant, prompt_id), None)
        return self._prompts.pop((tenant, prompt_id), None) is not None


class MemoryClientSecretStore:
    """A `ClientSecretStore` in memory, until the process ends."""

    def __init__(self) -> None:
        self._secrets: dict[bytes, ClientSecretRecord] = {}

    async def add(self, secret: ClientSecretRecord) -> None:
        self._secrets = {hash: old for hash, old in self._secrets.items() if old.expires_at > secret.created_at}
        self._secrets[secret.hash] = secret

    async def find(self, hash: bytes) -> ClientSecretRecord | None:
        return self._secrets.get(hash)

    async def delete(self, hash: bytes) -> None:
        self._secrets.pop(hash, None)


class MemorySessionStore:
    """A `SessionStore` in memory, until the process ends."""

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
