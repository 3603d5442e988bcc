"""The output of `antiphon serve`."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from antiphon import __version__
from antiphon.cli.commands.serve import greeting
from antiphon.config.load import Config, ModelEntry
from antiphon.config.routing import RouteEntry
from antiphon.config.settings import ServerSettings, SpeechSettings, StoreSettings
from antiphon.runtime.access.keys import KeyAccess
from antiphon.runtime.speech import service
from antiphon.server.tls.certificates import ensure_certificates
from antiphon.server.tls.names import server_names
from support.cli.hollow import hollow
from support.programs import forks

needs_speech = pytest.mark.skipif(bool(service.missing_modules(SpeechSettings())), reason="the extra speech is not installed")

OPEN = KeyAccess(is_open=True, has_live_key=False)
WITH_KEY = KeyAccess(is_open=False, has_live_key=True)
LOCKED_OUT = KeyAccess(is_open=False, has_live_key=False)

PARROT = ModelEntry(name="parrot", engine="scripted")


def config(url: str = "sqlite") -> Config:
    return Config(home=Path("/var/antiphon"), models_dir=Path("/var/models"), models=(PARROT,), store=StoreSettings(url=url))


def test_the_greeting_says_where_it_is_what_it_has_and_what_to_try():
    said = greeting(config(), "http://127.0.0.1:8642", "antiphon", OPEN)
    for part in (
        "http://127.0.0.1:8642\n",
        "models     parrot\n",
        "/var/antiphon/antiphon.sqlite3",
        "/var/models",
        'antiphon ask "What is a fugue?"\n',
        "  page       http://127.0.0.1:8642/\n",
        "  API        http://127.0.0.1:8642/docs\n",
        "curl http://127.0.0.1:8642/v1/responses \\\n",
        "from openai import OpenAI",
    ):
        assert part in said


def greeting_of(*models: ModelEntry) -> str:
    return greeting(
        config().model_copy(update={"models": models}), "http://127.0.0.1:8642", "antiphon", KeyAccess(is_open=True, has_live_key=False)
    )


def test_the_greeting_names_the_routes():
    routed = config().model_copy(update={"routing": (RouteEntry(default="parrot"), RouteEntry(name="cheap", default="parrot"))})
    said = greeting(routed, "http://127.0.0.1:8642", "antiphon", OPEN)
    assert "  routes     auto, cheap\n" in said
    assert "routes" not in greeting_of(PARROT)


def test_the_greeting_shows_a_name_that_works_where_a_model_stands_for_many():
    said = greeting_of(ModelEntry(name="mock-*", engine="scripted"))
    assert "  models     any name that begins with 'mock-', such as 'mock-1'\n" in said and "mock-*" not in said
    assert 'antiphon ask "What is a fugue?" --model mock-1\n' in said and '"model": "mock-1"' in said and 'model="mock-1"' in said
    assert "any name, such as 'model-1'" in greeting_of(ModelEntry(name="*", engine="scripted"))


def test_the_greeting_tries_the_first_model_with_a_name_of_its_own():
    said = greeting_of(ModelEntry(name="mock-*", engine="scripted"), PARROT)
    assert "  models     any name that begins with 'mock-', such as 'mock-1', parrot\n" in said
    assert 'antiphon ask "What is a fugue?"\n' in said and 'model="parrot"' in said


def test_the_greeting_invents_no_name_of_a_model_that_another_server_has():
    said = greeting_of(ModelEntry(name="gpt-*", engine="chat"))
    assert "  models     the models in `GET /v1/models` whose names begin with 'gpt-'\n" in said
    assert "gpt-1" not in said and "--model YOUR_MODEL" in said and 'model="YOUR_MODEL"' in said


def test_the_greeting_fits_a_terminal_and_what_is_to_be_tried_stands_at_the_margin():
    default = config().model_copy(update={"models": (ModelEntry(name="qwen2.5-coder-1.5b-instruct", engine="local"),)})
    said = greeting(default, "http://127.0.0.1:8642", "antiphon", WITH_KEY).splitlines()
    tried = said[said.index("Try, in another terminal:") :]
    assert "from openai import OpenAI" in tried
    assert max(map(len, tried)) <= 100 and max(len(line) for line in tried if not line.startswith("answer")) <= 80


@pytest.mark.parametrize(("heard", "dialled"), [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")])
def test_what_is_to_be_tried_dials_an_address_that_can_be_dialled(heard, dialled):
    said = greeting(config(), f"http://{heard}:9", "antiphon", WITH_KEY)
    assert said.startswith(f"antiphon {__version__} answers at http://{heard}:9\n")
    assert f'ANTIPHON_API_KEY=YOUR_KEY antiphon ask "What is a fugue?" --url http://{dialled}:9/v1\n' in said
    assert said.count(heard) == 1


def test_the_greeting_offers_a_talk_only_to_a_model_that_hears():
    silent = config().model_copy(update={"speech": SpeechSettings(enabled=False)})
    assert "antiphon talk --sample\n" in greeting(silent, "http://127.0.0.1:8642", "antiphon", OPEN)
    deaf = silent.model_copy(update={"models": (ModelEntry(name="deaf", engine="local"),)})
    assert "antiphon talk" not in greeting(deaf, "http://127.0.0.1:8642", "antiphon", OPEN)


@needs_speech
def test_the_greeting_says_that_nothing_speaks_where_its_weights_were_altered(tmp_path):
    hollow(tmp_path, is_remembered=False)
    said = greeting(config().model_copy(update={"models_dir": tmp_path}), "http://127.0.0.1:8642", ".venv/bin/antiphon", OPEN)
    assert "  speech     none: weights altered since they were fetched; run `.venv/bin/antiphon models pull --speech`\n" in said
    hollow(tmp_path, is_remembered=True)
    assert "  speech     moonshine-tiny-en transcribes, piper-en-us-joe-medium speaks\n" in greeting(
        config().model_copy(update={"models_dir": tmp_path}), "http://127.0.0.1:8642", "antiphon", OPEN
    )


def test_the_greeting_names_an_unusual_address_where_it_is_needed():
    assert '.venv/bin/antiphon ask "What is a fugue?" --url http://[::1]:9/v1' in greeting(
        config(), "http://[::1]:9", ".venv/bin/antiphon", OPEN
    )


def test_the_greeting_says_what_hears_and_speaks_or_how_to_get_it():
    def said(**speech: object) -> str:
        return greeting(config().model_copy(update={"speech": SpeechSettings(**speech)}), "http://127.0.0.1:8642", "antiphon", OPEN)

    assert "  speech     none: `speech.enabled` is off\n" in said(enabled=False)
    assert re.search("  speech     none: (weights not fetched; run `antiphon models pull --speech`\n|these are not installed: )", said())


@pytest.mark.parametrize(
    ("url", "shown"),
    [("memory", "in memory, until it stops"), ("postgresql+asyncpg://me:secret@db/x", "postgresql+asyncpg://me:***@db/x")],
)
def test_the_greeting_says_where_responses_are_kept_without_passwords(url, shown):
    assert shown in greeting(config(url), "http://127.0.0.1:8642", "antiphon", OPEN)


def test_the_greeting_says_who_may_come_in():
    def said(access: KeyAccess, url: str = "sqlite") -> str:
        return greeting(config(url), "http://127.0.0.1:8642", "antiphon", access)

    assert "  open to    this machine only; no key needed until `antiphon keys create`\n" in said(OPEN)
    assert "  open to    this machine only; no key needed\n" in said(OPEN, "memory")
    locked = said(WITH_KEY)
    assert "  open to    everyone with a key; `antiphon keys list` shows the keys\n" in locked
    assert (
        "  open to    nobody: no key is valid; `antiphon keys create` makes one, or set `require_keys = false` under `[server]`, which "
        "serves this machine without keys\n"
    ) in said(LOCKED_OUT)
    assert (
        "Authorization: Bearer YOUR_KEY" in locked and 'api_key="YOUR_KEY"' in locked and "ANTIPHON_API_KEY=YOUR_KEY antiphon ask" in locked
    )


@pytest.fixture
def serving(parrot, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program as a process that serves, and its address."""
    started = [sys.executable, "-m", "antiphon", "serve"]
    outside = {**os.environ, "HOME": str(home)}
    with forks.Popen(started, cwd=home, env=outside, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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


def test_a_running_server_reads_its_file_again(serving, parrot, home):
    file = home / "antiphon.toml"
    file.write_text(file.read_text().replace('"parrot"', '"polly"'))
    assert parrot("reload").out == "added    polly\nremoved  parrot\n"
    assert parrot("ask", "Hello.", "--model", "polly").out == "You said: Hello.\n"
    file.write_text(f"{file.read_text()}[[models]]\nname == 'b'\n")
    result = parrot("reload", "--url", serving[1])
    assert result.code == 1 and "(at line" in result.err
    assert "The configuration stays as it was. antiphon.toml: is not valid TOML" in result.err


def test_a_port_in_use_is_one_line_and_code_1(serving, parrot):
    result = parrot("serve", ANTIPHON_HOME="elsewhere")
    assert result.code == 1
    assert result.err.startswith("antiphon: Can't listen on 127.0.0.1:")
    assert result.err.count("\n") == 1


def test_a_model_that_is_configured_wrongly_is_told_before_anything_is_loaded(parrot, home):
    with (home / "antiphon.toml").open("a") as file:
        file.write("[[models]]\nname = 'mine'\nengine = 'local'\npath = 'absent.gguf'\n")
    line = (home / "antiphon.toml").read_text().splitlines().index("name = 'mine'")
    result = parrot("serve")
    assert (result.code, result.err) == (
        2,
        f"antiphon: {home / 'antiphon.toml'}:{line}: Model 'mine': There is no model file {home / 'absent.gguf'}.\n",
    )


def test_a_model_server_that_is_down_is_told(parrot, home):
    with (home / "antiphon.toml").open("a") as file:
        file.write('[[models]]\nname = "*"\nengine = "chat"\nbase_url = "http://127.0.0.1:9/v1"\n')
    with forks.Popen(
        [sys.executable, "-m", "antiphon", "serve", "--port", "0"],
        cwd=home,
        env={**os.environ, "HOME": str(home)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        try:
            assert process.stdout.readline().startswith(f"antiphon {__version__} answers at ")
        finally:
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
    assert "the model server of '*' at http://127.0.0.1:9/v1 can't be reached: connection refused; its models work as soon as" in said


def test_the_greeting_says_where_others_find_it_and_whom_to_trust(tmp_path):
    settings = ServerSettings(tls="auto", host="0.0.0.0", allowed_hosts=("voice.example.com", "*.lan"))
    served = config().model_copy(update={"home": tmp_path, "server": settings})
    certificates = ensure_certificates(served, server_names(served), datetime.now(UTC))
    said = greeting(served, "https://0.0.0.0:8642", "antiphon", WITH_KEY)
    assert "https://voice.example.com:8642\n" in said and "*.lan" not in said
    assert f"  authority  {tmp_path}/tls/ca.crt\n" in said and "/ca.crt\n" in said
    first, second = re.findall(r"(?:[0-9A-F]{2}:?){16}", said)
    assert first + second == certificates.fingerprint
    assert 'antiphon ask "What is a fugue?"\n' in said and "curl https://127.0.0.1:8642/v1/responses" in said
    assert f"export SSL_CERT_FILE={tmp_path}/tls/ca.crt\n" in said
    assert max(map(len, said.splitlines())) <= 100 + len(str(tmp_path))


def test_a_greeting_without_tls_says_nothing_of_it(tmp_path):
    assert "SHA-256" not in greeting(config(), "http://127.0.0.1:8642", "antiphon", OPEN)
