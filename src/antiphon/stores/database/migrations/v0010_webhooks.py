"""
Deliveries of webhooks, and the endpoints that want none any more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
oldest_server = "0005"


def upgrade() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("response_id", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("owner", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("id", name="uq_webhook_deliveries_id"),
    )
    op.create_index("ix_webhook_deliveries_ended_at", "webhook_deliveries", ["ended_at"])
    op.create_index("ix_webhook_deliveries_owner", "webhook_deliveries", ["owner"])
    is_pending = sa.text("status = 'pending'")
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["endpoint", "due_at_ms"],
        sqlite_where=is_pending,
        postgresql_where=is_pending,
    )
    op.create_table(
        "disabled_webhooks",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("url_hash", sa.LargeBinary, nullable=False),
        sa.Column("disabled_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_disabled_webhooks"),
    )
