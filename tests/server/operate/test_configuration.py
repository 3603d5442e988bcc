"""`GET /config`: every setting with its origin, and no secret, whichever place it was written in."""

import json

import httpx2
import pytest

from antiphon.config.listing import flatten
from antiphon.config.load import load, pack, unpack
from antiphon.server.processes.run import background_server

FILE = """
[server]
allowed_hosts = ["inside.example"]

[queue]
priorities = ["realtime=2"]

[tools.code_interpreter]
sandbox = "off"

[[tools.mcp]]
label = "calendar"
url = "http://127.0.0.1:9/mcp?token=hunter2"
headers = { authorization = "Bearer hunter2" }
key_env = "CALENDAR_KEY"

[[models]]
name = "parrot"
engine = "scripted"

[[models]]
name = "far"
engine = "chat"
base_url = "http://127.0.0.1:9/v1"
model = "far"
api_key_env = "FAR_KEY"
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "antiphon.toml").write_text(FILE)
    environ = {"HOME": str(home), "ANTIPHON_LOGGING__LEVEL": "error", "CALENDAR_KEY": "hunter2"}
    return load({"store.timeout_s": 120}, None, environ, home, system_file=home / "none.toml").config


@pytest.fixture(scope="module")
def listing(config):
    with background_server(config) as url:
        reply = httpx2.get(f"{url}/config", timeout=60)
    assert reply.status_code == 200
    return {setting["key"]: setting for setting in reply.json()}, reply.text


def test_every_setting_is_there_once_with_what_set_it(config, listing):
    settings, _ = listing
    assert settings.keys() == flatten(config).keys()
    assert settings["server.allowed_hosts"] == {
        "key": "server.allowed_hosts",
        "value": ["inside.example"],
        "origin": "antiphon.toml",
        "default": [],
        "secret": None,
        "restart": True,
    }
    assert settings["logging.level"]["origin"] == "ANTIPHON_LOGGING__LEVEL"
    assert (settings["store.timeout_s"]["value"], settings["store.timeout_s"]["origin"]) == (120, "--timeout-s")
    assert settings["server.port"]["origin"] == "built-in" and settings["server.port"]["default"] == 8642
    assert settings["queue.priorities"]["origin"] == settings["tools.code_interpreter.sandbox"]["origin"] == "antiphon.toml"
    assert settings["realtime.sessions"]["restart"] is False


def test_no_secret_and_no_folder_is_told(listing, config):
    settings, text = listing
    assert "hunter2" not in text and str(config.home.parent) not in text
    states = {key: setting["secret"] for key, setting in settings.items() if setting["secret"]}
    assert states.items() >= {"tools.mcp": "set", "models": "unset"}.items()
    assert "***" in json.dumps(settings["tools.mcp"]["value"])


def test_a_process_of_several_knows_the_origins_too(config):
    assert unpack(pack(config)).origins == config.origins != {}
