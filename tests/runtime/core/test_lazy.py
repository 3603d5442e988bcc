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


_START = """
import asyncio, sys
from pathlib import Path
import antiphon.stores.sql.store
from antiphon.config.load import Config
from antiphon.runtime.service import Service
from antiphon.server.app import build

async def start():
    service = Service(Config.model_validate({
        "home": Path(sys.argv[1]),
        "models_dir": Path(sys.argv[1]),
        "models": [{"name": "scripted", "engine": "scripted"}],
        "store": {"url": sys.argv[2]},
        "tools": {"code_interpreter": {"sandbox": "off"}, "mcp": [{"label": "kb", "url": "http://127.0.0.1:9/mcp"}]},
    }), print)
    build(service)
    await service.open()
    await service.close()

print(*sys.modules)
asyncio.run(start())
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The names of all modules that a new interpreter has once it has loaded a server, and once the server has started and ended."""
    folder = tmp_path_factory.mktemp("home")
    url = f"sqlite+aiosqlite:///{folder}/antiphon.db"
    done = subprocess.run([sys.executable, "-c", _START, folder, url], capture_output=True, text=True, check=True)
    at_first, at_last = done.stdout.splitlines()
    return {*at_first.split()}, {*at_last.split()}


def test_a_server_starts_without_libraries_that_it_may_never_need(modules):
    heavy = {"PIL", "aiohttp", "asyncpg", "cryptography", "httpx", "lxml", "mcp", "numpy"}
    heavy |= {"obstore", "onnxruntime", "pypdfium2", "soundfile", "soxr", "tokenizers"}
    assert "antiphon.engines.scripted.engine" in modules[1]
    assert not heavy & modules[1]


def test_a_server_loads_no_library_that_it_may_never_need(modules):
    assert "antiphon.server.app" in modules[0]
    assert not {"aiohttp", "alembic", "numpy", "obstore", "onnxruntime", "soundfile", "soxr"} & modules[0]
