"""The gates of size and shape that no tool checks for us. An exception needs its name here, and a reason."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "antiphon"
CHECKED = ("src", "tests", "bench", "conformance")
MAX_FILE_LINES = 600
MAX_BODY_LINES = 60

EXCEPTIONS: dict[str, str] = {}  # "path" or "path:function" -> why it may be longer

# A repository stands alone: it names neither its authors' machines nor a place to install from, which is the reader's to choose.
FOREIGN = ("/" + "work/", "/tmp/" + "lab", "/tmp/" + "brief", "../" + "shared", "/" + "root/", "pypi" + ".org", "python" + "hosted")
PROSE = (".md", ".toml", ".txt", ".py", ".cfg", ".yml", ".yaml", ".json", ".jinja")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last; the docstring is not code."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", python_files(*CHECKED), ids=named)
def test_no_file_is_longer_than_one_can_keep_in_mind(path):
    assert named(path) in EXCEPTIONS or len(path.read_text().splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", python_files(*CHECKED), ids=named)
def test_no_function_is_longer_than_a_screen(path):
    long = {f"{named(path)}:{function.name}": body_lines(function) for function in functions(path) if body_lines(function) > MAX_BODY_LINES}
    assert not {name: lines for name, lines in long.items() if name not in EXCEPTIONS}


def test_functions_are_short_as_a_rule():
    lengths = [body_lines(function) for path in python_files("src") for function in functions(path)]
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 25


def test_every_exception_is_still_needed():
    long_files = {named(path) for path in python_files(*CHECKED) if len(path.read_text().splitlines()) > MAX_FILE_LINES}
    long_functions = {
        f"{named(path)}:{function.name}"
        for path in python_files(*CHECKED)
        for function in functions(path)
        if body_lines(function) > MAX_BODY_LINES
    }
    assert not EXCEPTIONS.keys() - long_files - long_functions


def test_folders_are_one_level_deep():
    deep = [named(path) for path in SOURCE.glob("*/*/**/*.py") if path.relative_to(SOURCE).parts[:2] != ("stores", "migrations")]
    assert not deep


def test_every_module_says_what_it_is():
    silent = [named(path) for path in python_files("src") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_every_test_folder_mirrors_a_source_folder():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    assert folders <= {path.name for path in SOURCE.iterdir() if path.is_dir()} | {"contracts", "e2e"}


def test_modules_of_tests_are_told_apart_by_name():
    # pytest imports them all as top-level modules, and of two that share a name whoever asks gets the one that was there first.
    paths = [path for path in python_files("tests") if path.name != "conftest.py"]
    assert len({path.name for path in paths}) == len(paths)
    assert not [named(path) for path in paths if re.search(r"^(from|import) conftest\b", path.read_text(), re.MULTILINE)]


def test_every_link_between_our_pages_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "requirements" / "README.md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())]
    assert not [f"{named(page)}: {link}" for page, link in links if not (page.parent / link).exists()]


def project_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in (*CHECKED, "docs", "requirements", ".ci"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_nothing_names_the_machines_it_was_written_on_or_a_package_index():
    texts = ((path, path.read_text()) for path in project_files() if path.suffix in PROSE or path.name in ("Makefile", "run"))
    found = [f"{named(path)}: {word}" for path, text in texts for word in FOREIGN if word in text]
    assert not found
