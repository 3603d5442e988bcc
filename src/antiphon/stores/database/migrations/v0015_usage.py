"""
What was used, hour by hour.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
oldest_server = "0005"


def upgrade() -> None:
    counts = ("requests", "errors", "refusals", "input_tokens", "input_cached_tokens", "output_tokens", "input_audio_ms", "output_audio_ms")
    op.create_table(
        "usage_hours",
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("protocol", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in counts),
        sa.PrimaryKeyConstraint("start", "key_id", "model", "protocol", name="pk_usage_hours"),
    )
