"""The pages hold together: links lead somewhere, configurations are accepted, words are explained, the front page is short."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from antiphon.cli.common.checks import model_problems, prompt_problems
from antiphon.config.load import Config, load
from antiphon.installation import describe_command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "requirements" / "README.md"])
README = (ROOT / "README.md").read_text()
GLOSSARY = DOCS / "reference" / "glossary.md"


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead, on this side of the network."""
    return [link for link in re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", text) if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The ids that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", heading)).strip().lower().replace(" ", "-") for heading in headings]
    return {f"{slug}-{slugs[:index].count(slug)}" if slug in slugs[:index] else slug for index, slug in enumerate(slugs)}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page):
    broken = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_index_lists_every_guide_and_every_reference():
    index = {(DOCS / link).resolve() for link in links((DOCS / "README.md").read_text())}
    assert not {*(DOCS / "guide").glob("*.md"), *(DOCS / "reference").glob("*.md")} - index


def is_ours(block: str) -> bool:
    """Whether a block of TOML is a configuration of the server, rather than of a client, a script or a catalogue."""
    table = tomllib.loads(block)
    return bool(table) and table.keys() <= Config.model_fields.keys()


CONFIGURATIONS = [pytest.param(block, id=f"{named(page)}-{number}") for page in PAGES for number, block in enumerate(blocks(page, "toml"))]


def test_the_pages_show_configurations():
    assert sum(is_ours(str(block.values[0])) for block in CONFIGURATIONS) > 12


@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_every_configuration_that_a_page_shows_is_accepted(block, tmp_path):
    if not is_ours(block):
        return
    for name in re.findall(r'^(?:path|script) = "(.+?)"', block, re.MULTILINE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "antiphon.toml").write_text(block)
    keys = {name: "key" for name in re.findall(r'_env = "(.+?)"', block)}
    environ = {"HOME": str(tmp_path), **keys}
    config = load({}, None, environ, tmp_path, tmp_path / "none.toml").config
    assert [*model_problems(config), *prompt_problems(config)] == []


TERMS = dict(re.findall(r"^## (.+)\n\n((?:.+\n)+)", GLOSSARY.read_text(), re.MULTILINE))


def test_the_glossary_is_in_alphabetical_order():
    assert TERMS
    assert list(TERMS) == sorted(TERMS, key=str.lower)


def test_each_term_is_explained_in_one_or_two_plain_sentences():
    sentences = {term: re.findall(r"[.](?:\s|$)", re.sub(r"`.*?`", "", TERMS[term])) for term in TERMS}
    assert [term for term in TERMS if not 1 <= len(sentences[term]) <= 2] == []


def test_each_term_of_the_glossary_is_used_elsewhere():
    pages = [page for page in PAGES if page != GLOSSARY and page.name != "CHANGELOG.md"]
    texts = [path.read_text() for path in (*pages, *(ROOT / "src").rglob("*.py"))]
    patterns = {term: re.compile(rf"\b{re.escape(term)}s?\b", re.IGNORECASE) for term in TERMS}
    assert [term for term in TERMS if not any(map(patterns[term].search, texts))] == []


def test_the_glossary_is_found_from_the_front_page_and_the_index():
    assert "docs/reference/glossary.md" in links(README)
    assert "reference/glossary.md" in links((DOCS / "README.md").read_text())


def test_the_front_page_fits_two_screens():
    rows = [line for line in README.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert len(README.splitlines()) <= 90
    assert len(rows) <= 12


def test_the_front_page_says_what_it_is_in_three_lines_and_then_how_to_use_it():
    _, title, first, *_ = re.split(r"^#+ ", README, flags=re.MULTILINE)
    assert title.startswith("antiphon\n")
    assert len(title.splitlines()[1:]) <= 5
    assert first.startswith("In front of your own server")
    assert [len(block.splitlines()) for block in blocks(ROOT / "README.md", "toml")] == [5, 5]


PROGRAMS = [pytest.param(block, id=f"{named(page)}-{number}") for page in PAGES for number, block in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("block", PROGRAMS)
def test_every_program_that_a_page_shows_is_python(block):
    assert compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_pages_install_extras_as_the_program_says():
    expected = describe_command(("talk",), {"url": "file:///clone", "dir_info": {"editable": True}}, Path("/clone/src"), "/clone/.venv")
    command = expected.split("`")[1].partition("'")[0]
    wrong = [
        f"{named(page)}: {found}"
        for page in PAGES
        for found in re.findall(r"[\w./]*pip\s+install\s+(?:-e\s+)?'\.\[\S*", page.read_text())
        if not found.startswith(command)
    ]
    assert not wrong


def test_no_line_of_a_guide_is_wider_than_the_rule_allows():
    wide = [
        f"{named(page)}: {line}"
        for page in (DOCS / "guide").glob("*.md")
        for line in prose(page).splitlines()
        if len(line) > 120 and not line.startswith("|") and "](" not in line
    ]
    assert not wide
