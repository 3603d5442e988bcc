"""The migrations lead to the tables that the store is written for."""

import re
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from antiphon.stores.sql.schema import NewerSchema, metadata, migrate


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_migrating_makes_the_tables_of_the_schema(connection: Connection) -> None:
    migrate(connection)
    assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_migrating_makes_the_same_keys_checks_and_indices(connection: Connection) -> None:
    def statements() -> dict[str, list[str]]:
        """By table or index, the parts of the statement that made it, in no order: a column that was added stands last."""
        made = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'"))
        return {name: sorted(part.strip() for part in re.split(r",|\n|\)$", sql) if part.strip()) for name, sql in made}

    migrate(connection)
    migrated = statements()
    metadata.drop_all(connection)
    metadata.create_all(connection)
    assert migrated == statements()


def test_migrating_again_changes_nothing(connection: Connection) -> None:
    migrate(connection)
    before = connection.execute(text("SELECT version_num FROM alembic_version")).all()
    migrate(connection)
    assert connection.execute(text("SELECT version_num FROM alembic_version")).all() == before


def test_a_schema_from_the_future_is_not_touched(connection: Connection) -> None:
    migrate(connection)
    connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerSchema, match="9999"):
        migrate(connection)
