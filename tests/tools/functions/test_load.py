"""An operator's functions, loaded."""

import json
import sys

import jsonschema_rs
import pytest

from antiphon.tools.functions.load import LoadError, load_functions

TYPES = '''
from __future__ import annotations
import dataclasses, datetime, enum, uuid
from typing import Any, Annotated, Literal, NamedTuple, Optional, TypedDict, Union

class Kind(enum.IntEnum):
    A = 1

class T(TypedDict, total=False):
    """Tee."""
    a: Annotated[int, "the a"]

class N(NamedTuple):
    x: int
    y: str = "q"

@dataclasses.dataclass
class D:
    when: datetime.date
    t: T
    k: Kind = Kind.A

def f(d: D, n: N, items: list[Annotated[str, "an item"]], u: Union[int, str, None] = None, i: Optional[uuid.UUID] = None,
      m: Literal[1, 2] = 1, tup: tuple[int, str] = (1, "a"), anything: Any = None,
      s: set[str] = frozenset(), nested: dict[str, list[D]] = {}) -> str:
    """Do."""
    return repr((d, n, items, u, i, m))
'''


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch):
    """Loading is for a process of its own: here its path and its module are taken back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("antiphon_functions", None)


def load(folder, source):
    file = folder / "tools.py"
    file.write_text(source)
    return load_functions(str(file), None)


def test_types_of_all_kinds_may_stand_in_one_another(tmp_path):
    function = load(tmp_path, TYPES)["f"]
    arguments = {"d": {"when": "2026-01-02", "t": {"a": 1.0}, "k": 1}, "n": [1, "z"], "items": ["x"], "m": 2}
    jsonschema_rs.validator_for(function.parameters).validate(arguments)
    assert function.call(function.read(json.dumps(arguments).encode())) == (
        "(D(when=datetime.date(2026, 1, 2), t={'a': 1}, k=<Kind.A: 1>), N(x=1, y='z'), ['x'], None, None, 2)"
    )
    properties = function.parameters["properties"]
    assert properties["items"]["items"] == {"type": "string"}
    assert properties["d"]["properties"]["t"]["properties"]["a"] == {"type": "integer", "description": "the a"}
    assert (properties["tup"]["default"], properties["anything"]) == ([1, "a"], {})


GOOD = 'def good(a: int) -> int:\n    "Good."\n'


def test_a_list_of_names_says_which_functions_there_are(tmp_path):
    assert [*load(tmp_path, f"{GOOD}def other(): pass\n__all__ = ['good', 'X']\nX = 3\n")] == ["good"]
    assert [*load(tmp_path, f"from json import dumps\n{GOOD}def _helper(x): pass\n")] == ["good"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def broken(:", "line 1: "),
        ("\n\nimport nothing_of_that_name", "line 3 of tools.py: ModuleNotFoundError"),
        ("raise SystemExit(3)", "line 1 of tools.py: SystemExit: 3"),
        ("def bad(a: int): pass", "'bad' has no docstring"),
        ("def bad(a):\n    'Bad.'", "'bad' has no type for 'a'"),
        ("x = 1", "there must be 1 to 128 functions"),
        ("".join(f"def f{index}():\n    'F.'\n" for index in range(129)), "but there are 129"),
        ("__all__ = ['absent']", "AttributeError"),
        ("__all__ = 3", "TypeError"),
    ],
)
def test_why_functions_are_not_loaded_is_told_with_its_line(tmp_path, source, reason):
    with pytest.raises(LoadError) as caught:
        load(tmp_path, source)
    assert reason in str(caught.value)


def test_a_file_must_be_there_and_be_python(tmp_path):
    with pytest.raises(LoadError, match="there is no such file"):
        load_functions(str(tmp_path / "absent.py"), None)
    (tmp_path / "tools.txt").write_text(GOOD)
    with pytest.raises(LoadError, match=r"ends in '\.py'"):
        load_functions(str(tmp_path / "tools.txt"), None)
