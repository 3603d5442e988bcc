"""
Stored prompts, and their versions.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
oldest_server = "0005"

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "prompts",
        sa.Column("number", _Number, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("default_version", sa.Integer, nullable=False),
        sa.Column("latest_version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_prompts"),
        sa.UniqueConstraint("tenant", "id", name="uq_prompts_tenant"),
    )
    op.create_table(
        "prompt_versions",
        sa.Column("prompt_number", _Number, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("prompt_number", "version", name="pk_prompt_versions"),
        sa.ForeignKeyConstraint(["prompt_number"], ["prompts.number"], name="fk_prompt_versions_prompt_number", ondelete="CASCADE"),
    )
