"""Requests without a model, or with one that there is not, where configured names end in `*`."""

import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.plain_http import post
from support.server.raw_http import connect, until
from support.server.scripted_server import SCRIPT, configured


@pytest.fixture(scope="module")
def wildcard_url(tmp_path_factory):
    """The address of a server whose only model stands for many names."""
    config = configured(tmp_path_factory.mktemp("home"), {"mock-*": {"engine": "scripted", **SCRIPT}})
    with background_server(config) as url:
        yield url


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}])
def test_a_request_must_name_its_model_where_none_is_the_first(wildcard_url, path, fields):
    status, _, body = post(wildcard_url, {"input": "Hi", **fields}, path)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"]) == (400, "missing_required_parameter", "model")


@pytest.mark.parametrize("subprotocol", [b"", b"sec-websocket-protocol: realtime\r\n"], ids=["minicpmo", "realtime"])
def test_so_must_a_live_session(wildcard_url, subprotocol):
    fields = (
        subprotocol
        + b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    with connect(wildcard_url) as connection:
        connection.sendall(b"GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % fields)
        assert b'"code":"missing_required_parameter"' in until(connection, b"}}")


@pytest.mark.parametrize("name", ["gpt-9", "mock-*", "*"])
def test_a_name_that_works_is_shown_to_who_used_one_that_does_not(wildcard_url, name):
    status, _, body = post(wildcard_url, {"input": "Hi", "model": name})
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (404, "model_not_found")
    assert "This server has any name that begins with 'mock-', such as 'mock-1'." in error["message"]
    assert post(wildcard_url, {"input": "Hi", "model": "mock-1"})[0] == 200
