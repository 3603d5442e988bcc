"""What a request leaves in the log."""

import json

import pytest

from antiphon.server.processes.run import background_server
from antiphon.server.transport.logs import content_text
from support.server.raw_http import ask, exchange, request
from support.server.scripted_server import SCRIPT, configured

SECRET = "the launch code is 1234"
ALLOWLIST = {
    "type": "allowlist",
    "allowed_domains": ["s.example"],
    "domain_secrets": [{"domain": "s.example", "name": "k", "value": SECRET}],
}


@pytest.fixture
def logged(tmp_path, capsys):
    """Starts a server with these settings, asks it this, and gives the lines that it logged."""

    def served(asked, **settings):
        models = {"parrot": {"engine": "scripted", **SCRIPT}}
        settings = {f"logging.{name}": value for name, value in ({"format": "json"} | settings).items()}
        with background_server(configured(tmp_path, models, **settings)) as url:
            answer = exchange(url, asked)
        return answer, [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    return served


def last(asked):
    return asked.replace(b"host: localhost", b"host: localhost\r\nconnection: close")


def test_a_request_is_one_line_with_its_id_and_the_event_first(logged):
    answer, lines = logged(last(ask()))
    (line,) = lines
    assert next(iter(line)) == "event"
    assert (line["event"], line["method"], line["path"], line["status"], line["level"]) == ("request", "POST", "/v1/responses", 200, "info")
    assert f"x-request-id: {line['request_id']}".encode() in answer
    assert line["ms"] >= 0


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_that_was_said_is_logged(logged, stream):
    asked = last(ask(text=SECRET, instructions=SECRET, stream=stream))
    answer, lines = logged(asked, level="debug")
    assert SECRET.encode() in answer
    assert SECRET not in json.dumps(lines)


def test_content_is_logged_where_it_is_asked_for_and_carries_the_same_id(logged):
    _, lines = logged(last(ask(text=SECRET)), content=True)
    assert [line["event"] for line in lines] == ["asked", "answered", "request"]
    assert len({line["request_id"] for line in lines}) == 1
    assert json.loads(lines[0]["content"])["input"] == SECRET
    assert json.loads(lines[1]["content"])["output"][0]["content"][0]["text"] == f"You said: {SECRET}"


@pytest.mark.parametrize("adding", [{}, {"type": "additional_tools", "role": "developer"}])
@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_label": "s", "server_url": "https://s.example", "authorization": SECRET, "headers": {"x-key": SECRET}},
        {"type": "shell", "environment": {"type": "container_auto", "network_policy": ALLOWLIST}},
    ],
)
def test_credentials_of_tools_are_not_even_logged_with_the_content(logged, adding, tool):
    said = {"role": "user", "content": "Hi"}
    fields = {"input": [said, {**adding, "tools": [tool]}]} if adding else {"input": [said], "tools": [tool]}
    body = json.dumps({"model": "parrot", **fields}).encode()
    head = {"content-type": "application/json", "connection": "close", "content-length": str(len(body))}
    _, lines = logged(request("POST", "/v1/responses", body, **head), content=True)
    assert json.loads(lines[0]["content"])["input"][0] == said and "s.example" in lines[0]["content"]
    assert SECRET not in json.dumps(lines)


def test_what_cannot_be_read_is_logged_as_it_came():
    for body in (b'{"type":"mcp"', b'{"type": "mcp", "authorization": "a"'):
        assert content_text(body) == body.decode()


def test_requests_in_a_row_have_ids_of_their_own(logged):
    _, lines = logged(ask() + ask() + last(ask()))
    assert len({line["request_id"] for line in lines}) == 3


def test_probes_are_logged_for_debugging_only(logged):
    probe = last(request(path="/readyz"))
    assert logged(probe)[1] == []
    assert [line["path"] for line in logged(probe, level="debug")[1]] == ["/readyz"]
