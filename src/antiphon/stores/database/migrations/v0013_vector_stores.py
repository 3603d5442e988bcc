"""
Vector stores, their files, and the chunks and vectors of these.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
oldest_server = "0005"

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_GONE = sa.text("state != 'active'")
_WAITING = sa.text("status = 'in_progress'")


def upgrade() -> None:
    _create_stores()
    _create_files()
    op.create_table(
        "vector_store_parts",
        sa.Column("file_number", _Number, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("chunk_count", sa.Integer, nullable=False),
        sa.Column("chunks", sa.LargeBinary, nullable=False),
        sa.Column("vectors", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("file_number", "position", name="pk_vector_store_parts"),
        sa.ForeignKeyConstraint(
            ["file_number"], ["vector_store_files.number"], name="fk_vector_store_parts_file_number", ondelete="CASCADE"
        ),
    )


def _create_stores() -> None:
    op.create_table(
        "vector_stores",
        sa.Column("number", _Number, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("last_active_at", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("expires_after_days", sa.Integer),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_vector_stores"),
        sa.UniqueConstraint("id", name="uq_vector_stores_id"),
    )
    op.create_index("ix_vector_stores_tenant", "vector_stores", ["tenant", "number"])
    op.create_index("ix_vector_stores_expires_at", "vector_stores", ["expires_at"])
    op.create_index("ix_vector_stores_gone", "vector_stores", ["number"], sqlite_where=_GONE, postgresql_where=_GONE)
    op.create_table(
        "vector_store_batches",
        sa.Column("number", _Number, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("store_number", _Number, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("is_cancelled", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_vector_store_batches"),
        sa.UniqueConstraint("id", name="uq_vector_store_batches_id"),
        sa.ForeignKeyConstraint(
            ["store_number"], ["vector_stores.number"], name="fk_vector_store_batches_store_number", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_vector_store_batches_store_number", "vector_store_batches", ["store_number"])


def _create_files() -> None:
    op.create_table(
        "vector_store_files",
        sa.Column("number", _Number, nullable=False, primary_key=True, autoincrement=True),
        sa.Column("store_number", _Number, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("file_id", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("usage_bytes", sa.BigInteger, nullable=False),
        sa.Column("attributes", sa.LargeBinary, nullable=False),
        sa.Column("max_chunk_tokens", sa.Integer, nullable=False),
        sa.Column("overlap_tokens", sa.Integer, nullable=False),
        sa.Column("batch_id", sa.Text),
        sa.Column("embedding", sa.Text, nullable=False),
        sa.Column("chunk_count", sa.Integer, nullable=False),
        sa.Column("owner", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name="pk_vector_store_files"),
        sa.UniqueConstraint("store_number", "file_id", name="uq_vector_store_files_store_number"),
        sa.ForeignKeyConstraint(["store_number"], ["vector_stores.number"], name="fk_vector_store_files_store_number", ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_vector_store_files_status", "vector_store_files", ["store_number", "status", "usage_bytes"])
    op.create_index("ix_vector_store_files_batch", "vector_store_files", ["batch_id", "status"])
    op.create_index("ix_vector_store_files_tenant", "vector_store_files", ["tenant", "usage_bytes"])
    op.create_index("ix_vector_store_files_file", "vector_store_files", ["file_id"])
    op.create_index(
        "ix_vector_store_files_waiting", "vector_store_files", ["tenant", "number"], sqlite_where=_WAITING, postgresql_where=_WAITING
    )
