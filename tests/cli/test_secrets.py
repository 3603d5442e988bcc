"""No command, log or status shows a secret that stands in a URL or a header of the configuration or the command line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from support.programs import forks

URLS = [
    "{scheme}://me:hush-1@127.0.0.1:1/v1?key=hush-2&size=2",
    "{scheme}://me:hu/sh@hush-1@127.0.0.1:1/v1?api%5Fkey=hush-2",
    "{scheme}://hush-token@127.0.0.1:1/v1",
    "{scheme}:me:hush-1@127.0.0.1:1/v1",
]

CHAT = "[[models]]\nname = 'm'\nengine = 'chat'\n"

SETTINGS = [
    "[store]\nurl = '{postgresql}'\n",
    "[store]\nurl = 'postgresql://me:hush-1@127.0.0.1:1/db?password=hush-2'\n",
    "[store]\nurl = 'postgresql://me:hush-1@127.0.0.1:1?password=hush-2'\n",
    "[store]\nurl = 'sqlite://?password=hush-2'\n",
    "[store]\nurl = ['{postgresql}']\n",
    "store = '{postgresql}'\n",
    "[recording]\nwhen = 'always'\nurl = '{s3}'\n",
    "[recording]\nurl = {{ folder = '{s3}' }}\n",
    "[speech]\nstt_url = '{http}'\nvoice_url = '{http}'\n",
    "[speech]\nstt_url = ['{http}']\n",
    "[server]\nallowed_origins = ['{http}']\nfetch_networks = ['{http}']\n",
    CHAT + "base_url = '{http}'\n",
    "[[models]]\nname = 'm'\nengine = 'responses'\nbase_url = '{http}'\n",
    "[[models]]\nname = 'm'\nengine = 'realtime'\nbase_url = '{ws}'\n",
    "[[models]]\nname = 'm'\nengine = 'omni'\nworkers = ['{ws}']\n",
    CHAT + "base_url = 'http://127.0.0.1:1/v1?key=hush-2'\nheaders = {{ authorization = 'Bearer hush-3' }}\n",
    CHAT + "base_url = 'http://127.0.0.1:1/v1'\nheaders = {{ x-key = \"hush-3\\nhush-3\" }}\n",
    CHAT + "base_url = 'http://127.0.0.1:1/v1'\nheaders = 'x: hush-3'\n",
    "[[models]]\nname = {{ headers = {{ x = 'hush-3' }} }}\nengine = 'chat'\n",
]

COMMANDS = [
    "config check",
    "config show --origin",
    "doctor",
    "keys list",
    "prompts list",
    "keys create --name a --json",
    "models list",
    "queue list",
    "sessions list",
    "workers list",
]


def filled(settings: str, url: str) -> str:
    urls = {scheme: url.format(scheme=scheme) for scheme in ("s3", "http", "ws")}
    # The user of a database is no token.
    return settings.format(postgresql=url.format(scheme="postgresql").replace("hush-token", "me"), **urls)


# Each setting with each address, but all commands only with the first: the others say no more of a configuration than these two.
CONFIGURATIONS = sorted({filled(settings, url) for settings in SETTINGS for url in URLS})
FIRST = {filled(settings, URLS[0]) for settings in SETTINGS}
TELLING = [command for command in COMMANDS if command.startswith(("config show", "doctor"))]
CASES = [
    *((configuration, COMMANDS if configuration in FIRST else TELLING) for configuration in CONFIGURATIONS),
    *(pytest.param(each, COMMANDS, marks=pytest.mark.long) for each in CONFIGURATIONS if each not in FIRST),
]


@pytest.fixture
def object_store(monkeypatch):
    """S3 on this machine, where nothing listens."""
    for name, value in {"ENDPOINT": "http://127.0.0.1:1", "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("object_store", "store")
@pytest.mark.parametrize(("configuration", "commands"), CASES)
def test_no_command_shows_a_secret_of_the_configuration(antiphon, home, free_port, configuration, commands):
    (home / "antiphon.toml").write_text(configuration)
    for command in commands:
        result = antiphon(*command.split(), ANTIPHON_PORT=free_port, ANTIPHON_STORE__TIMEOUT_S="1")
        assert "hush" not in result.out + result.err, (command, result)


@pytest.mark.parametrize("url", [url.format(scheme=scheme) for url in URLS for scheme in ("http", "ws")])
@pytest.mark.parametrize(
    "command", ["ask hi --url", "talk --sample --url", "sessions list --url", "worker --engine scripted --model m --join"]
)
def test_no_command_shows_a_secret_of_an_address_that_was_typed(antiphon, command, url):
    result = antiphon(*command.split(), url, ANTIPHON_WORKER_KEY="k" * 32)
    assert result.code == 2
    assert "hush" not in result.out + result.err


@pytest.mark.parametrize("url", [url.format(scheme="http") for url in URLS])
def test_no_command_shows_a_secret_of_the_address_in_the_environment(antiphon, url):
    result = antiphon("ask", "hi", OPENAI_BASE_URL=url)
    assert result.code == 2 and "OPENAI_BASE_URL" in result.err and "OPENAI_API_KEY" in result.err
    assert "hush" not in result.out + result.err


def log_of(home, *settings):
    """All that `antiphon serve` writes, and its status where it serves; it is stopped then."""
    (home / "antiphon.toml").write_text("\n".join(settings))
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "antiphon", "serve", "--port", "0"]
    with forks.Popen(command, cwd=home, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            said = process.stdout.readline()
            if address := said.rstrip().rpartition(" ")[2]:
                for path in ("/status", "/v1/models", "/metrics"):
                    with contextlib.closing(urllib.request.urlopen(address + path, timeout=60)) as response:
                        said += response.read().decode()
                ask(address)
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            return said + out + err
        finally:
            process.kill()


def ask(address):
    body = json.dumps({"model": "m", "input": "Hello.", "audio": {"output": {"voice": "alloy"}}}).encode()
    request = urllib.request.Request(f"{address}/v1/responses", body, {"content-type": "application/json"})
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.parametrize(
    "settings",
    [
        "[store]\nurl = 'postgresql://me:hush-1@127.0.0.1:1/db?password=hush-2'\ntimeout_s = 1\n"
        "[[models]]\nname = 'm'\nengine = 'scripted'",
        CHAT + "base_url = 'http://me:hush-1@127.0.0.1:1/v1?key=hush-2'",
        "[recording]\nwhen = 'always'\nurl = 's3://me:hush-1@bucket/x?key=hush-2'\n"
        "[speech]\nstt_url = 'http://me:hush-3@127.0.0.1:1/v1'\n"
        f"{CHAT}base_url = 'http://127.0.0.1:1/v1?key=hush-4'\nheaders = {{ x-org = 'hush-5' }}\n",
    ],
)
def test_neither_log_nor_status_shows_a_secret(home, settings):
    shown = log_of(home, settings)
    assert shown and "hush" not in shown
