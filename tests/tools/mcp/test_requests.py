"""What a request may say of an MCP server, and what is refused before anything is dialled."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from antiphon.config.tools.mcp import McpServerSettings, is_header, is_server_url
from antiphon.errors import ClientError, ServerError
from antiphon.tools.mcp.dialing import CommandTarget, HttpTarget
from antiphon.tools.mcp.requests import OwnServers, ServerRequest, read_requests
from antiphon.wire.responses.tools import McpTool

URL = "https://example.com/mcp"
NOTHING = OwnServers([], {}, {})
OWN = OwnServers(
    [
        McpServerSettings(label="wiki", url="http://10.0.0.1/mcp", headers={"X-Team": "blue"}, key_env="KEY"),
        McpServerSettings(label="open", url="http://10.0.0.2/mcp", headers={"X-Team": "blue"}, accept_credentials=True),
        McpServerSettings(label="disk", command=("server", "--here"), env={"A": "b"}),
    ],
    {"KEY": "sk-1"},
    {},
)


def read(*requests: dict[str, Any], own: OwnServers = NOTHING) -> list[ServerRequest]:
    tools = [msgspec.convert({"type": "mcp", "server_label": "wiki"} | fields, McpTool) for fields in requests]
    return read_requests([(f"tools[{n}]", tool) for n, tool in enumerate(tools)], own)


def refusal(*requests: dict[str, Any], own: OwnServers = NOTHING) -> ClientError:
    with pytest.raises(ClientError) as caught:
        read(*requests, own=own)
    assert caught.value.status == 400
    return caught.value


def test_a_url_is_reached_with_the_requests_credentials_and_judged():
    (request,) = read({"server_url": URL, "authorization": "abc", "headers": {"X-Id": "7"}})
    assert request.target == HttpTarget(url=URL, headers={"X-Id": "7", "authorization": "Bearer abc"})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "file:///etc/passwd",
        "http://",
        "https://me:secret@example.com/",
        "http://[::1",
        "stdio:ls",
        "https://a.example/\r\nx",
        "https://a.example/\x00",
        "https://a b/",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_without_repeating_it(url: str):
    error = refusal({"server_url": url})
    assert error.param == "tools[0].server_url" and "secret" not in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "tunnel_" + "a" * 32}, "tunnel_id"),
        ({"server_url": URL, "connector_id": "connector_dropbox"}, "connector_id"),
        ({"server_url": URL, "allowed_callers": ["programmatic"]}, "allowed_callers"),
        ({}, "server_url"),
        ({"server_url": URL, "server_label": "a" * 65}, "server_label"),
        ({"server_url": URL, "headers": {"Host": "x"}}, "headers"),
        ({"server_url": URL, "headers": {"Mcp-Session-Id": "x"}}, "headers"),
        ({"server_url": URL, "headers": {"a b": "x"}}, "headers"),
        ({"server_url": URL, "headers": {"a": "x\r\nHost: y"}}, "headers"),
        ({"server_url": URL, "headers": {"a": "\u2603"}}, "headers"),
        ({"server_url": URL, "headers": {f"a{n}": "x" for n in range(65)}}, "headers"),
        ({"server_url": URL, "headers": {"a": "x" * 20_000}}, "headers"),
        ({"server_url": URL, "headers": {"Authorization": "x"}, "authorization": "y"}, "headers"),
        ({"server_url": URL, "authorization": "secret\r\nHost: y"}, "authorization"),
    ],
)
def test_what_can_not_be_done_is_refused_with_its_path(fields: dict[str, Any], param: str):
    error = refusal(fields)
    assert error.param == f"tools[0].{param}" and error.code and "secret" not in error.message


def test_labels_are_unique_and_servers_are_counted():
    assert refusal({"server_url": URL}, {"server_url": URL}).param == "tools[1].server_label"
    many = [{"server_url": URL, "server_label": f"s{n}"} for n in range(33)]
    assert "at most 32" in refusal(*many).message


def test_a_label_alone_names_a_server_of_the_operators():
    (request,) = read({}, own=OWN)
    assert request.target == HttpTarget(url="http://10.0.0.1/mcp", headers={"X-Team": "blue", "authorization": "Bearer sk-1"}, is_own=True)
    (request,) = read({"server_label": "disk"}, own=OWN)
    assert request.target == CommandTarget(label="disk", command=("server", "--here"), env={"A": "b"})
    assert "Did you mean 'wiki'?" in refusal({"server_label": "wikki"}, own=OWN).message


def test_a_url_with_an_operators_label_is_the_clients_own_server():
    (request,) = read({"server_url": URL}, own=OWN)
    assert request.target == HttpTarget(url=URL, headers={}) and request.settings is None


def test_the_operators_servers_take_credentials_only_where_they_are_told_to_and_keep_their_own():
    assert refusal({"authorization": "abc"}, own=OWN).param == "tools[0].authorization"
    assert refusal({"server_label": "disk", "headers": {"a": "b"}}, own=OWN).param == "tools[0].headers"
    (request,) = read({"server_label": "open", "authorization": "abc", "headers": {"x-team": "red"}}, own=OWN)
    assert isinstance(request.target, HttpTarget)
    assert request.target.headers == {"X-Team": "blue", "authorization": "Bearer abc"} and request.target.is_own


def test_a_key_that_is_not_set_and_a_label_that_two_have_are_told_at_the_start():
    with pytest.raises(ServerError, match=r"The key of the MCP server 'wiki' is to be in KEY, which is not set\."):
        OwnServers([McpServerSettings(label="wiki", url=URL, key_env="KEY")], {}, {})
    with pytest.raises(ServerError, match="the label 'wiki'"):
        OwnServers([McpServerSettings(label="wiki", url=URL)], {}, {"wiki": object()})  # type: ignore[dict-item]


@given(st.text())
def test_any_text_is_a_url_or_is_none(text: str):
    assert is_server_url(text) in (True, False)
    assert not is_server_url(f"https://user@{text}")


@given(st.text(), st.text())
def test_a_header_never_breaks_a_line(name: str, value: str):
    if is_header(name, value):
        assert not {*name, *value} & {"\r", "\n", "\0"} and name.isascii()
        value.encode("latin-1")
