"""One store of each kind, for the contract suites."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.stores.base import Store
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sql.store import SqlStore
from support.stores.tables import sqlite_store

PATIENCE_S = 120
"""The default was seen to pass while other programs kept both cores busy."""


def made(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match kind:
        case "sqlite":
            return SqlStore(sqlite_store(tmp_path / "store.sqlite3"), timeout_s=PATIENCE_S)
        case "postgresql":
            return SqlStore(request.getfixturevalue("postgres").new_store(), timeout_s=PATIENCE_S)
        case _:
            return MemoryStore()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = made(request.param, request, tmp_path)
    await store.open()
    yield store
    await store.close()
