"""A SQLite file with the tables of a store, which are empty: to copy it costs a fifth of making them."""

import functools
import tempfile
from pathlib import Path

from sqlalchemy import create_engine

from antiphon.stores.database.schema import migrate


def sqlite_store(path: Path) -> str:
    """The URL of a file, which is made so unless it is there."""
    if path.exists():
        return f"sqlite:///{path}"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(_empty())
    path.chmod(0o600)
    return f"sqlite:///{path}"


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/store")
        with engine.begin() as connection:
            migrate(connection)
        engine.dispose()
        return Path(folder, "store").read_bytes()
