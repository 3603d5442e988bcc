"""
Requests that were once in order, cut up at random: each is answered or closed, and nothing of it becomes a defect.

`ANTIPHON_FUZZ_EXAMPLES` asks for more examples, and others each time.
"""

import contextlib
import json
import os
import re
import urllib.request

import pytest
from hypothesis import Phase, given, settings, strategies as st

from antiphon.server.processes.run import background_server
from support.server.raw_http import ask, connect, request, rest_of, statuses
from support.server.scripted_server import SCRIPT, configured

MORE = os.environ.get("ANTIPHON_FUZZ_EXAMPLES")

TOGETHER = 32
"""Requests in one example, each on a connection of its own, so that those that wait for their time-out wait together."""

BODY = json.dumps({"model": "parrot", "input": "Hi"}).encode()
SOUND = [
    request(),
    request("HEAD", "/version"),
    request(path="/v1/responses/resp_1/input_items?limit=2&order=asc&after=x"),
    request("DELETE", "/v1/responses/resp_1"),
    request("OPTIONS", "/v1/responses", origin="http://localhost", access_control_request_method="POST"),
    request("POST", "/v1/responses", BODY, content_type="application/json", authorization="Bearer none", te="trailers"),
    request("POST", "/v1/responses", BODY, expect="100-continue", connection="close"),
    request("POST", "/v1/responses", transfer_encoding="chunked") + b"%x;a=b\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(BODY), BODY),
    request("POST", "/v1/responses", BODY, connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMAAABkAAQ"),
    ask(stream=True) + request(path="/v1/models"),
    request("POST", "/v1/responses/input_tokens", BODY) + request(connection="close"),
]
FLOOD = b"x: flood\r\n"  # shown in a failure so, and sent large
PIECES = [
    *[
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"%00",
        b"%",
        b"/",
        b"//",
        b"..",
        b"*",
        b"\xff",
        b"\x7f",
        b"\xc3\xa9",
        b'"',
        b"{",
        b"\\",
    ],
    *[
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"GET ",
        b"POST ",
        b"http://elsewhere/",
        b"chunked",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"-1",
        b"9" * 20,
    ],
    *[
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: elsewhere\r\n",
        b"Connection: close\r\n",
        b"Upgrade: websocket\r\n",
    ],
    *[b"Expect: 100-continue\r\n", b"Origin: http://[::1\r\n", b"Content-Type: text/plain\r\n", FLOOD],
]

pieces = st.sampled_from(PIECES) | st.binary(max_size=6)
places = st.floats(0, 1)


def spliced(sound, cuts):
    """A request where at each place some bytes are left out, and others put in."""
    sound = SOUND[sound]
    for place, length, piece in cuts:
        at = round(place * len(sound))
        sound = sound[:at] + piece.replace(FLOOD, b"x: " + b"y" * 70_000 + b"\r\n") + sound[at + length :]
    return sound


broken = st.tuples(st.integers(0, len(SOUND) - 1), st.lists(st.tuples(places, st.integers(0, 8), pieces), max_size=4))


@pytest.fixture(scope="module")
def impatient_url(tmp_path_factory):
    """The address of a server with very short timeouts."""
    waits = {f"server.{name}": 0.2 for name in ("head_timeout_s", "body_timeout_s", "keep_alive_s")}
    models = {"parrot": {"engine": "scripted", **SCRIPT}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, **waits, **{"logging.level": "error"})) as url:
        yield url


def asked(base_url, path):
    with urllib.request.urlopen(base_url + path) as reply:
        return reply.read().decode()


# Shrinking would take minutes, and each request is short enough to read.
@settings(max_examples=int(MORE or settings.default.max_examples // 4), derandomize=MORE is None, database=None, phases=[Phase.generate])
@given(requests=st.lists(st.tuples(broken, places), min_size=TOGETHER, max_size=TOGETHER))
def test_a_broken_request_is_answered_or_closed(impatient_url, requests):
    requests = [(spliced(*broken), place) for broken, place in requests]
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(connect(impatient_url)) for _ in requests]
        for connection, (sent, place) in zip(connections, requests, strict=True):
            cut = round(place * len(sent))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may be closed before all is sent
                connection.sendall(sent[:cut])
                connection.sendall(sent[cut:])
        for connection, (sent, _) in zip(connections, requests, strict=True):
            assert {500, 501, 502, 505}.isdisjoint(statuses(rest_of(connection))), sent[:2000]
    assert json.loads(asked(impatient_url, "/livez")) == {"status": "ok"}
    assert not re.search(r'http_response_status_code="500"', asked(impatient_url, "/metrics"))
