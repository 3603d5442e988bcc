"""The program, run in this process with an outside of its own."""

import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from antiphon.cli.common.shell import Shell
from antiphon.cli.main import run
from support.stores.tables import sqlite_store

PARROT = """
[[models]]
name = "parrot"
engine = "scripted"

[[models.answers]]
when = "Lisbon"
to = "message"
lines = [{ call = "get_weather", arguments = { city = "Lisbon" } }]

[[models.answers]]
when = "DictReader"
to = "message"
lines = [{ call = "python", arguments = { code = "20 + 1" } }]

[[models.answers]]
when = "Rome"
say = '{"city": "Rome", "country": "Italy", "capital": true}'

[[models.answers]]
when = "break"
lines = [{ text = "So far" }, { failure = { message = "It broke." } }]

[[models.answers]]
when = "cut"
lines = [{ text = "So far" }, { finish_reason = "length" }]

[[models.answers]]
when = "decline"
lines = [{ refusal = "No." }]

[[models.answers]]
say = "You said: {input}"
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Antiphon = Callable[..., Run]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, which is also the folder that the program is started in."""
    return tmp_path


@pytest.fixture
def store(home: Path) -> None:
    """A store in its usual place, with its tables, which are empty: to make them costs more than most commands."""
    sqlite_store(home / ".local/share/antiphon/antiphon.sqlite3")


@pytest.fixture
def antiphon(home: Path) -> Antiphon:
    def started(*arguments: str, stdin: str = "", **environ: str) -> Run:
        out, err = io.StringIO(), io.StringIO()
        here = {"HOME": str(home)} | environ
        code = run(arguments, Shell(environ=here, cwd=home, stdin=io.StringIO(stdin), stdout=out, stderr=err))
        return Run(code, out.getvalue(), err.getvalue())

    return started


@pytest.fixture
def free_port() -> str:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def parrot(home: Path, antiphon: Antiphon, free_port: str) -> Antiphon:
    """The program where a scripted model is configured and no server runs."""
    (home / "antiphon.toml").write_text(f"[server]\nport = {free_port}\n{PARROT}")
    return antiphon
