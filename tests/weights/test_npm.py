"""Packages of npm as containers: one member comes out, no script is run."""

import json
import shutil

import pytest

from antiphon.weights.catalogue import NpmFile
from antiphon.weights.npm import Npm
from antiphon.weights.partial import PartialFile, SourceUnavailable

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


@pytest.fixture
def package(tmp_path):
    """A package in a folder, which npm packs as it would download one; its scripts leave a trace when they run."""
    folder = tmp_path / "voices"
    folder.mkdir()
    scripts = {name: f"touch {tmp_path}/ran" for name in ("prepack", "prepare", "install")}
    (folder / "package.json").write_text(json.dumps({"name": "voices", "version": "1.0.0", "scripts": scripts}))
    (folder / "one.bin").write_bytes(b"a voice")
    return str(folder)


@needs_npm
def test_the_member_comes_out_and_no_script_runs(package, tmp_path, shelf):
    part, told = PartialFile(tmp_path / "file"), []
    part.path.write_bytes(b"left over from another source")
    Npm().fetch(NpmFile(package, "package/one.bin"), part, 7, told.append, shelf)
    assert part.path.read_bytes() == b"a voice"
    assert told[-1] == 7
    assert not (tmp_path / "ran").exists()


@needs_npm
def test_a_package_without_the_member_is_trouble(package, tmp_path, shelf):
    with pytest.raises(SourceUnavailable, match=r"has no package/two\.bin"):
        Npm().fetch(NpmFile(package, "package/two.bin"), PartialFile(tmp_path / "file"), 7, lambda _: None, shelf)


@needs_npm
def test_a_package_that_is_not_there_is_trouble_that_names_it(tmp_path, shelf):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(SourceUnavailable, match=r"npm could not download .*nowhere"):
        Npm().fetch(NpmFile(nowhere, "package/one.bin"), PartialFile(tmp_path / "file"), 7, lambda _: None, shelf)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("npm error code EAI_AGAIN\nnpm error request to https://x/voices failed", "npm can't reach its registry"),
        ("npm ERR! code ECONNREFUSED\nnpm ERR! errno ECONNREFUSED", "npm can't reach its registry"),
        ("npm error code E404\nnpm error 404 voices@1", "npm could not download voices@1: npm error 404 voices@1"),
        ("", "npm could not download voices@1: no reason given"),
    ],
)
def test_what_went_wrong_is_told_and_not_where_npm_has_written_it_down(tmp_path, shelf, said, told):
    npm = tmp_path / "npm"
    log = "npm error A complete log of this run can be found in: /somewhere/npm.log" if said else ""
    npm.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\n{log}\nEND\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(SourceUnavailable) as raised:
        Npm(str(npm)).fetch(NpmFile("voices@1", "package/one.bin"), PartialFile(tmp_path / "file"), 7, lambda _: None, shelf)
    assert str(raised.value) == told


def test_a_machine_without_npm_is_told_so(tmp_path, shelf):
    with pytest.raises(SourceUnavailable, match="no npm"):
        Npm("no-such-npm").fetch(NpmFile("voices@1", "package/one.bin"), PartialFile(tmp_path / "file"), 7, lambda _: None, shelf)
