"""The gates of size and shape that no tool checks for us. An exception needs its name here, and a reason."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.modules import modules

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "antiphon"
CHECKED = ("src", "tests", "bench", "conformance")
MAX_FILE_LINES = 600
MAX_BODY_LINES = 60
MAX_MODULES = 14
MIGRATIONS = SOURCE / "stores" / "database" / "migrations"  # the one third level: alembic wants a folder of them

EXCEPTIONS: dict[str, str] = {}  # "path" or "path:function" -> why it may be longer, or fuller

# A repository stands alone: it names neither its authors' machines nor a place to install from, which is the reader's to choose.
FOREIGN = ("/" + "work/", "/tmp/" + "lab", "/tmp/" + "brief", "../" + "shared", "/" + "root/", "pypi" + ".org", "python" + "hosted")
PROSE = (".md", ".toml", ".txt", ".py", ".cfg", ".yml", ".yaml", ".json", ".jinja", ".ts", ".svelte", ".css")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions() -> dict[str, int]:
    lengths = {f"{named(path)}:{name}": lines for path, each in modules(*CHECKED).items() for name, lines in each.functions}
    return {name: lines for name, lines in lengths.items() if lines > MAX_BODY_LINES}


def test_no_file_is_longer_than_one_can_keep_in_mind():
    lines = {named(path): len(path.read_text().splitlines()) for path in python_files(*CHECKED)}
    assert not {name: count for name, count in lines.items() if count > MAX_FILE_LINES and name not in EXCEPTIONS}


def test_no_function_is_longer_than_a_screen():
    assert not {name: lines for name, lines in long_functions().items() if name not in EXCEPTIONS}


def test_functions_are_short_as_a_rule():
    lengths = [lines for each in modules("src").values() for _, lines in each.functions]
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 25


def test_every_exception_is_still_needed():
    long_files = {named(path) for path in python_files(*CHECKED) if len(path.read_text().splitlines()) > MAX_FILE_LINES}
    full = {named(folder) for folder in FOLDERS if len(modules_in(folder)) > MAX_MODULES}
    assert not EXCEPTIONS.keys() - long_files - long_functions().keys() - full


def modules_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]


FOLDERS = sorted({path.parent for path in SOURCE.rglob("*.py")} - {MIGRATIONS})


def test_folders_are_two_levels_deep():
    assert not [named(folder) for folder in FOLDERS if len(folder.relative_to(SOURCE).parts) > 2]


def test_a_folder_has_no_more_modules_than_can_be_seen_at_a_glance():
    counts = {named(folder): len(modules_in(folder)) for folder in FOLDERS}
    assert not {name: count for name, count in counts.items() if count > MAX_MODULES and name not in EXCEPTIONS}


def test_a_prefix_that_three_modules_share_is_a_folder():
    prefixes = Counter((named(folder), path.stem.split("_")[0]) for folder in FOLDERS for path in modules_in(folder))
    assert not [(name, prefix) for (name, prefix), count in prefixes.items() if count > 2 and name not in EXCEPTIONS]


def test_every_module_says_what_it_is():
    assert not [named(path) for path, each in modules("src").items() if each.is_silent]


def test_every_test_folder_mirrors_a_source_folder():
    tests = ROOT / "tests"
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")} - {".", "console", "contracts", "e2e"}
    assert folders <= {str(folder.relative_to(SOURCE)) for folder in FOLDERS}


def test_a_test_of_one_module_stands_where_its_module_stands():
    tests = ROOT / "tests"
    folders: dict[str, set[Path]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        folders[f"test_{path.name}"].add(path.parent.relative_to(SOURCE))
    homes = {name: next(iter(found)) for name, found in folders.items() if len(found) == 1}
    pairs = [(path, homes[path.name], path.parent.relative_to(tests)) for path in tests.rglob("test_*.py") if path.name in homes]
    assert not [named(path) for path, home, folder in pairs if folder != home and folder.parts[:1] == home.parts[:1]]


def project_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in (*CHECKED, "docs", "requirements", ".ci", "console/src"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_nothing_names_the_machines_it_was_written_on_or_a_package_index():
    texts = ((path, path.read_text()) for path in project_files() if path.suffix in PROSE or path.name in ("Makefile", "run"))
    found = [f"{named(path)}: {word}" for path, text in texts for word in FOREIGN if word in text]
    assert not found
