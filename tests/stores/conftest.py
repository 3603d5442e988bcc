"""What the tests of SQL stores share."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, in each that is supported."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite3"
    made: str = request.getfixturevalue("postgres").new_database()
    return made
