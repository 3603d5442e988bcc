"""
Which older servers may use the tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("oldest_server", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("oldest_server", name="pk_schema_compatibility"),
    )
