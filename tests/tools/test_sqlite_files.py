"""Files that several processes open at the same time."""

import sqlite3
import threading

import pytest

from antiphon.tools.sqlite_files import write_ahead


def mode(file):
    with sqlite3.connect(file) as database:
        return database.execute("PRAGMA journal_mode").fetchone()[0]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.sqlite3"


def locked(file):
    """A connection that writes, as another process might."""
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE theirs (id)")
    return other


def test_waits_for_another_that_writes(file):
    other = locked(file)
    database = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
    thread = threading.Thread(target=write_ahead, args=(database, 60))
    thread.start()
    other.execute("COMMIT")
    thread.join(60)
    assert not thread.is_alive()
    assert mode(file) == "wal"


def test_gives_up_in_time(file):
    other = locked(file)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write_ahead(sqlite3.connect(file, timeout=0), 0)
    other.close()


def test_a_file_that_is_no_database_is_told(file):
    file.write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        write_ahead(sqlite3.connect(file), 60)
