"""
Which sessions were recorded, and which of a key's are.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("keys", sa.Column("record", sa.Text))
    op.create_table(
        "sessions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("truncated", sa.Text),
        sa.PrimaryKeyConstraint("number", name="pk_sessions"),
        sa.UniqueConstraint("id", name="uq_sessions_id"),
    )
    op.create_index("ix_sessions_tenant", "sessions", ["tenant", "number"])
