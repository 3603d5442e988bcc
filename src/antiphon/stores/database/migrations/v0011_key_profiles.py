"""
The profile of the Responses API that a key has.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
oldest_server = "0005"


def upgrade() -> None:
    op.add_column("keys", sa.Column("profile", sa.Text))
