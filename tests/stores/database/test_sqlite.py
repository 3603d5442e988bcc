"""SQLite's own errors, in plain words."""

import sqlite3
from pathlib import Path

import pytest

from antiphon.stores.database.sqlite import SqliteBackend, make_private_file


def test_a_full_disk_is_told_as_such() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE words (word TEXT)")
    with pytest.raises(sqlite3.OperationalError) as full:
        database.execute("INSERT INTO words VALUES (?)", ("a" * 100_000,))
    database.close()
    assert (
        SqliteBackend().explain_error(full.value) == "can't be written: the disk is full. Free some space; what was stored before is safe"
    )


def test_a_detailed_error_is_told_as_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "read-only"
    sqlite3.connect(file).close()
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as read_only:
        database.execute("CREATE TABLE words (word TEXT)")
    database.close()
    assert "it is read-only" in str(SqliteBackend().explain_error(read_only.value))


def test_an_error_of_another_kind_is_not_explained() -> None:
    assert SqliteBackend().explain_error(OverflowError()) is None


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"kept")
    file.chmod(0o640)
    make_private_file(file)
    assert file.read_bytes() == b"kept" and file.stat().st_mode & 0o777 == 0o640
