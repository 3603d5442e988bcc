"""The page in the package is what its source builds, byte for byte, and its source is well typed."""

import gzip
import re

import pytest

from support.console.node import BUILT, CONSOLE, checkout, packages, run

FIRST_LOAD_BYTES = 250_000
SOURCES = [path for path in (CONSOLE / "src").rglob("*") if path.suffix in (".ts", ".svelte", ".css")]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("console"))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_page_in_the_package_is_what_a_fresh_build_makes(source):
    out = source.parent / "built"
    run([*packages().program("vite", "bin/vite.js"), "build", "--logLevel", "warn", "--outDir", str(out)], source)
    fresh, ours = contents(out), contents(BUILT)
    assert sorted(fresh) == sorted(ours), "build the page: cd console && npm ci && npm run build"
    assert [name for name in ours if fresh[name] != ours[name]] == []


@pytest.mark.long
def test_the_source_is_well_typed_and_accessible_as_far_as_the_compiler_sees(source):
    run([*packages().program("svelte-check", "bin/svelte-check"), "--tsconfig", "./tsconfig.json", "--fail-on-warnings"], source)


def test_the_first_load_is_small():
    front = (BUILT / "index.html").read_text()
    names = re.findall(r'(?:src|href)="\./console/assets/([^"]+)"', front)
    assert len(names) >= 3
    chat = [path.name for path in (BUILT / "assets").glob("Tab-*")]
    sizes = [len(gzip.compress((BUILT / "assets" / name).read_bytes())) for name in {*names, *chat}]
    assert sum(sizes) + len(front) < FIRST_LOAD_BYTES


def test_no_template_has_a_style_which_the_policy_refuses():
    assert not [path.name for path in SOURCES if path.suffix == ".svelte" and re.search(r"\sstyle=", path.read_text())]


def test_the_source_is_cut_as_the_house_is():
    assert not [path.name for path in SOURCES if len(path.read_text().splitlines()) > 600]
    folders = {path.parent for path in SOURCES}
    assert not [folder.name for folder in folders if len(folder.relative_to(CONSOLE / "src").parts) > 2]
    assert not [folder.name for folder in folders if len([path for path in SOURCES if path.parent == folder]) > 14]
