"""
Conversations, and their items.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
oldest_server = "0005"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "conversations",
        sa.Column("number", number, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("response_id", sa.Text),
        sa.Column("owner", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name="pk_conversations"),
        sa.UniqueConstraint("id", name="uq_conversations_id"),
    )
    op.create_table(
        "conversation_items",
        sa.Column("conversation_number", number, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("direction", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("direction IN ('input', 'output')", name="ck_conversation_items_direction"),
        sa.ForeignKeyConstraint(
            ["conversation_number"],
            ["conversations.number"],
            name="fk_conversation_items_conversation_number",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_number", "position", name="pk_conversation_items"),
        sa.UniqueConstraint("conversation_number", "id", name="uq_conversation_items_conversation_number"),
    )
    op.create_index("ix_conversation_items_tenant", "conversation_items", ["tenant", "id"])
