"""
Lists of responses: the root of each one's tree, the key that made it, and the words that it is found by.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
oldest_server = "0005"

# What continues a response that is gone has that one as its root, as have all others that continue it.
ROOTS = """
WITH RECURSIVE trees (number, id, tenant, root_id) AS (
    SELECT number, id, tenant, coalesce(previous_response_id, id) FROM responses AS first
    WHERE NOT EXISTS (SELECT 1 FROM responses AS older WHERE older.id = first.previous_response_id AND older.tenant = first.tenant)
    UNION ALL
    SELECT newer.number, newer.id, newer.tenant, trees.root_id FROM trees
    JOIN responses AS newer ON newer.previous_response_id = trees.id AND newer.tenant = trees.tenant
)
UPDATE responses SET root_id = (SELECT trees.root_id FROM trees WHERE trees.number = responses.number)
"""
ROOTS_POSTGRESQL = ROOTS.replace(
    "UPDATE responses SET root_id = (SELECT trees.root_id FROM trees WHERE trees.number = responses.number)",
    "UPDATE responses SET root_id = trees.root_id FROM trees WHERE trees.number = responses.number",
)

WORDS_SQLITE = (
    "CREATE VIRTUAL TABLE response_words USING fts5(words, tokenize='ascii', detail='none')",
    "CREATE TRIGGER responses_forget_words AFTER DELETE ON responses BEGIN DELETE FROM response_words WHERE rowid = old.number; END",
)
WORDS_POSTGRESQL = (
    "CREATE TABLE response_words (number BIGINT NOT NULL CONSTRAINT pk_response_words PRIMARY KEY"
    " CONSTRAINT fk_response_words_number REFERENCES responses (number) ON DELETE CASCADE, words TSVECTOR NOT NULL)",
    "CREATE INDEX ix_response_words_words ON response_words USING gin (words)",
)


def upgrade() -> None:
    op.add_column("responses", sa.Column("root_id", sa.Text))
    op.add_column("responses", sa.Column("key_id", sa.Text))
    op.add_column("responses", sa.Column("is_indexed", sa.Boolean))
    is_sqlite = op.get_context().dialect.name == "sqlite"
    # Finding what continues a response takes an index, which nothing else needs.
    op.create_index("ix_responses_previous", "responses", ["previous_response_id"])
    op.execute(ROOTS if is_sqlite else ROOTS_POSTGRESQL)
    op.drop_index("ix_responses_previous", "responses")
    op.create_index("ix_responses_tenant", "responses", ["tenant", "number"])
    op.create_index("ix_responses_root", "responses", ["tenant", "root_id", "number"])
    is_unindexed = sa.text("is_indexed IS NULL")
    op.create_index("ix_responses_unindexed", "responses", ["number"], sqlite_where=is_unindexed, postgresql_where=is_unindexed)
    op.create_index("ix_conversations_tenant", "conversations", ["tenant", "number"])
    for statement in WORDS_SQLITE if is_sqlite else WORDS_POSTGRESQL:
        op.execute(statement)
