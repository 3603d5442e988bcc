"""The engines by their names."""

import subprocess
import sys

import pytest

from antiphon.errors import ServerError
from antiphon.installation import install_hint
from antiphon.runtime.core.engine_types import ENGINES, load_builder


@pytest.mark.parametrize("engine", ENGINES)
def test_each_name_has_an_engine(engine):
    assert callable(load_builder(engine))


def test_an_engine_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ServerError, match="There is no engine 'chatt'; there are 'chat', 'embeddings', 'local'"):
        load_builder("chatt")


def test_an_engine_whose_libraries_are_missing_says_how_to_get_them():
    script = """
import sys
sys.modules["soxr"] = None  # as if it were not installed
from antiphon.errors import ServerError
from antiphon.runtime.core.engine_types import load_builder
try:
    load_builder("omni")
except ServerError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"The engine 'omni' needs soxr, which is not installed. {install_hint('speech')}\n"
