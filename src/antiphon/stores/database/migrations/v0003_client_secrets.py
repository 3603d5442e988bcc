"""
Secrets that open Realtime sessions for a while.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "client_secrets",
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("session", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_client_secrets"),
    )
    op.create_index("ix_client_secrets_expires_at", "client_secrets", ["expires_at"])
