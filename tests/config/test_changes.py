"""What of a new configuration takes effect at once, and what with a restart."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.config.changes import LIVE_LISTS, LIVE_SETTINGS, compare
from antiphon.config.listing import list_settings
from antiphon.config.load import Config, load

_CONCURRENCY = "ANTIPHON_TOOLS__WEB_SEARCH__CONCURRENCY"
REFERENCE = Path(__file__).parents[2] / "docs" / "guide" / "operating.md"


def config(environ: dict[str, str] | None = None, **flags: Any) -> Config:
    folder = Path("/nowhere")
    settings = {key.replace("__", "."): value for key, value in flags.items()}
    return load(settings, None, {"HOME": "/nowhere", **(environ or {})}, folder, system_file=folder / "none").config


def test_nothing_has_changed_where_nothing_is_different() -> None:
    changes = compare(config(server__port=1), config(server__port=1))
    assert changes == (config(server__port=1), (), ())


def test_live_settings_are_taken_over_and_others_keep_their_value() -> None:
    former = config(server__port=1, responses__obfuscation=True)
    new = config(server__port=2, server__heartbeat_s=3, responses__obfuscation=False, models=[{"name": "a", "engine": "scripted"}])
    changes = compare(former, new)
    assert (set(changes.settings), changes.restart) == ({"server.heartbeat_s", "responses.obfuscation"}, ("server.port",))
    assert (changes.config.server.port, changes.config.server.heartbeat_s, changes.config.responses.obfuscation) == (1, 3, False)
    assert changes.config.models == new.models
    assert former.responses.obfuscation and not former.models, "the former one stays as it was"
    assert compare(changes.config, new).restart == ("server.port",), "it is named until the restart"


def test_secrets_are_those_of_both() -> None:
    models = [{"name": "a", "engine": "chat", "api_key_env": "KEY"}]
    former, new = config({"KEY": "1", "ANTIPHON_WORKER_KEY": "w"}, models=models), config({"KEY": "2"}, models=models)
    assert dict(compare(former, new).config.secrets) == {"KEY": "2", "ANTIPHON_WORKER_KEY": "w"}
    assert former.secrets["KEY"] == "1"


@pytest.mark.parametrize("key", sorted(LIVE_SETTINGS))
def test_a_live_setting_exists_and_is_in_the_guide(key: str) -> None:
    section, name = key.split(".")
    assert name in type(getattr(config(), section)).model_fields
    assert f"`{key}`" in REFERENCE.read_text()


def test_settings_in_a_table_that_is_live_are_live_with_their_origins() -> None:
    former, new = (config(environ={"ANTIPHON_TOOLS__WEB_SEARCH__PROVIDER": "local", **more}) for more in ({}, {_CONCURRENCY: "7"}))
    shown = {setting.key: setting for setting in list_settings(compare(former, new).config)}
    setting = shown["tools.web_search.concurrency"]
    assert (setting.value, setting.needs_restart, setting.origin) == (7, False, _CONCURRENCY)
    assert shown["tools.call_s"].needs_restart is False and shown["tools.vector_stores.searches"].needs_restart is True


def test_live_lists_exist() -> None:
    assert set(LIVE_LISTS) <= Config.model_fields.keys()
