"""Many clients that read one background stream, and some that hardly do; and how many such streams a key may have."""

import concurrent.futures
import json
import socket
import urllib.error
import urllib.request

import pytest

from antiphon.server.processes.run import background_server
from support.server.own_process import serving
from support.server.raw_http import connect, until
from support.server.scripted_server import configured

READERS = 200
STALLED = 20
SONG = "la " * 20_000
TIMEOUT_S = 120


PATIENT = {"store.timeout_s": TIMEOUT_S, "logging.level": "error"}
"""On a busy machine two hundred share the store's connections for longer than usual; and nobody reads what the server writes."""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), **PATIENT) as (_, url):
        yield url


def post(url, **body):
    return urllib.request.Request(
        f"{url}/v1/responses", json.dumps({"background": True, **body}).encode(), {"content-type": "application/json"}
    )


def read(url, response_id):
    """The events of a stream as they are sent."""
    with urllib.request.urlopen(f"{url}/v1/responses/{response_id}?stream=true", timeout=TIMEOUT_S) as reply:
        return reply.read()


def id_of(stream):
    return json.loads(stream.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]


def stalled(url, response_id):
    """A client that has asked for the stream, and reads its beginning only."""
    reader = connect(url)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.sendall(f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    until(reader, b"200")
    return reader


def test_who_does_not_read_holds_up_nobody_and_not_the_end(tmp_path):
    with serving(tmp_path, drain_s=0.2) as (process, url):
        whole = urllib.request.urlopen(post(url, model="parrot", input=SONG, stream=True), timeout=TIMEOUT_S).read()
        readers = [stalled(url, id_of(whole)) for _ in range(STALLED)]
        assert read(url, id_of(whole)) == whole
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        for reader in readers:
            reader.close()


def test_who_reads_a_byte_at_a_time_gets_what_everybody_gets(url):
    whole = urllib.request.urlopen(post(url, model="parrot", input="la " * 50, stream=True), timeout=TIMEOUT_S).read()
    reader = connect(url)
    reader.sendall(f"GET /v1/responses/{id_of(whole)}?stream=true HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    got = bytearray()
    while byte := reader.recv(1):
        got += byte
    reader.close()
    assert all(line in got for line in whole.splitlines())


@pytest.mark.long
def test_two_hundred_read_a_response_while_it_is_made(url):
    first = connect(url)
    body = json.dumps({"model": "short", "input": "Sing.", "background": True, "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    first.sendall(head.encode() + body)
    response_id = id_of(until(first, b'"response.in_progress"'))
    with concurrent.futures.ThreadPoolExecutor(READERS) as readers:
        streams = {*readers.map(lambda _: read(url, response_id), range(READERS))}
    first.close()
    (stream,) = streams
    assert stream.count(b"output_text.delta") > 0 and b"event: response.completed" in stream


def test_the_limit_of_a_key_counts_those_that_wait(tmp_path):
    song = [{"lines": [{"text": "la ", "repeat": 100_000}]}]
    models = {"endless": {"engine": "scripted", "pace_ms": 10, "answers": song}}
    config = configured(tmp_path, models, background={"running": 1, "per_key": 2}, server={"drain_s": 0})
    with background_server(config) as url:
        made = [json.load(urllib.request.urlopen(post(url, model="endless", input="Sing."), timeout=TIMEOUT_S)) for _ in range(2)]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(post(url, model="endless", input="Sing."), timeout=TIMEOUT_S)
        error = json.load(refused.value)["error"]
        assert (refused.value.code, error["code"], error["param"]) == (429, "rate_limit_exceeded", "background")
        assert "`background.per_key` of 2" in error["message"] and refused.value.headers["retry-after"]
        cancel = urllib.request.Request(f"{url}/v1/responses/{made[1]['id']}/cancel", b"")
        assert json.load(urllib.request.urlopen(cancel, timeout=TIMEOUT_S))["status"] == "cancelled"
        again = json.load(urllib.request.urlopen(post(url, model="endless", input="Sing."), timeout=TIMEOUT_S))
        assert again["status"] == "queued"
