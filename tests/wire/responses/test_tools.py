import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.responses.tools import FunctionTool, NamespaceTool, WebSearch20250826Tool, WebSearchTool, decode_tool, encode_tool


def test_an_unknown_tool_survives_unchanged():
    body = b'{"type":"acme:oven","heat":180.0}'
    tool = decode_tool(body)
    assert isinstance(tool, Unknown)
    assert encode_tool(tool) == body


def test_an_unknown_tool_within_a_namespace_survives():
    tool = {
        "type": "namespace",
        "name": "kitchen",
        "description": "",
        "tools": [{"type": "acme:oven"}, {"type": "function", "name": "stir"}],
    }
    read = decode_tool(json.dumps(tool).encode())
    assert isinstance(read, NamespaceTool)
    assert isinstance(read.tools[0], Unknown)
    assert read.tools[1] == FunctionTool(name="stir")
    assert json.loads(encode_tool(read)) == tool


def test_a_dated_tool_is_also_the_tool():
    tool = decode_tool(b'{"type":"web_search_2025_08_26"}')
    assert isinstance(tool, WebSearch20250826Tool)
    assert isinstance(tool, WebSearchTool)
    assert tool.type == "web_search_2025_08_26"


def test_a_schema_is_kept_as_it_is():
    tool = {
        "type": "function",
        "name": "f",
        "parameters": {"type": "object", "properties": {"n": {"type": "number", "minimum": 1.5}}},
        "async": True,
    }
    assert json.loads(encode_tool(decode_tool(json.dumps(tool).encode()))) == tool


def test_the_path_of_a_mistake_begins_where_the_tool_stands():
    with pytest.raises(ClientError) as caught:
        decode_tool(b'{"type":"mcp"}', "tools[2]")
    assert caught.value.param == "tools[2].server_label"
