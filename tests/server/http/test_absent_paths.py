"""Unknown paths: the error, in the shape of each API, names what to use instead."""

import pytest

from antiphon.server.http.absent_paths import ABSENT_PATHS
from antiphon.server.processes.run import background_server
from support.server.messages_peer import ask
from support.server.scripted_server import configured


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted"}})) as address:
        yield address


@pytest.mark.parametrize("absent", ABSENT_PATHS, ids=lambda absent: absent.prefix)
def test_every_path_in_the_table_is_absent_and_says_what_to_use(url, absent):
    method = absent.methods[0] if absent.methods else "POST"
    for path in (absent.prefix.replace("*", "x"), *([] if absent.methods else [f"{absent.prefix}/x/y".replace("*", "x")])):
        status, _, body = ask(url, method, path, {} if method == "POST" else None)
        message = body["error"]["message"]
        assert status == 404 and absent.advice in message and path in message
        assert ("request_id" in body) is path.startswith("/v1/messages")


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/responses", "'/v1/responses'? The base URL of a client is"),
        ("POST", "/v1/v1/responses", "'/v1/responses'? The base URL of a client is"),
        ("POST", "/v1/responses/", "'/v1/responses'?"),
        ("POST", "//v1//responses", "'/v1/responses'?"),
        ("GET", "/models", "'/v1/models'?"),
        ("GET", "/v1/models/", "'/v1/models'?"),
        ("POST", "/openai/deployments/gpt/responses", "'/v1/responses'?"),
        ("POST", "/proxy/v1/responses", "'/v1/responses'?"),
        ("POST", "/v1/v1/messages", "'/v1/messages'? The base URL of Anthropic's clients is that of the server, without '/v1'."),
        ("POST", "/messages", "'/v1/messages'?"),
        ("POST", "/v1/messages/", "'/v1/messages'?"),
        ("POST", "/anthropic/v1/messages/count_tokens", "'/v1/messages/count_tokens'?"),
    ],
)
def test_a_path_behind_a_wrong_base_url_is_told_the_right_one(url, method, path, meant):
    status, headers, body = ask(url, method, path, {} if method == "POST" else None)
    assert status == 404 and f"Did you mean {meant}" in body["error"]["message"]
    if "messages" in path:
        assert body["type"] == "error" and body["error"]["type"] == "not_found_error" and body["request_id"] == headers["request-id"]
    else:
        assert body["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/v1", "/v1/", "/x/" * 40, "/%00/%ff", "/nothing/at/all"])
def test_a_path_that_nobody_meant_is_just_not_there(url, path):
    status, _, body = ask(url, "POST", path, {})
    assert status in (404, 405) and "Did you mean" not in body["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
def test_whoever_opens_the_address_of_the_server_is_told_where_to_look(url, path):
    status, _, body = ask(url, "GET", path)
    assert status == 404 and "/docs" in body["error"]["message"]


def test_a_method_that_a_path_does_not_have_is_still_told_as_such(url):
    assert ask(url, "PUT", "/api/presets")[0] == 405
    status, headers, body = ask(url, "PUT", "/v1/responses")
    assert (status, headers["allow"]) == (405, "GET, HEAD, POST") and "Not allowed" in body["error"]["message"]


def test_an_unknown_path_speaks_the_api_of_its_client(url):
    status, _, body = ask(url, "POST", "/v1/nothing", {}, anthropic_version="2023-06-01")
    assert (status, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")
