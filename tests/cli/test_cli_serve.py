"""What `antiphon serve` says."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.serve import greeting
from antiphon.config import Config, ModelEntry
from antiphon.settings import SpeechSettings, StoreSettings

PARROT = ModelEntry(name="parrot", engine="scripted")


def config(url: str = "sqlite") -> Config:
    return Config(home=Path("/var/antiphon"), models_dir=Path("/var/models"), models=(PARROT,), store=StoreSettings(url=url))


def test_the_greeting_says_where_it_is_what_it_has_and_what_to_try():
    said = greeting(config(), "http://127.0.0.1:8642", "antiphon", is_open=True)
    for part in (
        "http://127.0.0.1:8642\n",
        "models     parrot\n",
        "/var/antiphon/antiphon.sqlite3",
        "/var/models",
        'antiphon ask "What is a fugue?"\n',
        "antiphon talk question.wav\n",
        "curl http://127.0.0.1:8642/v1/responses",
        "from openai import OpenAI",
    ):
        assert part in said


def test_the_greeting_names_an_unusual_address_where_it_is_needed():
    assert '.venv/bin/antiphon ask "What is a fugue?" --url http://[::1]:9/v1' in greeting(
        config(), "http://[::1]:9", ".venv/bin/antiphon", is_open=True
    )


def test_the_greeting_says_what_hears_and_speaks_or_how_to_get_it():
    def said(**speech: object) -> str:
        return greeting(config().model_copy(update={"speech": SpeechSettings(**speech)}), "http://127.0.0.1:8642", "antiphon", is_open=True)

    assert "  speech     none: `speech.enabled` is off\n" in said(enabled=False)
    assert "  speech     none: these " in said()


@pytest.mark.parametrize(
    ("url", "shown"),
    [("memory", "in memory, until it stops"), ("postgresql+asyncpg://me:secret@db/x", "postgresql+asyncpg://me:***@db/x")],
)
def test_the_greeting_says_where_responses_are_kept_without_passwords(url, shown):
    assert shown in greeting(config(url), "http://127.0.0.1:8642", "antiphon", is_open=True)


def test_the_greeting_says_who_may_come_in():
    def said(url: str = "sqlite", *, is_open: bool) -> str:
        return greeting(config(url), "http://127.0.0.1:8642", "antiphon", is_open=is_open)

    assert "  open to    this machine only, and needs no key until you make one with `antiphon keys create`\n" in said(is_open=True)
    assert "  open to    this machine only, and needs no key\n" in said("memory", is_open=True)
    locked = said(is_open=False)
    assert "  open to    whoever has a key; `antiphon keys list` shows them\n" in locked
    assert (
        "Authorization: Bearer YOUR_KEY" in locked and 'api_key="YOUR_KEY"' in locked and "ANTIPHON_API_KEY=YOUR_KEY antiphon ask" in locked
    )


@pytest.fixture
def serving(parrot, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program as a process that serves, and its address."""
    started = [sys.executable, "-m", "antiphon", "serve"]
    outside = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(started, cwd=home, env=outside, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout
            said = list(itertools.takewhile(lambda line: line != "Ctrl-C stops it.\n", process.stdout))
            yield process, said[0].split()[-1]
        finally:
            process.kill()


def test_a_served_model_answers_until_ctrl_c_ends_it_quietly(serving, parrot):
    process, base_url = serving
    asked = parrot("ask", "Hello.")
    assert (asked.out, asked.err) == ("You said: Hello.\n", "")  # the running server, so no engine starts here
    assert parrot("ask", "Hello.", "--url", base_url).out == "You said: Hello.\n"
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 0
    assert "Traceback" not in said


def test_a_port_in_use_is_one_line_and_code_1(serving, parrot):
    result = parrot("serve", ANTIPHON_HOME="elsewhere")
    assert result.code == 1
    assert result.err.startswith("antiphon: Can't listen on 127.0.0.1:")
    assert result.err.count("\n") == 1
