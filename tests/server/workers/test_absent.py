"""Models whose workers have not joined yet: the answer on every route."""

import http.client
import json

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_http import connect
from support.server.raw_socket import handshake
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with background_server(configured(home, {"far": {"engine": "worker"}}, **{"logging.level": "error"})) as url:
        yield url


def posted(base_url, path, body):
    """The answer to a request: its status, when to come back, and the code of its error."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=20)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    return reply.status, reply.headers["retry-after"], told["error"]["code"]


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]},
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}},
        {"input": "Hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
    ],
)
def test_what_a_model_without_a_worker_can_do_is_not_known_so_nothing_is_refused_for_good(base_url, body):
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        assert posted(base_url, path, {"model": "far", **body})[0::2] == (503, "worker_busy")


def test_a_live_session_with_a_model_without_a_worker_is_told_to_come_back(base_url):
    assert posted(base_url, "/v1/realtime/client_secrets", {"session": {"type": "realtime", "model": "far"}})[0::2] == (503, "worker_busy")
    with connect(base_url) as connection:
        connection.sendall(handshake("/v1/realtime?model=far"))
        assert connection.recv(99).startswith(b"HTTP/1.1 503 ")
