"""What a store holds, independent of any protocol: only the protocol reads the bytes of a body."""

from typing import Literal

from msgspec import Struct

Direction = Literal["input", "output"]


class ItemRecord(Struct, frozen=True, kw_only=True):
    """
    One conversation item of a stored response.

    Attributes:
        id: unique within its tenant; what `item_reference` and the pagination cursors name.
        direction: whether the client sent it with this response, or this response produced it.
        body: the item as JSON, as clients are shown it.
    """

    id: str
    direction: Direction
    body: bytes


class ResponseRecord(Struct, frozen=True, kw_only=True):
    """
    One stored response, with the items it added to its conversation.

    Attributes:
        id: unique; begins with `resp_`.
        tenant: its owner; every look-up names it.
        created_at: Unix seconds.
        status: as on the wire; `in_progress` until it has ended.
        model: the name that the client requested.
        previous_response_id: the response it continues, or None.
        body: the response object as JSON.
        notes: as JSON, what of it only some profiles show; None for nothing.
        key_id: the key that it was created with; None where no key was needed.
        items: its input in order, then its output in order; none of its ancestors' items.
        branch_of: a response in whose tree it stands, though it continues none; None for a tree of its own. Only written.
    """

    id: str
    tenant: str
    created_at: int
    status: str
    model: str
    previous_response_id: str | None
    body: bytes
    notes: bytes | None = None
    key_id: str | None = None
    items: tuple[ItemRecord, ...] = ()
    branch_of: str | None = None


class ConversationRecord(Struct, frozen=True, kw_only=True):
    """
    One stored conversation, without its items.

    Attributes:
        id: unique; begins with `conv_`.
        tenant: its owner; every look-up names it.
        created_at: Unix seconds.
        metadata: its key-value pairs, as a JSON object.
    """

    id: str
    tenant: str
    created_at: int
    metadata: bytes


class ConversationTurn(Struct, frozen=True, kw_only=True):
    """
    The end of a response that belongs to a conversation: it adds its items, and gives the conversation back.

    Attributes:
        response_id: who has the conversation until then.
        items: what the response adds, in order; empty where it has failed or was cancelled.
    """

    conversation_id: str
    tenant: str
    response_id: str
    items: tuple[ItemRecord, ...] = ()


class EventRun(Struct, frozen=True):
    """
    Consecutive events of a response, as they are sent.

    Attributes:
        first: the sequence number of the first; the others follow without a gap.
        count: how many they are.
        body: the server-sent events, one after another.
    """

    first: int
    count: int
    body: bytes


class BackgroundRecord(Struct, frozen=True, kw_only=True):
    """
    What is stored of a background response beside its `ResponseRecord`.

    Attributes:
        key_id: the key that it was created with; None where no key was needed.
        request: the request as JSON, with which it can be begun again; None once it has begun.
        is_streamed: whether its events are stored.
    """

    key_id: str | None
    request: bytes | None
    is_streamed: bool


class EndedResponse(Struct, frozen=True, kw_only=True):
    """
    A background response that has ended.

    Attributes:
        status: its final one.
        key_id: the key that it was created with; None where no key was needed.
    """

    id: str
    tenant: str
    status: str
    key_id: str | None


DeliveryStatus = Literal["pending", "delivered", "failed"]


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """
    One event on its way to one webhook endpoint, or the outcome.

    Attributes:
        id: unique; begins with `wh_`; the same at every attempt.
        endpoint: its name.
        event: the event's type.
        tenant: the owner of the response.
        response_id: the response that the event is about; it may be deleted by now.
        body: the event as JSON, as it is sent.
        created_at: Unix seconds, as all times here but one.
        expires_at: after an attempt at this time or later there is no other.
        status: `failed` once no attempt follows.
        attempts: how many were made.
        due_at_ms: Unix milliseconds of the next attempt while it is pending.
        ended_at: None while it is pending.
        error: why the latest attempt failed; None if none has.
    """

    id: str
    endpoint: str
    event: str
    tenant: str
    response_id: str
    body: bytes
    created_at: int
    expires_at: int
    status: DeliveryStatus = "pending"
    attempts: int = 0
    due_at_ms: int = 0
    ended_at: int | None = None
    error: str | None = None


class DisabledEndpoint(Struct, frozen=True, kw_only=True):
    """
    A webhook endpoint that gets no events any more.

    Attributes:
        url_hash: SHA-256 of its URL; with another URL it is not disabled.
        disabled_at: Unix seconds.
    """

    name: str
    url_hash: bytes
    disabled_at: int


class PromptRecord(Struct, frozen=True, kw_only=True):
    """
    One stored prompt, without its versions.

    Attributes:
        id: unique in its tenant; begins with `pmpt_`.
        tenant: its owner; every look-up names it.
        created_at: Unix seconds.
        default_version: the one for requests that name none.
        latest_version: the newest; versions are numbered from 1.
    """

    id: str
    tenant: str
    created_at: int
    default_version: int = 1
    latest_version: int = 1


class PromptVersionRecord(Struct, frozen=True, kw_only=True):
    """
    One version of a stored prompt, which never changes.

    Attributes:
        created_at: Unix seconds.
        body: its content as JSON.
    """

    version: int
    created_at: int
    body: bytes


class KeyRecord(Struct, frozen=True, kw_only=True):
    """
    One API key. Only its hash is stored, never the key itself.

    Attributes:
        id: unique; begins with `key_`.
        hash: the whole SHA-256 of the key.
        prefix: the first characters of the key, for people to tell keys apart.
        name: its owner's name for it.
        tenant: whose responses it reaches.
        scopes: what it permits.
        created_at: Unix seconds, as all times here.
        expires_at: when it becomes invalid, or None.
        revoked_at: when it was revoked, or None.
        last_used_at: its last use, to the minute; None if it was never used.
        requests_per_minute: the limit, or None for none.
        tokens_per_minute: the limit, or None for none; input and output count.
        streams: how many responses may be in progress at the same time, or None for any number.
        record: which of its sessions are recorded, a value of `recording.when`; None for the server's own rule.
        profile: of the Responses API, for paths that name none; None for the server's default.
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
    profile: str | None = None

    def is_live(self, at: float) -> bool:
        """Whether it is valid at that time, in Unix seconds."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class ClientSecretRecord(Struct, frozen=True, kw_only=True):
    """
    A short-lived secret that opens Realtime sessions, for a client that is not trusted with a key. Only its hash is
    stored.

    Attributes:
        hash: the whole SHA-256 of the secret.
        key_id: the key it was created with, without which it is invalid; None where no key was needed.
        session: the initial configuration of its sessions, as JSON.
        created_at: Unix seconds, as all times here.
        expires_at: when it becomes invalid; sessions that it has opened go on.
    """

    hash: bytes
    key_id: str | None
    session: bytes
    created_at: int
    expires_at: int


SessionState = Literal["live", "kept", "interrupted"]


class SessionRecord(Struct, frozen=True, kw_only=True):
    """
    One recorded session; the recording's files are elsewhere.

    Attributes:
        id: unique; the client knows the session by it.
        tenant: its owner; every look-up names it.
        key_id: the key it was opened with; None where no key was needed.
        protocol: `realtime` or `minicpmo`.
        mode: the kind of session in that protocol.
        model: the model that answered.
        created_at: Unix seconds, as all times here.
        state: `live` while it is recorded, `kept` after its end, `interrupted` if its server died first.
        ended_at: None while it is live.
        duration_ms: from its start to its end.
        reason: why it ended, a short code; None while it is live.
        bytes: the size of all its files.
        truncated: why the recording is shorter than the session; None if it isn't.
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


FileStatus = Literal["uploading", "processed", "deleted"]


class FileRecord(Struct, frozen=True, kw_only=True):
    """
    One uploaded file; its bytes are elsewhere.

    Attributes:
        id: unique; clients refer to the file by it.
        tenant: its owner; every look-up names it.
        key_id: the key it was uploaded with; None where no key was needed.
        created_at: Unix seconds, as all times here.
        expires_at: when it is deleted; None for never.
        filename: as the client named it, without a folder.
        purpose: what the client said that it is for.
        bytes: its size; while it is uploaded, what it is expected to have.
        status: `uploading` until all of it is stored, `deleted` until its bytes are gone; clients see neither.
    """

    id: str
    tenant: str
    key_id: str | None
    created_at: int
    expires_at: int | None = None
    filename: str = ""
    purpose: str = ""
    bytes: int = 0
    status: FileStatus = "uploading"


class FileCounts(Struct, frozen=True):
    """How many files of a vector store, or of a batch, have each status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_progress + self.completed + self.failed + self.cancelled


VectorStoreState = Literal["active", "expired", "deleted"]


class VectorStoreRecord(Struct, frozen=True, kw_only=True):
    """
    One vector store, without its files.

    Attributes:
        id: unique; begins with `vs_`.
        tenant: its owner; every look-up names it.
        created_at: Unix seconds, as all times here.
        last_active_at: when it was last changed or searched, about to the minute.
        expires_after_days: days after its last activity when it expires; None for never.
        metadata: its key-value pairs, as a JSON object.
        state: `expired` for good once it has; `deleted` until its files are gone, which clients don't see.
        version: rises with each change of what a search finds.
        counts: of its files; only read.
        usage_bytes: of its files together; only read.
    """

    id: str
    tenant: str
    created_at: int
    last_active_at: int
    name: str = ""
    description: str | None = None
    expires_after_days: int | None = None
    metadata: bytes = b"{}"
    state: VectorStoreState = "active"
    version: int = 0
    counts: FileCounts = FileCounts()
    usage_bytes: int = 0

    @property
    def expires_at(self) -> int | None:
        """When it expires, if it is not used until then; None for never."""
        return None if self.expires_after_days is None else self.last_active_at + 86_400 * self.expires_after_days

    def is_expired(self, now: int) -> bool:
        """Whether it has expired by then."""
        return self.state == "expired" or (self.expires_at is not None and self.expires_at <= now)


IndexingStatus = Literal["in_progress", "completed", "failed", "cancelled"]
IndexingErrorCode = Literal["server_error", "unsupported_file", "invalid_file"]


class IndexingError(Struct, frozen=True):
    """Why a file could not be indexed; `message` is for the client."""

    code: IndexingErrorCode
    message: str


class IndexedFileRecord(Struct, frozen=True, kw_only=True):
    """
    One file in a vector store.

    Attributes:
        number: no other file of any vector store has it, nor will; 0 before it is stored.
        store_id: of the vector store.
        file_id: of the uploaded file.
        filename: of the uploaded file.
        created_at: when it was added, in Unix seconds.
        status: `in_progress` until it is indexed.
        error: why it failed; None if it has not.
        usage_bytes: what its chunks and their vectors take.
        attributes: its key-value pairs, as a JSON object.
        max_chunk_tokens: the size of its chunks.
        overlap_tokens: what each chunk has of the one before it.
        batch_id: of the batch that it was added with, if any.
        embedding: the name of the model that its vectors are of; empty before there are any.
        chunk_count: its chunks that are stored.
    """

    store_id: str
    file_id: str
    filename: str
    created_at: int
    max_chunk_tokens: int
    overlap_tokens: int
    number: int = 0
    status: IndexingStatus = "in_progress"
    error: IndexingError | None = None
    usage_bytes: int = 0
    attributes: bytes = b"{}"
    batch_id: str | None = None
    embedding: str = ""
    chunk_count: int = 0


class FileBatchRecord(Struct, frozen=True, kw_only=True):
    """
    Files that were added to a vector store together.

    Attributes:
        id: unique; begins with `vsfb_`.
        created_at: Unix seconds.
        is_cancelled: whether those that were not indexed yet were cancelled.
        counts: of its files; only read.
    """

    id: str
    store_id: str
    created_at: int
    is_cancelled: bool = False
    counts: FileCounts = FileCounts()


class IndexPart(Struct, frozen=True):
    """
    Consecutive chunks of an indexed file.

    Attributes:
        position: of the part in its file, from 0.
        chunk_count: how many chunks it has.
        chunks: their texts, in the form that the indexer chooses.
        vectors: their vectors, in the form that the indexer chooses.
    """

    position: int
    chunk_count: int
    chunks: bytes
    vectors: bytes


class IndexingJob(Struct, frozen=True):
    """A file to be indexed, and whose it is."""

    tenant: str
    file: IndexedFileRecord


class VectorStoreUsage(Struct, frozen=True):
    """How many vector stores a tenant has, and the bytes of their files together."""

    count: int
    bytes: int


class UsageRecord(Struct, frozen=True, kw_only=True):
    """
    What was used in a time by one key, of one model, in one protocol.

    Attributes:
        start: Unix seconds; of an hour where it is stored.
        key_id: of the key; empty without one and, as are the next two, where the records of all are added up.
        model: by its label; empty where none was reached, as for requests that were refused.
        protocol: such as `responses` or `realtime`; empty where it is not known.
        requests: that a model began to answer, such as each response of a Realtime session.
        errors: those of them that failed.
        refusals: requests that were refused because a limit was reached, or the server was full.
        input_cached_tokens: those of `input_tokens` that came from a cache.
    """

    start: int
    key_id: str = ""
    model: str = ""
    protocol: str = ""
    requests: int = 0
    errors: int = 0
    refusals: int = 0
    input_tokens: int = 0
    input_cached_tokens: int = 0
    output_tokens: int = 0
    input_audio_ms: int = 0
    output_audio_ms: int = 0
