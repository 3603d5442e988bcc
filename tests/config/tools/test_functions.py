"""The operator's functions in the configuration."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import ConfigError, LoadedConfig, load

MINE = {"label": "mine", "file": "tools.py"}


def loaded(folder: Path, *entries: Any) -> LoadedConfig:
    return load({"tools.functions": [*entries]}, None, {"HOME": str(folder)}, folder, system_file=folder / "none.toml")


def test_a_file_or_an_entry_point_is_named(tmp_path: Path):
    entries = loaded(tmp_path, MINE, {"label": "w", "entry_point": "weather", "read_only": ["rain"]}).config.tools.functions
    assert [(entry.file, entry.entry_point, entry.read_only) for entry in entries] == [
        (str(tmp_path / "tools.py"), None, ()),
        (None, "weather", ("rain",)),
    ]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"label": "a b"}, "tools.functions[0].label"),
        ({"label": "1a"}, "tools.functions[0].label"),
        ({"label": "a" * 65}, "tools.functions[0].label"),
        ({"label": "a\n"}, "tools.functions[0].label"),
        ({"file": None}, "expected either `file` or `entry_point`"),
        ({"entry_point": "x"}, "expected either `file` or `entry_point`"),
        ({"call_s": 0}, "tools.functions[0].call_s"),
        ({"memory_mib": 1}, "tools.functions[0].memory_mib"),
        ({"output_chars": 0}, "tools.functions[0].output_chars"),
        ({"parallel": 0}, "tools.functions[0].parallel"),
        ({"colour": "blue"}, "tools.functions[0].colour"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, fields: dict[str, Any], place: str):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, MINE | fields)
    assert place in str(caught.value)


def test_labels_are_unique(tmp_path: Path):
    with pytest.raises(ConfigError, match="more than one of them has the label 'mine'"):
        loaded(tmp_path, MINE, MINE)


def test_what_is_no_table_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tools\.functions\[0\]"):
        loaded(tmp_path, "tools.py")
