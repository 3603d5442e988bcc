"""
Background responses and their events.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
oldest_server = "0005"

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "background_responses",
        sa.Column("response_number", _Number, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("request", sa.LargeBinary),
        sa.Column("is_streamed", sa.Boolean, nullable=False),
        sa.Column("is_expired", sa.Boolean, nullable=False),
        sa.Column("event_bytes", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("response_number", name="pk_background_responses"),
        sa.ForeignKeyConstraint(
            ["response_number"], ["responses.number"], name="fk_background_responses_response_number", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_background_responses_ended_at", "background_responses", ["ended_at"])
    op.create_table(
        "response_events",
        sa.Column("response_number", _Number, nullable=False),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("event_count", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("response_number", "first", name="pk_response_events"),
        sa.ForeignKeyConstraint(["response_number"], ["responses.number"], name="fk_response_events_response_number", ondelete="CASCADE"),
    )
