"""
Responses and their items.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_UNFINISHED = sa.text("status IN ('in_progress', 'queued')")


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("number", _Number, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("previous_response_id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_responses"),
        sa.UniqueConstraint("id", name="uq_responses_id"),
    )
    op.create_index("ix_responses_unfinished", "responses", ["number"], sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED)
    op.create_table(
        "items",
        sa.Column("response_number", _Number, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("direction", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("response_number", "position", name="pk_items"),
        sa.ForeignKeyConstraint(["response_number"], ["responses.number"], name="fk_items_response_number", ondelete="CASCADE"),
        sa.CheckConstraint("direction IN ('input', 'output')", name="ck_items_direction"),
    )
    op.create_index("ix_items_tenant", "items", ["tenant", "id"])
