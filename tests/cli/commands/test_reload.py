"""`antiphon reload`: the output for the answers of a running server."""

import json

import pytest

from antiphon.config.load import load
from antiphon.server.processes.run import background_server


class Settings:
    """What the server reads, which the test changes."""

    def __init__(self, home):
        self.home = home
        self.flags = {"models": [{"name": "a", "engine": "scripted"}], "logging.level": "error"}

    def load(self):
        return load(self.flags, None, {"HOME": str(self.home)}, self.home, system_file=self.home / "none.toml").config


@pytest.fixture
def served(tmp_path):
    settings = Settings(tmp_path)
    with background_server(settings.load(), load=settings.load) as url:
        yield settings, url


def test_what_changed_is_said_line_by_line(antiphon, served):
    settings, url = served
    assert antiphon("reload", "--url", url).out == "nothing has changed\n"
    settings.flags |= {"models": [{"name": "b", "engine": "scripted"}], "responses.obfuscation": False, "server.drain_s": 3}
    assert antiphon("reload", "--url", url).out.splitlines() == [
        "added    b",
        "removed  a",
        "set      responses.obfuscation",
        "restart  server.drain_s is changed by a restart only",
    ]
    report = json.loads(antiphon("reload", "--json", "--url", url).out)
    assert report == {"added": [], "changed": [], "removed": [], "problems": [], "settings": [], "restart": ["server.drain_s"]}


def test_a_model_that_can_not_be_served_fails_the_command(antiphon, served):
    settings, url = served
    settings.flags["models"] = [{"name": "a", "engine": "scripted", "script": "missing.toml"}]
    result = antiphon("reload", "--url", url)
    assert result.code == 1 and result.out.startswith("failed   a: ") and "Not every model could be served" in result.err


def test_a_mistake_fails_the_command_and_is_said(antiphon, served):
    settings, url = served
    settings.flags["models"] = [{"name": "a"}]
    result = antiphon("reload", "--url", url)
    assert result.code == 1 and "The configuration stays as it was." in result.err and "models[0].engine: is missing" in result.err
