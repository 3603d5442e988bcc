"""The names under which models get the tools of MCP servers, and the arguments that models write."""

import re

import pytest
from hypothesis import given, strategies as st

from antiphon.tool_api import decode_arguments, mcp_function_name

labels = st.text("abcXYZ019_-", min_size=1, max_size=64)


def test_a_name_that_models_can_have_is_kept():
    assert mcp_function_name("github", "create_issue") == "create_issue"


def test_another_name_is_changed_and_stays_readable():
    assert re.fullmatch(r"files_read_it_[0-9a-f]{8}", mcp_function_name("disk", "files/read it"))
    assert mcp_function_name("disk", "a.b") != mcp_function_name("disk", "a/b")


@given(labels, st.text(min_size=1) | st.text("ab", min_size=1, max_size=200))
def test_any_name_fits_every_model_server(label: str, name: str):
    alias = mcp_function_name(label, name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", alias)
    assert len(f"{label}__{alias}") <= 64 or len(alias) <= 24
    assert alias == mcp_function_name(label, name)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": "\ud800"}', '{"a": "\\ud800"}'])
def test_arguments_that_are_no_json_are_one_kind_of_error_whatever_is_wrong(text: str):
    with pytest.raises(ValueError):
        decode_arguments(text)
