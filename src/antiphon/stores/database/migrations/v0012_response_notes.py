"""
What of a response only some profiles show, such as why its model was chosen.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
oldest_server = "0005"


def upgrade() -> None:
    op.add_column("responses", sa.Column("notes", sa.LargeBinary))
