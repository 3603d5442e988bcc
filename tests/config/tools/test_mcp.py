"""The operator's MCP servers in the configuration."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import ConfigError, LoadedConfig, load

WIKI = {"label": "wiki", "url": "http://10.0.0.1/mcp"}


def loaded(folder: Path, *servers: dict[str, Any], environ: dict[str, str] | None = None) -> LoadedConfig:
    return load({"tools.mcp": [*servers]}, None, environ or {}, folder, system_file=folder / "none.toml")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://example.com"}, "tools.mcp[0].url: expected a URL that begins with http:// or https://"),
        ({"url": "http://me:secret@example.com/"}, "tools.mcp[0].url: expected a URL"),
        ({"url": None}, "needs either `url` or `command`"),
        ({"command": ["server"]}, "needs either `url` or `command`"),
        ({"url": None, "command": ["server"], "key_env": "KEY"}, "are for a server with a `url`"),
        ({"env": {"A": "b"}}, "are for a server with a `command`"),
        ({"headers": {"a b": "c"}}, "tools.mcp[0].headers: expected headers such as"),
        ({"label": "a b"}, "tools.mcp[0].label"),
        ({"label": "a" * 65}, "tools.mcp[0].label"),
        ({"colour": "blue"}, "tools.mcp[0].colour"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, WIKI | fields)
    assert message in str(caught.value)


def test_labels_are_unique(tmp_path: Path):
    with pytest.raises(ConfigError, match="more than one MCP server has the label 'wiki'"):
        loaded(tmp_path, WIKI, WIKI)


def test_a_key_comes_from_the_environment(tmp_path: Path):
    config = loaded(tmp_path, WIKI | {"key_env": "WIKI_KEY"}, environ={"WIKI_KEY": "sk-1", "OTHER": "x", "HOME": str(tmp_path)}).config
    assert config.secrets == {"WIKI_KEY": "sk-1"}
