"""Modules that are imported when they are first used."""

import importlib

import pytest

from antiphon.cli.common import lazy


@pytest.mark.parametrize(("name", "path"), lazy.MODULES.items())
def test_a_name_stands_for_its_module(name, path):
    assert getattr(lazy, name) is importlib.import_module(path)


def test_any_other_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute nothing"):
        lazy.nothing  # noqa: B018
