"""The reference names every type and field that there is."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import antiphon
from antiphon.wire.codec.types import Unknown, Wire
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.items import Item
from antiphon.wire.responses.parts import Annotation, MessagePart, StreamedPart
from antiphon.wire.responses.profiles import PROFILES
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.response import Response
from antiphon.wire.responses.tools import Tool, ToolChoice

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "responses-types.md").read_text()
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])


def rows(section: str) -> list[tuple[str, str]]:
    """The first two cells of each row of a section's tables."""
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return [(row[1], row[2]) for row in cells if row[1] != "type"]


@pytest.mark.parametrize(
    ("section", "union"),
    [
        ("Content parts", MessagePart),
        ("Content parts", StreamedPart),
        ("Annotations", Annotation),
        ("Items", Item),
        ("Tools", Tool),
        ("Tool choices", ToolChoice),
        ("Events", StreamEvent),
    ],
)
def test_every_type_has_a_row(section, union):
    kinds = [kind for kind in get_args(union) if isinstance(kind, type) and issubclass(kind, Wire) and kind is not Unknown]
    assert {(kind.__struct_config__.tag, kind.__name__) for kind in kinds} <= set(rows(section))


@pytest.mark.parametrize(("section", "kind"), [("Request fields", CreateRequest), ("Response fields", Response)])
def test_every_field_has_a_row_in_its_order(section, kind):
    fields = [field.encode_name for field in msgspec.structs.fields(kind) if field.name != "extra"]
    assert [name for name, _ in rows(section)] == fields


def test_every_profile_has_a_row():
    assert [name for name, _ in rows("Profiles")] == list(PROFILES)


def test_every_function_of_the_page_is_where_it_says():
    names = re.findall(r"`((?:codec|responses)\.\w+)\.(\w+)", PAGE)
    assert len(names) > 12
    assert not [(module, name) for module, name in names if not hasattr(importlib.import_module(f"antiphon.wire.{module}"), name)]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The page's example as the file of a stranger's project."""
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    path = tmp_path / "example.py"
    path.write_text(found[1])
    return path


def run_beside(example: Path, *arguments: str) -> tuple[int, str]:
    """Run Python in the example's folder, where the package is as good as installed: found by its import path only."""
    environ = os.environ | {"PYTHONPATH": str(Path(antiphon.__file__).parents[1])}
    run = subprocess.run([sys.executable, *arguments, example.name], cwd=example.parent, env=environ, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def test_the_example_prints_what_it_says(example):
    code, said = run_beside(example)
    assert code == 0, said
    assert said.splitlines()[:2] == ["user Hello", "{'seed': 7}"]
    assert """b'{"seed":7,"model":"parrot","input":[{"type":"message",""" in said
    assert said.endswith("HiHello to you.\nsays Hello to you.\n")


def test_the_example_passes_strict_type_checks_outside_the_repository(example):
    assert run_beside(example, "-m", "mypy", "--strict") == (0, "Success: no issues found in 1 source file\n")
