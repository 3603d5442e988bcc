"""The `Host` header: what it names, and that a malformed one ends the request, also that of a WebSocket."""

import pytest
from hypothesis import given, strategies as st

from antiphon.server.processes.run import background_server
from antiphon.server.transport.host import parse_host
from support.server.raw_http import error_of, exchange, statuses
from support.server.scripted_server import SCRIPT, configured

WEBSOCKET_FIELDS = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
WELL_FORMED_HOSTS = {
    "localhost": "localhost",
    "LOCALHOST.:8642": "localhost",
    "localhost:": "localhost",
    "localhost:000000080": "localhost",
    "127.0.0.1:1": "127.0.0.1",
    "[::1]": "::1",
    "[0:0::1]:65535": "::1",
    "[::ffff:127.0.0.1]:80": "::ffff:7f00:1",
    "with_underscore.example": "with_underscore.example",
    "a%20b": "a%20b",
}
MALFORMED_HOSTS = (
    *("", ":8642", ".", "[::1].evil", "[::1]evil:80", "[::1", "::1", "[]", "[::g]", "[v1.x]", "[fe80::1%25lo]", "[127.0.0.1]", "]"),
    *("localhost:80:80", "localhost:x", "localhost:-1", "localhost:65536", "localhost:" + "9" * 5000, "localhost:\u0661"),
    "localhost:0000008080808",
    *("local host", "localhost, evil.example", "localhost\tevil", "evil.example@localhost", "http://localhost", "localhost/", "a%zz"),
    *("bücher.example", "\xff", "localhost\u3002", "a#b", "a?b", "a\\b", '"localhost"', "<a>", "a|b"),
)


@pytest.mark.parametrize(("text", "name"), WELL_FORMED_HOSTS.items())
def test_the_host_is_read_without_its_port(text, name):
    assert parse_host(text) == name


@pytest.mark.parametrize("text", MALFORMED_HOSTS)
def test_a_malformed_host_has_no_name(text):
    assert parse_host(text) is None


@given(st.text() | st.text("[]:.%@ a1f9-"))
def test_no_host_has_a_name_that_could_be_misread(text):
    name = parse_host(text)
    assert name is None or (name.isascii() and name.isprintable() and not {" ", "@", "/", "[", "]", "\\"} & set(name))


@pytest.fixture(scope="module")
def open_url(tmp_path_factory):
    """The address of a server that answers to every host name."""
    settings = {"server.allowed_hosts": ["*"], "logging.level": "error"}
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted", **SCRIPT}}, **settings)) as url:
        yield url


@pytest.mark.parametrize("fields", [b"connection: close\r\n", WEBSOCKET_FIELDS], ids=["request", "websocket"])
@pytest.mark.parametrize("server", ["base_url", "open_url"])
@pytest.mark.parametrize("host", MALFORMED_HOSTS)
def test_a_request_to_a_malformed_host_is_no_request(request, server, host, fields):
    path = b"/v1/realtime?model=parrot" if fields is WEBSOCKET_FIELDS else b"/livez"
    answer = exchange(request.getfixturevalue(server), b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (path, host.encode(), fields))
    assert statuses(answer) == [400]
    error = error_of(answer)
    assert (error["type"], error["param"]) == ("invalid_request_error", None) and "Host" in error["message"]


def test_an_old_request_needs_no_host(base_url):
    assert b" 200 " in exchange(base_url, b"GET /livez HTTP/1.0\r\n\r\n")
