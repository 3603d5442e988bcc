"""What the tests of SQL stores share."""

from pathlib import Path

import pytest

from support.stores.tables import sqlite_store


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, in each that is supported."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite3"
    made: str = request.getfixturevalue("postgres").new_database()
    return made


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database with a store's tables, in each that is supported."""
    if request.param == "sqlite":
        return sqlite_store(tmp_path / "store.sqlite3")
    made: str = request.getfixturevalue("postgres").new_store()
    return made
