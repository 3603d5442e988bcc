"""
Compiles what the tests import, once for all pytest processes that start at the same time, in a checkout that is new.

What rewrites the assertions of tests is private to pytest, whose version is locked.
"""

import contextlib
import py_compile
import sys
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

ROOT = Path(__file__).parents[2]
PLAIN = ("src", "tests/support")


def compile_share(config: pytest.Config) -> None:
    """
    Compile the share of this process, as the other workers of pytest-xdist do with theirs; nothing, if it runs alone or only some tests.

    All processes import all modules at the same time, so without this each would compile nearly all of them: 7 s of a processor's time. A
    file that another process has not finished is compiled by the one that wants it, as ever.
    """
    mine = getattr(config, "workerinput", None)
    if mine is None or config.args != config.getini("testpaths") or sys.dont_write_bytecode:
        return
    share = slice(int(mine["workerid"].removeprefix("gw")), None, mine["workercount"])
    tests = [path for pattern in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(pattern)]
    compile_tests(config, sorted(tests)[share])
    compile_plain(sorted(path for folder in PLAIN for path in (ROOT / folder).rglob("*.py"))[share])


def compile_tests(config: pytest.Config, paths: Iterable[Path]) -> None:
    for path in paths:
        compiled = rewritten(path)
        if is_outdated(compiled, path):
            with contextlib.suppress(SyntaxError):  # who imports it says what is wrong
                source_hash, code = _rewrite_test(path, config)
                compiled.parent.mkdir(exist_ok=True)
                _write_pyc(config.stash[assertstate_key], code, source_hash, compiled)


def compile_plain(paths: Iterable[Path]) -> None:
    for path in paths:
        if is_outdated(Path(cache_from_source(str(path))), path):
            with contextlib.suppress(py_compile.PyCompileError):
                py_compile.compile(str(path), doraise=True)


def rewritten(test: Path) -> Path:
    """Where pytest looks for a compiled test."""
    return get_cache_dir(test) / f"{test.stem}{PYC_TAIL}"


def is_outdated(compiled: Path, source: Path) -> bool:
    try:
        return compiled.stat().st_mtime < source.stat().st_mtime
    except FileNotFoundError:
        return True
