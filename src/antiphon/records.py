"""
What a store keeps, free of any protocol: bodies are bytes that only their protocol reads.
"""

from typing import Literal

from msgspec import Struct

Direction = Literal["input", "output"]


class ItemRecord(Struct, frozen=True, kw_only=True):
    """
    One conversation item of a stored response.

    Attributes:
        id: unique within its tenant; what `item_reference` and the pagination cursors name.
        direction: whether the client sent it with this response, or this response produced it.
        body: the item as JSON, as it is to be shown again.
    """

    id: str
    direction: Direction
    body: bytes


class ResponseRecord(Struct, frozen=True, kw_only=True):
    """
    One stored response, with the items that it added to its conversation.

    Attributes:
        id: unique; begins with `resp_`.
        tenant: whose it is; every look-up names it.
        created_at: Unix seconds.
        status: as on the wire; `in_progress` until it has ended.
        model: the name that the client asked for.
        previous_response_id: the response that it continues, or None.
        body: the response object as JSON.
        items: input in the order given, then output in the order made; none of the ancestors' items.
    """

    id: str
    tenant: str
    created_at: int
    status: str
    model: str
    previous_response_id: str | None
    body: bytes
    items: tuple[ItemRecord, ...] = ()


class KeyRecord(Struct, frozen=True, kw_only=True):
    """
    One API key. The key itself is nowhere: only its hash is kept.

    Attributes:
        id: unique; begins with `key_`.
        hash: the whole SHA-256 of the key.
        prefix: how the key begins, for people to tell keys apart.
        name: what its owner calls it.
        tenant: whose responses it reaches.
        scopes: what it may do.
        created_at: Unix seconds, as all times here.
        expires_at: from when on it opens nothing, or None.
        revoked_at: since when it opens nothing, or None.
        last_used_at: a recent use, to the minute; None where there was none.
        requests_per_minute: the limit, or None for none.
        tokens_per_minute: the limit, or None for none; input and output count.
        streams: how many answers it may have under way at the same time, or None for any number.
        record: which of its sessions are recorded, in the words of `recording.when`; None for those that the server records.
    """

    id: str
    hash: bytes
    prefix: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None
    record: str | None = None

    def is_live(self, at: float) -> bool:
        """Whether it opens anything at that time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class ClientSecretRecord(Struct, frozen=True, kw_only=True):
    """
    A secret that opens Realtime sessions for a while, for a client that is not trusted with a key. The secret itself is nowhere.

    Attributes:
        hash: the whole SHA-256 of the secret.
        key_id: the key that it was made with, which has to live as long; None where none was needed.
        session: what its sessions begin with, as JSON.
        created_at: Unix seconds, as all times here.
        expires_at: from when on it opens nothing; what it has opened goes on.
    """

    hash: bytes
    key_id: str | None
    session: bytes
    created_at: int
    expires_at: int


SessionState = Literal["live", "kept", "interrupted"]


class SessionRecord(Struct, frozen=True, kw_only=True):
    """
    One recorded session; the recording itself is elsewhere.

    Attributes:
        id: unique; what the client knows the session by.
        tenant: whose it is; every look-up names it.
        key_id: the key that it was opened with; None where none was needed.
        protocol: in which it was held, such as `realtime`.
        mode: which kind of session of that protocol.
        model: the one that answered.
        created_at: Unix seconds, as all times here.
        state: `live` while it is recorded, `kept` when it has ended, `interrupted` where its server died first.
        ended_at: None while it is live.
        duration_ms: from its beginning to its end.
        reason: why it ended, in one of few words; None while it is live.
        bytes: of all its files.
        truncated: why the recording ends before the session; None where it doesn't.
    """

    id: str
    tenant: str
    key_id: str | None
    protocol: str
    mode: str
    model: str
    created_at: int
    state: SessionState = "live"
    ended_at: int | None = None
    duration_ms: int = 0
    reason: str | None = None
    bytes: int = 0
    truncated: str | None = None
