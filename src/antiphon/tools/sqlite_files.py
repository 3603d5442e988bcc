"""SQLite files that several processes open at the same time."""

import sqlite3
import time

_PAUSE_S = 0.02


def write_ahead(database: sqlite3.Connection, timeout_s: float) -> None:
    """
    Switch a file to write-ahead logging, so that it can be read while it is written. The file keeps the mode.

    Blocks while another process does the same. SQLite's own busy timeout does not cover this: the two could deadlock.
    Source: https://www.sqlite.org/wal.html#sometimes_queries_return_sqlite_busy_in_wal_mode

    Raises:
        sqlite3.OperationalError: it is locked for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # An extended code, such as SQLITE_BUSY_RECOVERY.
            # Source: https://www.sqlite.org/rescode.html, the low byte is the kind
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
