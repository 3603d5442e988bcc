"""
The current tables of the SQL store; `migrations` leads here from every earlier schema.

Bodies are bytes that no query looks into, so the database needs no JSON support.
"""

from typing import TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    event,
    insert,
    inspect,
    literal_column,
    select,
    text,
)

from antiphon.stores.database import lazy
from antiphon.stores.usage import USAGE_COUNTS

REVISION = "0015"
"""The revision of the tables below, which is the latest of `migrations`."""

OLDEST_SERVER = "0005"
"""The revision of the oldest server that may use them, as `migrations` say it."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

KeyT = TypeVar("KeyT")

# SQLite numbers rows only where the type is INTEGER. Source: https://www.sqlite.org/lang_createtable.html#rowid
_Number = BigInteger().with_variant(Integer, "sqlite")

responses = Table(
    "responses",
    metadata,
    Column("number", _Number, primary_key=True),  # rises with every put: the newest has the highest
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("previous_response_id", Text),
    Column("body", LargeBinary, nullable=False),
    Column("owner", BigInteger),  # the number of the server that works on it
    Column("notes", LargeBinary),
    Column("root_id", Text),  # of its tree; null until it is indexed, where an older server stored it
    Column("key_id", Text),
    Column("is_indexed", Boolean),  # whether it is found by its words; null if not
    Index("ix_responses_tenant", "tenant", "number"),
    Index("ix_responses_root", "tenant", "root_id", "number"),
)

# Nearly all responses are finished, so this partial index stays tiny. It serves only queries with this very text,
# without parameters. Source: https://www.sqlite.org/partialindex.html, "Queries Using Partial Indexes"
is_unfinished = responses.c.status.in_([literal_column("'in_progress'"), literal_column("'queued'")])
Index("ix_responses_unfinished", responses.c.number, sqlite_where=is_unfinished, postgresql_where=is_unfinished)

is_unindexed = responses.c.is_indexed.is_(None)
Index("ix_responses_unindexed", responses.c.number, sqlite_where=is_unindexed, postgresql_where=is_unindexed)

# Both find the words that begin as those asked for. The words of a text are made here (`search_words`), so that every
# database finds the same: FTS5's tokenizer `ascii` parts them at spaces and at nothing else, as `string_to_array` does.
# Source: https://www.sqlite.org/fts5.html
_WORD_TABLES = {
    "sqlite": (
        "CREATE VIRTUAL TABLE response_words USING fts5(words, tokenize='ascii', detail='none')",
        "CREATE TRIGGER responses_forget_words AFTER DELETE ON responses BEGIN DELETE FROM response_words WHERE rowid = old.number; END",
    ),
    "postgresql": (
        "CREATE TABLE response_words (number BIGINT NOT NULL CONSTRAINT pk_response_words PRIMARY KEY"
        " CONSTRAINT fk_response_words_number REFERENCES responses (number) ON DELETE CASCADE, words TSVECTOR NOT NULL)",
        "CREATE INDEX ix_response_words_words ON response_words USING gin (words)",
    ),
}


@event.listens_for(responses, "after_create")
def _create_words(_table: Table, connection: Connection, **_options: object) -> None:
    for statement in _WORD_TABLES[connection.dialect.name]:
        connection.execute(text(statement))


items = Table(
    "items",
    metadata,
    Column("response_number", _Number, ForeignKey("responses.number", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    CheckConstraint("direction IN ('input', 'output')", name="direction"),
    Index("ix_items_tenant", "tenant", "id"),
)

conversations = Table(
    "conversations",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("response_id", Text),  # the response that has it, and
    Column("owner", BigInteger),  # the number of the server that makes that response
    Index("ix_conversations_tenant", "tenant", "number"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("conversation_number", _Number, ForeignKey("conversations.number", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    CheckConstraint("direction IN ('input', 'output')", name="direction"),
    UniqueConstraint("conversation_number", "id"),
    Index("ix_conversation_items_tenant", "tenant", "id"),
)

background_responses = Table(
    "background_responses",
    metadata,
    Column("response_number", _Number, ForeignKey("responses.number", ondelete="CASCADE"), primary_key=True),
    Column("key_id", Text),
    Column("request", LargeBinary),
    Column("is_streamed", Boolean, nullable=False),
    Column("is_expired", Boolean, nullable=False),  # whether its events were deleted
    Column("event_bytes", BigInteger, nullable=False),  # of all its events, once it has ended
    Column("ended_at", BigInteger, index=True),
)

response_events = Table(
    "response_events",
    metadata,
    Column("response_number", _Number, ForeignKey("responses.number", ondelete="CASCADE"), primary_key=True),
    Column("first", Integer, primary_key=True),  # the sequence number of the first event in the body
    Column("event_count", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("endpoint", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("response_id", Text, nullable=False),  # it may be deleted: its end is sent in any case
    Column("body", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("ended_at", BigInteger, index=True),
    Column("error", Text),
    Column("owner", BigInteger, index=True),  # the number of the server that sends it
)

is_pending = webhook_deliveries.c.status == literal_column("'pending'")
Index(
    "ix_webhook_deliveries_pending",
    webhook_deliveries.c.endpoint,
    webhook_deliveries.c.due_at_ms,
    sqlite_where=is_pending,
    postgresql_where=is_pending,
)

disabled_webhooks = Table(
    "disabled_webhooks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("url_hash", LargeBinary, nullable=False),
    Column("disabled_at", BigInteger, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # separated by spaces
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("streams", BigInteger),
    Column("record", Text),
    Column("profile", Text),
)

prompts = Table(
    "prompts",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("default_version", Integer, nullable=False),
    Column("latest_version", Integer, nullable=False),
    UniqueConstraint("tenant", "id"),
)

prompt_versions = Table(
    "prompt_versions",
    metadata,
    Column("prompt_number", _Number, ForeignKey("prompts.number", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

client_secrets = Table(
    "client_secrets",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("key_id", Text),
    Column("session", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)

sessions = Table(
    "sessions",
    metadata,
    Column("number", _Number, primary_key=True),  # in the order in which they began
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),
    Column("protocol", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("ended_at", BigInteger),
    Column("duration_ms", BigInteger, nullable=False),
    Column("reason", Text),
    Column("bytes", BigInteger, nullable=False),
    Column("truncated", Text),
    Index("ix_sessions_tenant", "tenant", "number"),
)

usage_hours = Table(
    "usage_hours",
    metadata,
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("key_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("protocol", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in USAGE_COUNTS),
)

files = Table(
    "files",
    metadata,
    Column("number", _Number, primary_key=True),  # in the order in which their uploads began
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, index=True),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", BigInteger),  # the number of the server that it is uploaded to, until all of it is stored
    Index("ix_files_tenant", "tenant", "number"),
    Index("ix_files_hidden", "number", sqlite_where=text("status != 'processed'"), postgresql_where=text("status != 'processed'")),
)

vector_stores = Table(
    "vector_stores",
    metadata,
    Column("number", _Number, primary_key=True),  # in the order in which they were created
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_active_at", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("expires_after_days", Integer),
    Column("expires_at", BigInteger, index=True),
    Column("metadata", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Index("ix_vector_stores_tenant", "tenant", "number"),
    Index("ix_vector_stores_gone", "number", sqlite_where=text("state != 'active'"), postgresql_where=text("state != 'active'")),
)

vector_store_batches = Table(
    "vector_store_batches",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("store_number", _Number, ForeignKey("vector_stores.number", ondelete="CASCADE"), nullable=False, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("is_cancelled", Boolean, nullable=False),
)

# Servers that index a file, or have it in memory, know it by its number, so no other file may get that number after it
# is gone. Without AUTOINCREMENT, SQLite would use it again. Source: https://www.sqlite.org/autoinc.html
vector_store_files = Table(
    "vector_store_files",
    metadata,
    Column("number", _Number, primary_key=True),  # in the order in which they were added
    Column("store_number", _Number, ForeignKey("vector_stores.number", ondelete="CASCADE"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("file_id", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("usage_bytes", BigInteger, nullable=False),
    Column("attributes", LargeBinary, nullable=False),
    Column("max_chunk_tokens", Integer, nullable=False),
    Column("overlap_tokens", Integer, nullable=False),
    Column("batch_id", Text),
    Column("embedding", Text, nullable=False),
    Column("chunk_count", Integer, nullable=False),
    Column("owner", BigInteger),  # the number of the server that indexes it
    UniqueConstraint("store_number", "file_id"),
    Index("ix_vector_store_files_status", "store_number", "status", "usage_bytes"),
    Index("ix_vector_store_files_batch", "batch_id", "status"),
    Index("ix_vector_store_files_tenant", "tenant", "usage_bytes"),
    Index("ix_vector_store_files_file", "file_id"),
    Index(
        "ix_vector_store_files_waiting",
        "tenant",
        "number",
        sqlite_where=text("status = 'in_progress'"),
        postgresql_where=text("status = 'in_progress'"),
    ),
    sqlite_autoincrement=True,
)

vector_store_parts = Table(
    "vector_store_parts",
    metadata,
    Column("file_number", _Number, ForeignKey("vector_store_files.number", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("chunk_count", Integer, nullable=False),
    Column("chunks", LargeBinary, nullable=False),
    Column("vectors", LargeBinary, nullable=False),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("oldest_server", Text, primary_key=True),  # the schema of the oldest server that may use these tables; one row
)

# As Alembic makes it.
_alembic_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def has_nul(text: str) -> bool:
    """
    Whether no row can have that text, as an id: PostgreSQL stores none with a NUL, and raises an error for a query with one.

    Source: https://www.postgresql.org/docs/current/datatype-character.html
    """
    return "\0" in text


def lock_rows(query: Select[tuple[KeyT]], *, skips_locked: bool = True) -> Select[tuple[KeyT]]:
    """
    Lock the rows that `query` finds, in its order; for an `IN`. Rows that another transaction has locked are skipped, or
    else waited for: in one order everywhere, so that servers that share the database never deadlock. A statement that
    changes several rows locks them in the order of its plan.

    PostgreSQL may run a query in an `IN` once for each row that it compares. Here each run would skip the rows that the
    run before has locked and changed, and find others, so a limit would not hold. A materialized CTE is run once.
    Source: https://www.postgresql.org/docs/current/queries-with.html#QUERIES-WITH-CTE-MATERIALIZATION

    SQLite has one writer, and nothing to lock. Its driver counts the rows of no statement that begins with `WITH`, so the
    CTE is within the `IN`.
    """
    rows = query.with_for_update(skip_locked=skips_locked).cte("rows_to_change", nesting=True)
    return select(rows.prefix_with("MATERIALIZED", dialect="postgresql").c[0])


class NewerSchema(RuntimeError):
    """
    A later version of antiphon has migrated the database, and this one can't use it; `args[0]` is its revision.
    """


def is_current(connection: Connection) -> bool:
    """
    Whether these tables can be used as they are: they are current, or newer ones that allow for this version.

    Raises:
        NewerSchema: they are newer, and don't.
    """
    revision = _revision(connection)
    if revision is None or revision <= REVISION:
        return revision == REVISION
    has_row = inspect(connection).has_table(schema_compatibility.name)
    oldest_server = connection.scalar(select(schema_compatibility.c.oldest_server)) if has_row else None
    if oldest_server is None or oldest_server > REVISION:
        raise NewerSchema(revision)
    return True


def migrate(connection: Connection) -> None:
    """
    Create or migrate the tables, within the connection's transaction, unless another server has done it meanwhile.

    Raises:
        NewerSchema: the database is newer; nothing was changed.
    """
    if is_current(connection):
        return
    if _revision(connection) is None:
        metadata.create_all(connection, checkfirst=False)
        _alembic_version.create(connection, checkfirst=True)
        connection.execute(insert(_alembic_version).values(version_num=REVISION))
        oldest_server = OLDEST_SERVER
    else:
        oldest_server = lazy.upgrade(connection)
    connection.execute(delete(schema_compatibility))
    connection.execute(insert(schema_compatibility).values(oldest_server=oldest_server))


def _revision(connection: Connection) -> str | None:
    """The revision of the tables that are there; None where there are none."""
    return connection.scalar(select(_alembic_version.c.version_num)) if inspect(connection).has_table(_alembic_version.name) else None
