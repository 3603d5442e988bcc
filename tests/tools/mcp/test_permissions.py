"""Which tools a request may use, and which of them the user has to approve."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.tools.mcp.permissions import is_allowed, needs_approval
from antiphon.tools.mcp.server import ToolDescription
from antiphon.wire.responses.tools import McpTool

READ = ToolDescription(name="read", input_schema={}, read_only=True)
WRITE = ToolDescription(name="write", input_schema={})


def request(**fields: Any) -> McpTool:
    return msgspec.convert({"type": "mcp", "server_label": "a"} | fields, McpTool)


@pytest.mark.parametrize(
    ("allowed_tools", "names"),
    [
        (None, "read write"),
        ([], ""),
        (["read", "other"], "read"),
        ({}, "read write"),
        ({"read_only": True}, "read"),
        ({"read_only": False}, "write"),
        ({"tool_names": ["read", "write"], "read_only": True}, "read"),
        ({"tool_names": ["write"], "read_only": True}, ""),
        ({"tool_names": None, "read_only": None}, "read write"),
    ],
)
def test_a_request_may_use_what_meets_all_conditions(allowed_tools: Any, names: str):
    tool = request(allowed_tools=allowed_tools)
    assert [each.name for each in (READ, WRITE) if is_allowed(each, tool)] == names.split()


def test_the_operator_may_allow_less():
    assert is_allowed(READ, request(), ["read"]) and not is_allowed(WRITE, request(allowed_tools=["write"]), ["read"])


@pytest.mark.parametrize(
    ("require_approval", "names"),
    [
        (None, "read write"),
        ("always", "read write"),
        ("never", ""),
        ({}, "read write"),
        ({"never": {"tool_names": ["read"]}}, "write"),
        ({"never": {"read_only": True}}, "write"),
        ({"never": {"read_only": True, "tool_names": ["write"]}}, "read write"),
        ({"never": {}}, "read write"),
        ({"always": {"tool_names": ["read"]}}, "read write"),
        ({"always": {"tool_names": ["read"]}, "never": {"tool_names": ["read", "write"]}}, "read"),
        ({"always": {}, "never": {"tool_names": ["read", "write"]}}, ""),
        ({"always": None, "never": None}, "read write"),
    ],
)
def test_approval_is_needed_unless_a_tool_is_named_under_never(require_approval: Any, names: str):
    tool = request(require_approval=require_approval)
    assert [each.name for each in (READ, WRITE) if needs_approval(each, tool)] == names.split()


def test_approval_is_needed_where_a_request_says_nothing():
    assert needs_approval(READ, request())


filters = st.none() | st.fixed_dictionaries(
    {}, optional={"tool_names": st.none() | st.lists(st.sampled_from(["read", "write"])), "read_only": st.none() | st.booleans()}
)


@given(filters, filters)
def test_no_filter_lifts_the_approval_of_a_tool_that_never_does_not_match(always: Any, never: Any):
    tool = request(require_approval={"always": always, "never": never})
    for each in (READ, WRITE):
        if not needs_approval(each, tool):
            assert never and (never.get("tool_names") is None or each.name in never["tool_names"])
            assert never.get("read_only") in (None, each.read_only)
