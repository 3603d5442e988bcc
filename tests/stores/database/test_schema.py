"""The migrations lead to the tables that the store is written for."""

import re
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from antiphon.stores.database.schema import OLDEST_SERVER, REVISION, NewerSchema, is_current, metadata, migrate
from antiphon.stores.database.upgrade import upgrade


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_migrating_makes_the_tables_of_the_schema(connection: Connection) -> None:
    upgrade(connection)
    # Each database has a table of its own kind for words, which no metadata describes.
    is_described = lambda _object, name, *_rest: not str(name).startswith("response_words")  # noqa: E731
    assert compare_metadata(MigrationContext.configure(connection, opts={"include_object": is_described}), metadata) == []


def test_migrating_makes_the_same_keys_checks_and_indices(connection: Connection) -> None:
    def statements() -> dict[str, list[str]]:
        """By table or index, the parts of the statement that made it, in no order: a column that was added stands last."""
        made = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return {name: sorted(part.strip() for part in re.split(r",|\n|\)$", sql) if part.strip()) for name, sql in made}

    upgrade(connection)
    migrated = statements()
    metadata.drop_all(connection)
    for table in ("alembic_version", "response_words"):
        connection.execute(text(f"DROP TABLE {table}"))
    migrate(connection)
    assert migrated == statements()


def test_migrating_again_changes_nothing(connection: Connection) -> None:
    migrate(connection)
    before = connection.execute(text("SELECT version_num FROM alembic_version")).all()
    migrate(connection)
    assert connection.execute(text("SELECT version_num FROM alembic_version")).all() == before


def newer(connection: Connection, oldest_server: str) -> None:
    """Migrate, as a later version would that has added a column and says which servers may go on."""
    migrate(connection)
    connection.execute(text("ALTER TABLE responses ADD COLUMN note TEXT"))
    connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    connection.execute(text("UPDATE schema_compatibility SET oldest_server = :oldest"), {"oldest": oldest_server})


def test_a_newer_schema_that_does_not_allow_for_this_version_is_not_touched(connection: Connection) -> None:
    newer(connection, "9998")
    with pytest.raises(NewerSchema, match="9999"):
        migrate(connection)


def test_a_newer_schema_that_says_nothing_is_not_touched(connection: Connection) -> None:
    newer(connection, REVISION)
    connection.execute(text("DROP TABLE schema_compatibility"))
    with pytest.raises(NewerSchema, match="9999"):
        migrate(connection)


def test_a_newer_schema_that_allows_for_this_version_is_used_as_it_is(connection: Connection) -> None:
    newer(connection, REVISION)
    assert is_current(connection)
    migrate(connection)
    assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"


def test_the_revision_of_the_tables_is_the_latest(connection: Connection) -> None:
    assert not is_current(connection)
    migrate(connection)
    assert is_current(connection)
    assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == REVISION
    assert connection.execute(text("SELECT oldest_server FROM schema_compatibility")).scalars().all() == [OLDEST_SERVER]


def test_the_revision_and_the_oldest_server_of_new_tables_are_those_that_migrations_lead_to(connection: Connection) -> None:
    assert upgrade(connection) == OLDEST_SERVER
    assert is_current(connection)
