"""
The picture in `docs/guide/architecture.md`, drawn from the imports; `python tests/support/architecture.py` draws it again.

A box is a room, with its sub-rooms from the top down; an arrow means *imports*. Arrows that follow from others are left out.
"""

import ast
import functools
import graphlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "antiphon"
PAGE = ROOT / "docs" / "guide" / "architecture.md"

Graph = dict[str, set[str]]

LEAVES = "leaves"
"""The box of the rooms that import only each other."""


@functools.cache
def imports() -> tuple[tuple[str, str], ...]:
    """Every import of one module by another, as paths below the package without the suffix, such as `wire/codec/sse`."""
    names = {module_name(path): path for path in SOURCE.rglob("*.py")}
    found = set()
    for path in names.values():
        importer = module_name(path)
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "antiphon":
                parent = node.module.replace(".", "/").removeprefix("antiphon").removeprefix("/")
                for alias in node.names:
                    child = f"{parent}/{alias.name}".removeprefix("/")
                    found.add((importer, child if child in names else parent))
    return tuple(sorted((importer, imported) for importer, imported in found if importer != imported))


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """Those in a module, function or class, on all levels; what they compute is not looked at."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(block, name, ()):
            yield each
            yield from statements(each)


def module_name(path: Path) -> str:
    return str(path.relative_to(SOURCE).with_suffix("")).removesuffix("/__init__").removesuffix("__init__")


def room(module: str) -> str:
    return module.split("/")[0]


def part(module: str) -> str:
    """The sub-room, or the room's own module, that a module of a room is in."""
    return module.split("/")[1] if "/" in module else ""


def rooms() -> Graph:
    """What each room imports; modules of the package itself are rooms of one module."""
    graph: Graph = {room(module_name(path)): set() for path in SOURCE.rglob("*.py")}
    for importer, imported in imports():
        if room(importer) != room(imported):
            graph[room(importer)].add(room(imported))
    return {name: imported - {""} for name, imported in graph.items() if name not in ("", "__main__")}


def parts(of: str) -> Graph:
    """What each sub-room, or module, of a room imports of the others."""
    paths = [path for path in (SOURCE / of).glob("*") if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))]
    graph: Graph = {path.stem: set() for path in paths if path.stem != "__init__"}
    for importer, imported in imports():
        if room(importer) == room(imported) == of and part(importer) != part(imported) and part(importer) and part(imported):
            graph[part(importer)].add(part(imported))
    return graph


def without_shortcuts(graph: Graph) -> Graph:
    """The same graph without the arrows that follow from others."""

    @functools.cache
    def reached(name: str) -> frozenset[str]:
        return frozenset(graph[name]).union(*(reached(other) for other in graph[name]))

    return {name: {other for other in others if not any(other in reached(third) for third in others)} for name, others in graph.items()}


def rows(graph: Graph) -> list[list[str]]:
    """The nodes in rows, each above all that it imports."""
    sorter = graphlib.TopologicalSorter(graph)
    sorter.prepare()
    found = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        found.append(ready)
        sorter.done(*ready)
    return found[::-1]


def label(name: str) -> str:
    if not (SOURCE / name).is_dir():
        return name
    lines = [" · ".join(row) for row in rows(parts(name))]
    return "<br>".join([f"<b>{name}</b>", *lines])


def leaf_rooms() -> list[str]:
    """The rooms at the bottom, which may import each other, as the layers in `pyproject.toml` name them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return re.split(r" *: *", contracts[0]["layers"][-1])


def picture() -> str:
    """The picture as Mermaid source."""
    leaves, graph = leaf_rooms(), rooms()
    upper = {name: {LEAVES if other in leaves else other for other in others} for name, others in graph.items() if name not in leaves}
    upper[LEAVES] = set()
    lines = ["flowchart TD"]
    lines += [f'  {name}["{label(name)}"]' for row in rows(upper) for name in row if name != LEAVES]
    lines += [f'  {LEAVES}["{"<br>".join(map(label, leaves))}"]']
    arrows = without_shortcuts(upper)
    lines += [f"  {name} --> {other}" for name in sorted(arrows) for other in sorted(arrows[name])]
    return "\n".join(lines)


def page_with(drawing: str) -> str:
    """The page with its picture replaced by this one."""
    marked = re.compile(r"(?s)(<!-- drawn from the imports -->\n```mermaid\n).*?(\n```)")
    return marked.sub(lambda found: found[1] + drawing + found[2], PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page_with(picture()))
