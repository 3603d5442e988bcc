"""Servers of pictures in the configuration."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import ConfigError, LoadedConfig, load

FLUX = {"model": "flux", "base_url": "http://10.0.0.1/v1/"}


def loaded(folder: Path, *entries: dict[str, Any], environ: dict[str, str] | None = None) -> LoadedConfig:
    return load({"tools.images": [*entries]}, None, {"HOME": str(folder), **(environ or {})}, folder, system_file=folder / "none.toml")


def test_a_table_has_the_fields_of_the_usual_models(tmp_path: Path):
    (entry,) = loaded(tmp_path, FLUX).config.tools.images
    assert (entry.base_url, entry.edits, "response_format" in entry.fields, "size" in entry.fields) == (
        "http://10.0.0.1/v1",
        True,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"base_url": "ftp://a"}, "tools.images[0].base_url: expected a URL"),
        ({"base_url": "http://me:secret@a/v1"}, "tools.images[0].base_url: expected a URL"),
        ({"base_url": "http://a/v1?x=1"}, "tools.images[0].base_url: expected a URL"),
        ({"base_url": "http://a/ü"}, "tools.images[0].base_url: expected a URL"),
        ({"model": ""}, "tools.images[0].model"),
        ({"fields": ["colour"]}, "tools.images[0].fields[0]"),
        ({"headers": {"a b": "c"}}, "tools.images[0].headers: expected headers"),
        ({"headers": {"a": "b\nc"}}, "tools.images[0].headers: expected headers"),
        ({"timeout_s": 0}, "tools.images[0].timeout_s"),
        ({"max_mib": 0}, "tools.images[0].max_mib"),
        ({"parallel": 0}, "tools.images[0].parallel"),
        ({"colour": "blue"}, "tools.images[0].colour"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, fields: dict[str, Any], place: str):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, FLUX | fields)
    assert place in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_key_is_known_by_its_variable(tmp_path: Path):
    config = loaded(tmp_path, FLUX | {"key_env": "FLUX_KEY"}, environ={"FLUX_KEY": "sesame"}).config
    assert config.secrets["FLUX_KEY"] == "sesame"
