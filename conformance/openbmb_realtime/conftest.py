"""A server of its own for what the shared one can't show: keys, and sessions that may last only seconds."""

import os
import subprocess
from types import SimpleNamespace

import pytest

SETTINGS = """
[[models]]
name = "parrot"
engine = "scripted"

[minicpmo]
audio_s = 2
warning_s = 1
init_s = 1
chat_idle_s = 1

# The scripted model hears and speaks by itself.
[speech]
enabled = false

[tools.code_interpreter]
sandbox = "off"
"""


@pytest.fixture(scope="session")
def strict(tmp_path_factory):
    """Its address, and the only key that it takes."""
    home = tmp_path_factory.mktemp("strict")
    (home / "antiphon.toml").write_text(SETTINGS)
    program, environ = os.environ["ANTIPHON"], os.environ | {"ANTIPHON_HOME": str(home)}
    key = subprocess.run([program, "keys", "create", "--name", "sdk"], cwd=home, env=environ, check=True, capture_output=True, text=True)
    command = [program, "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            line = next(line for line in server.stdout if "http://" in line)
            yield SimpleNamespace(url=line[line.index("http://") :].split()[0].rstrip("/.,"), key=key.stdout.strip())
        finally:
            server.terminate()
