"""The plain HTTP client, with servers that send the test's answers."""

import contextlib
import json
import socket
import threading

import pytest

from antiphon.cli.common.client import ApiClient, ServerUnreachable
from antiphon.errors import UpstreamError
from support.cli.saying import server


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1_or_not(suffix):
    with server(200, b"{}") as (url, seen):
        ApiClient(url + suffix).post("/v1/responses", {"model": "m"})
    assert seen == [("/v1/responses", None, b'{"model":"m"}')]


def test_a_key_is_sent_as_the_bearer():
    with server(200, b"{}") as (url, seen):
        ApiClient(url, "sk-1").post("/v1/responses", {})
    assert seen[0][1] == "Bearer sk-1"


def test_a_key_is_not_sent_where_another_server_leads():
    with server(200, b"{}") as (elsewhere, seen), server(302, b"", location=f"{elsewhere}/v1/models") as (url, _):
        with pytest.raises(UpstreamError, match=f"302 Found. It leads to {elsewhere}/v1/models"):
            ApiClient(url, "sk-1").get("/v1/models")
    assert seen == []


def test_a_redirect_within_a_server_is_followed_with_the_key():
    with server(302, b"", location="/v1/models/") as (url, seen), pytest.raises(UpstreamError):
        ApiClient(url, "sk-1").get("/v1/models")
    assert seen[:2] == [("/v1/models", "Bearer sk-1", b""), ("/v1/models/", "Bearer sk-1", b"")]


def test_a_stream_gives_its_events_as_they_come():
    body = b'event: a\ndata: {"type":"a"}\n\n: still here\n\nevent: b\ndata: {"type":"b"}\n\ndata: [DONE]\n\n'
    with server(200, body) as (url, seen):
        assert [event["type"] for event in ApiClient(url).stream("/v1/responses", {})] == ["a", "b"]
    assert json.loads(seen[0][2]) == {"stream": True}


@contextlib.contextmanager
def server_that_stops(answer):
    """A server that ends in the middle of its answer, and its address."""

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("answer", [b"", b"2\r\n{}", b"2\r\n{}\r\n"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get("/v1/models"),
        lambda client: client.post("/v1/responses", {}),
        lambda client: client.delete("/v1/responses/1"),
        lambda client: client.get_file("/v1/sessions/1/events"),
        lambda client: list(client.stream("/v1/responses", {})),
    ],
    ids=["get", "post", "delete", "get_file", "stream"],
)
def test_an_answer_that_breaks_off_is_said_to_do_so(ask, answer):
    with server_that_stops(answer) as url, pytest.raises(ServerUnreachable, match="sent only a part of /v1/"):
        ask(ApiClient(url))


def test_a_refusal_comes_in_the_words_of_the_server():
    with (
        server(404, b'{"error":{"message":"no such model","code":"model_not_found","param":"model","type":"x"}}') as (url, _seen),
        pytest.raises(UpstreamError, match="no such model") as refused,
    ):
        ApiClient(url).post("/v1/responses", {})
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "model_not_found", "model")


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"[]", b'{"error":"busy"}', b"{}"])
def test_a_refusal_in_no_known_form_is_told_by_its_status(body):
    with server(503, body) as (url, _seen), pytest.raises(UpstreamError, match="answered 503 Service Unavailable"):
        ApiClient(url).post("/v1/responses", {})


def test_an_answer_that_is_no_json_object_is_said_to_be_none():
    with server(200, b"hello") as (url, _seen), pytest.raises(UpstreamError, match="no JSON object"):
        ApiClient(url).post("/v1/responses", {})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::bad", "ftp://127.0.0.1:1/x"])
def test_nobody_there_is_unreachable(url):
    with pytest.raises(ServerUnreachable):
        ApiClient(url).post("/v1/responses", {})


def test_why_nobody_is_there_is_told_in_words_and_with_what_to_look_at():
    with pytest.raises(ServerUnreachable, match=r"^No answer from http://127\.0\.0\.1:1: Connection refused\. Does the server run, "):
        ApiClient("http://127.0.0.1:1").post("/v1/responses", {})


def test_only_an_antiphon_counts_as_alive():
    with server(200, b'{"name":"antiphon","version":"1"}') as (url, _seen):
        assert ApiClient(url).is_alive()
    with server(200, b'{"version":"1"}') as (url, _seen):
        assert not ApiClient(url).is_alive()
    assert not ApiClient("http://127.0.0.1:1").is_alive()


@pytest.mark.parametrize("command", ["sessions show", "sessions rm", "sessions export", "queue cancel", "workers drain"])
@pytest.mark.parametrize("id", ["", " ", ".", "..", "../x", "a/b", "a\nb"])
def test_what_is_no_id_leads_to_no_path(antiphon, command, id):
    with server(200, b"{}") as (url, seen):
        result = antiphon(*command.split(), id, "--url", url)
    assert (result.code, result.out, seen) == (2, "", [])
    assert "is a word without slashes" in result.err or (command, id) == ("workers drain", "")
