"""One client's largest requests, and how long the others wait meanwhile."""

import concurrent.futures
import http.client
import json
import socket
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import configured

MODELS = {"parrot": {"engine": "scripted", "answers": [{"lines": [{"text": "Yes."}]}]}}
MIB = 1 << 20


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    limits = {"server.bodies_per_key_mib": 40, "server.body_timeout_s": 3600, "logging.level": "error"}
    with background_server(configured(tmp_path_factory.mktemp("large"), MODELS, **limits), is_persistent=True) as address:
        yield address


def post(url, body, path="/v1/responses"):
    address = urlsplit(url)
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as connection:
        connection.request("POST", path, body)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def with_items(item, count, **fields):
    body = json.dumps({"model": "parrot", **fields}).encode()
    return body[:-1] + b',"input":[' + b",".join([item] * count) + b"]}"


MESSAGE = b'{"role":"user","content":"a"}'


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_a_million_messages_are_refused_before_anything_is_made_of_them(url, path):
    status, body = post(url, with_items(MESSAGE, 1_000_000), path)
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert "the limit is 100,000" in body["error"]["message"]


@pytest.mark.parametrize("store", [True, False])
def test_as_many_messages_as_are_allowed_are_answered(url, store):
    status, body = post(url, with_items(MESSAGE, 33_000, store=store))
    assert status == 200, body
    assert body["output"][0]["content"][0]["text"] == "Yes."


def test_others_are_answered_while_a_large_request_is_read(url):
    small = json.dumps({"model": "parrot", "input": "Hi", "store": False}).encode()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        large = pool.submit(post, url, with_items(MESSAGE, 10_000))
        answers = 0
        while not large.done():
            assert post(url, small)[0] == 200
            answers += 1
    assert large.result()[0] == 200
    assert answers > 1


def test_what_is_stored_of_a_large_request_is_complete(url):
    status, body = post(url, with_items(MESSAGE, 5_000))
    assert status == 200
    address = urlsplit(url)
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as connection:
        connection.request("GET", f"/v1/responses/{body['id']}/input_items?limit=100&order=asc")
        page = json.loads(connection.getresponse().read())
    assert len({item["id"] for item in page["data"]}) == 100
    assert page["has_more"]


def test_the_bodies_of_one_caller_are_limited_together_and_the_limit_has_its_name(url):
    address = urlsplit(url)
    head = f"POST /v1/responses HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {30 * MIB}\r\n\r\n".encode()
    for _ in range(20):  # the first request holds its part as soon as the server has read its head, until it has waited too long
        with socket.create_connection((address.hostname, address.port), timeout=60) as unfinished:
            unfinished.sendall(head + b'{"model":')
            status, body = post(url, b'{"model":"parrot","input":"' + b"a" * (11 * MIB) + b'"}')
        if status == 429:
            break
        assert status == 400, body
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert "`server.bodies_per_key_mib`" in body["error"]["message"]
    while post(url, b'{"model":"parrot","input":"' + b"a" * (11 * MIB) + b'"}')[0] == 429:
        pass  # until the server notices that the first one is gone
