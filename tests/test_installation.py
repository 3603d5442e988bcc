"""What installs more of this copy of antiphon."""

import re
from pathlib import Path

import pytest

from antiphon.installation import describe_command, install_hint

CLONE = {"url": "file:///home/ann/my%20clone", "dir_info": {}}
EDITABLE = {"url": "file:///home/ann/antiphon", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///tmp/antiphon-0.1.0-py3-none-any.whl", "archive_info": {}}
GIT = {"url": "https://git.example/antiphon", "vcs_info": {"vcs": "git", "commit_id": "0"}}

SITE = Path("/usr/lib/python3/site-packages/antiphon")


@pytest.mark.parametrize(
    ("origin", "prefix", "sentence"),
    [
        (None, "/usr", "Run `pip install 'antiphon[speech,piper]'`."),
        (WHEEL, "/usr", "Run `pip install 'antiphon[speech,piper]'`."),
        (GIT, "/usr", "Run `pip install 'antiphon[speech,piper]'`."),
        (CLONE, "/home/ann/env", "Run `pip install '.[speech,piper]'` in the clone."),
        (EDITABLE, "/home/ann/env", "Run `pip install -e '.[speech,piper]'` in the clone."),
        (EDITABLE, "/home/ann/antiphon/.venv", "Run `.venv/bin/pip install -e '.[speech,piper]'` in the clone."),
    ],
)
def test_the_command_is_the_one_that_works_for_this_installation(origin, prefix, sentence):
    assert describe_command(("speech", "piper"), origin, SITE, prefix) == sentence


def test_sources_that_are_not_installed_are_a_clone(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    hint = describe_command((), None, tmp_path / "src" / "antiphon", "/usr")
    assert hint == "Run `pip install -e '.'` in the clone."


def test_it_names_no_folder_of_this_machine():
    assert str(Path.cwd()) not in install_hint("webrtc") and "/home" not in describe_command(("ocr",), CLONE, SITE, "/usr")


def test_no_other_place_in_the_code_says_how_to_install():
    package = Path(__file__).parent.parent / "src" / "antiphon"
    sayings = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"pip install|make install|antiphon\[", file.read_text(encoding="utf-8"))
    }
    assert sayings == {"installation.py"}
