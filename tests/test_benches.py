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
