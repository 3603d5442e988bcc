"""Names whose modules are loaded when they are first used."""

import ast
import inspect
import subprocess
import sys

import pytest

from antiphon.runtime.core import lazy


def test_the_names_that_are_typed_are_those_that_can_be_loaded():
    (typed,) = (node for node in ast.parse(inspect.getsource(lazy)).body if isinstance(node, ast.If))
    modules = {alias.asname: node.module for node in typed.body for alias in node.names}
    assert modules == lazy._MODULES


@pytest.mark.parametrize("name", lazy._MODULES)
def test_each_name_is_what_its_module_calls_so(name):
    assert getattr(lazy, name) is getattr(sys.modules[lazy._MODULES[name]], name)


def test_another_name_is_an_error_as_of_any_module():
    with pytest.raises(AttributeError, match=r"module 'antiphon\.runtime\.core\.lazy' has no attribute 'Unknown'"):
        _ = lazy.Unknown


def test_a_server_loads_no_library_that_it_may_never_need():
    heavy = ("aiohttp", "alembic", "numpy", "obstore", "onnxruntime", "soundfile", "soxr")
    script = "import sys, antiphon.server.app, antiphon.stores.sql.store; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
