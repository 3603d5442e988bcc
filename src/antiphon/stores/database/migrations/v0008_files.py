"""
Uploaded files.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
oldest_server = "0005"

_GONE = sa.text("status != 'processed'")


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name="pk_files"),
        sa.UniqueConstraint("id", name="uq_files_id"),
    )
    op.create_index("ix_files_tenant", "files", ["tenant", "number"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_index("ix_files_hidden", "files", ["number"], sqlite_where=_GONE, postgresql_where=_GONE)
