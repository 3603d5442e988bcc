"""What is compiled before tests are collected is what their import would compile."""

import importlib.util
import sys

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from support.bytecode import compile_plain, compile_tests, is_outdated, rewritten


@pytest.mark.skipif(sys.dont_write_bytecode, reason="compiled modules are not kept here")
def test_pytest_takes_a_compiled_test_until_that_changes(tmp_path, pytestconfig):
    test = tmp_path / "test_it.py"

    def inode_after_import():
        spec = importlib.util.spec_from_file_location("test_it", test, loader=AssertionRewritingHook(pytestconfig))
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        return rewritten(test).stat().st_ino

    test.write_text("def test_it():\n    assert 1 == 1\n")
    compile_tests(pytestconfig, [test])
    ours = rewritten(test).stat().st_ino
    assert inode_after_import() == ours
    test.write_text("def test_it():\n    assert 2 == 2\n")
    assert inode_after_import() != ours


@pytest.mark.parametrize("source", ["x = 1\n", "x ="])
def test_what_is_no_python_is_left_to_its_import(tmp_path, pytestconfig, source):
    test, plain = tmp_path / "test_it.py", tmp_path / "plain.py"
    for path in (test, plain):
        path.write_text(source)
    compile_tests(pytestconfig, [test])
    compile_plain([plain])
    is_python = source.endswith("1\n")
    assert rewritten(test).exists() is is_python
    assert is_outdated(tmp_path / "__pycache__" / f"plain.{sys.implementation.cache_tag}.pyc", plain) is not is_python
