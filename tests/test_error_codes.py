"""Every error code that a protocol's own code gives its clients stands in the reference pages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/antiphon"
PAGES = {
    "realtime-api": ("wire/realtime", "protocols/realtime", "server/realtime", "server/webrtc", "server/live", "wire/codec"),
    "minicpmo": ("wire/minicpmo", "protocols/minicpmo", "server/minicpmo", "server/live"),
    "responses-api websocket-mode": ("wire/responses", "protocols/responses", "server/responses", "server/websocket_mode", "wire/codec"),
}


def codes_in(tree):
    """The constants that are passed as `code`."""
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "code"]
    return {leaf.value for value in values for leaf in ast.walk(value) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}


def uses_in(tree):
    """The names that a module takes from `antiphon.errors`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "antiphon.errors":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "errors":
            yield node.attr


def codes_of(folders):
    functions = {node.name: node for node in ast.parse((SOURCE / "errors.py").read_text()).body if isinstance(node, ast.FunctionDef)}
    trees = [ast.parse(path.read_text()) for folder in folders for path in sorted((SOURCE / folder).rglob("*.py"))]
    used = {name for tree in trees for name in uses_in(tree) if name in functions}
    codes = set().union(*map(codes_in, trees), *(codes_in(functions[name]) for name in used))
    return {code for code in codes if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", code)}  # no part of a name


@pytest.mark.parametrize("pages", PAGES)
def test_every_code_of_a_protocol_is_in_its_reference(pages):
    told = {word for page in pages.split() for word in re.findall(r"`([a-z_0-9]+)`", (ROOT / f"docs/reference/{page}.md").read_text())}
    codes = codes_of(PAGES[pages])
    assert len(codes) > 10
    assert not codes - told, ", ".join(sorted(codes - told))
