"""The programs in `bench/` still import what there is; running them all takes half an hour."""

import ast
import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
PROGRAMS = sorted(BENCH.rglob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.relative_to(BENCH)))
def test_a_benchmark_imports_what_there_is(program):
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antiphon"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_every_program_of_the_folder_is_a_benchmark():
    """`make bench` runs them all; what they share lies in `common`, and what they are compared with in `references`."""
    for program in BENCH.glob("*.py"):
        assert "def main(" in program.read_text(), program.name


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(BENCH / "common")
    return importlib.import_module("tables")


def test_tables_of_the_page_come_from_programs_of_the_folder(tables):
    blocks = tables.BLOCK.findall(tables.PAGE.read_text())
    assert blocks
    for _, name, table in blocks:
        assert (BENCH / f"{name}.py").exists(), name
        assert table.startswith("|"), name


def test_a_table_is_made_anew_and_all_else_of_the_page_stays(tables):
    queue, types = (f"<!-- python bench/{command} -->\n| old |\n<!-- end -->\n" for command in ("queue.py --most 3", "types.py"))
    page = f"a\n\n{queue}\nb\n\n{types}"
    updated = tables.update(page, {"queue"}, lambda command: (f"| {command} |\n", "\n*a machine*\n"))
    new = "<!-- python bench/queue.py --most 3 -->\n| bench/queue.py --most 3 |\n\n*a machine*\n\n<!-- end -->\n"
    assert updated == page.replace(queue, new)


def test_the_lines_of_a_table_are_taken_from_what_a_program_prints(tables, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("print('a word')\nprint('| a | b |')\nprint('|---|---|')\nprint('| 1 | 2 |')")
    table, note = tables.measure(str(program))
    assert table == "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert "cores; load" in note


def test_a_program_without_a_table_is_an_error(tables, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("print('nothing')")
    with pytest.raises(SystemExit, match="printed 0 lines"):
        tables.measure(str(program))
