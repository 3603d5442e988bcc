"""Compiles what the tests import, once for all pytest processes that start at the same time, in a checkout that is new."""

import contextlib
import py_compile
import sys
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
    worker, workers = int(mine["workerid"].removeprefix("gw")), mine["workercount"]
    tests = [path for pattern in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(pattern)]
    plain = [path for folder in PLAIN for path in (ROOT / folder).rglob("*.py")]
    for path in sorted(tests)[worker::workers]:
        rewritten = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
        if is_outdated(rewritten, path):
            source_hash, code = _rewrite_test(path, config)
            rewritten.parent.mkdir(exist_ok=True)
            _write_pyc(config.stash[assertstate_key], code, source_hash, rewritten)
    for path in sorted(plain)[worker::workers]:
        if is_outdated(Path(cache_from_source(str(path))), path):
            with contextlib.suppress(py_compile.PyCompileError):  # who imports it says what is wrong
                py_compile.compile(str(path), doraise=True)


def is_outdated(compiled: Path, source: Path) -> bool:
    try:
        return compiled.stat().st_mtime < source.stat().st_mtime
    except FileNotFoundError:
        return True
