"""What the server does about clients that stall, flood, or speak in riddles, while others are served."""

import json
import re
import socket
import urllib.request

import pytest

from antiphon.server.processes.run import background_server
from support.server.raw_http import ask, connect, error_of, exchange, request, rest_of, statuses, until
from support.server.scripted_server import SCRIPT, configured

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT},
    "silent": {"engine": "scripted", "answers": [{"lines": [{"text": "So"}, {"wait_ms": 600000}]}]},
}
STALLED = 60


@pytest.fixture(scope="module")
def hasty_url(tmp_path_factory):
    """The address of a server whose timeouts are fractions of a second."""
    limits = {"head_timeout_s": 0.3, "body_timeout_s": 0.3, "keep_alive_s": 0.3, "slow_reader_s": 0.3, "heartbeat_s": 0.1}
    settings = {f"server.{name}": value for name, value in limits.items()}
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS, **settings)) as url:
        yield url


def dropped(base_url, reason):
    """How many connections were closed for `reason`."""
    with urllib.request.urlopen(f"{base_url}/metrics") as reply:
        found = re.search(rf'antiphon_dropped_connections_total{{reason="{reason}"}} (\d+)', reply.read().decode())
    return int(found[1]) if found else 0


# Stalling


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"", []),
        (b"GET /liv", [408]),
        (b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-a: b", [408]),
        (b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{", [408]),
        (b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", [408]),
        (request() + b"GET /again", [200, 408]),
        (request(), [200]),
        (request() + b"\r\n\r\n", [200]),
    ],
    ids=["nothing", "line", "field", "body", "chunk", "second", "idle", "blank"],
)
def test_who_stalls_is_closed_and_told_if_a_request_had_begun(hasty_url, begun, status):
    assert statuses(exchange(hasty_url, begun)) == status


def test_many_stalled_connections_are_closed_while_others_are_served(hasty_url):
    halves = [b"GET /livez HTTP/1.1\r\nx: y\r\n", b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"]
    stalled = [connect(hasty_url) for _ in range(STALLED)]
    for number, connection in enumerate(stalled):
        connection.sendall(halves[number % 2])
    for _ in range(20):
        assert statuses(exchange(hasty_url, ask() + request(connection="close"))) == [200, 200]
    assert all(statuses(rest_of(connection)) == [408] for connection in stalled)
    for connection in stalled:
        connection.close()


def test_a_body_that_drips_is_not_waited_for(hasty_url):
    with connect(hasty_url) as connection:
        connection.sendall(request("POST", "/v1/responses", content_length="100000"))
        answer = b""
        connection.settimeout(0.02)  # the pace of the drip
        try:
            while not answer:
                connection.sendall(b"x")
                try:
                    answer = connection.recv(1 << 16)
                except TimeoutError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            pytest.fail("closed without a word")
    assert statuses(answer) == [408]


def test_a_stream_is_not_cut_because_its_client_has_nothing_to_say(hasty_url):
    with connect(hasty_url) as connection:
        connection.sendall(ask("slow", " ".join(["word"] * 200), stream=True))
        assert b"response.completed" in until(connection, b"\r\n0\r\n\r\n")


def test_who_does_not_read_is_dropped_and_the_answer_cancelled(hasty_url):
    before = dropped(hasty_url, "slow_reader")
    with connect(hasty_url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(ask("parrot", "sing", stream=True))
        head = connection.recv(2048)
        response_id = re.search(rb'"id":"(resp_\w+)"', head + connection.recv(2048))[1].decode()
        while dropped(hasty_url, "slow_reader") == before:
            pass
    assert status_of(hasty_url, response_id, "cancelled") == "cancelled"


def status_of(base_url, response_id, wanted):
    for _ in range(2000):  # each look is a round trip, so that many of them are time enough
        with urllib.request.urlopen(f"{base_url}/v1/responses/{response_id}") as reply:
            status = json.loads(reply.read())["status"]
        if status == wanted:
            break
    return status


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_closes_its_sending_side_has_gone(hasty_url, is_stream):
    with connect(hasty_url) as connection:
        connection.sendall(ask("silent", stream=is_stream))
        connection.shutdown(socket.SHUT_WR)
        rest_of(connection)  # until the server closes: the model would be silent for ten minutes


def test_a_silent_stream_is_kept_alive_by_comments(hasty_url):
    with connect(hasty_url) as connection:
        connection.sendall(ask("silent", stream=True))
        until(connection, b"So")
        heard = until(connection, b": keep-alive\n\n")
        heard += until(connection, b": keep-alive\n\n")
    assert b"event:" not in heard.split(b": keep-alive")[1]


# Flooding


def test_a_head_of_64_kib_is_the_largest(base_url):
    assert statuses(exchange(base_url, request(x_long="x" * 65000, connection="close"))) == [200]
    for flood in (
        request(x_long="x" * 70000),
        request(path="/" + "x" * 70000),
        b"GET /" + b"x" * 70000,
        b"GET / HTTP/1.1\r\nx-endless: " + b"x" * 300_000,
        b"GET / HTTP/1.1\r\n" + b"x-many: " + b"y" * 1000 + b"\r\n" + (b"x-many: " + b"y" * 1000 + b"\r\n") * 80,
        request(**{f"x_{number}": "y" for number in range(101)}),
    ):
        answer = exchange(base_url, flood)
        assert statuses(answer) == [431]
        assert error_of(answer)["code"] == "request_header_fields_too_large"


def test_a_head_is_counted_anew_for_each_request_of_a_connection(base_url):
    large = request(x_long="x" * 50_000)
    assert statuses(exchange(base_url, large, large + large, request(connection="close"))) == [200] * 4


def test_a_flood_of_headers_is_cut_off_and_not_read_to_its_end(base_url):
    sent = 0
    with connect(base_url) as connection, pytest.raises(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\n")
        while sent < 1 << 28:
            sent += connection.send(b"x-more: " + b"y" * 8192 + b"\r\n")
    assert sent < 1 << 28


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_read(base_url):
    with connect(base_url) as connection:
        connection.sendall(request("POST", "/v1/responses", content_length=str(1 << 30)))
        head = until(connection, b"\r\n\r\n")
        assert statuses(head) == [413]
    with connect(base_url) as connection:
        connection.sendall(request("POST", "/v1/responses", content_length=str(40 << 20), expect="100-continue"))
        answer = rest_of(connection)
        assert statuses(answer) == [413]
        assert error_of(answer)["code"] == "request_too_large"


def test_a_body_that_grows_too_large_in_chunks_is_refused(base_url):
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    head = request("POST", "/v1/responses", transfer_encoding="chunked", connection="close")
    answer = exchange(base_url, head, *[chunk] * 34, b"0\r\n\r\n")
    assert statuses(answer) == [413]


def test_who_goes_on_sending_a_refused_body_is_cut_off(base_url):
    sent = 0
    with connect(base_url) as connection, pytest.raises(OSError):
        connection.sendall(request("POST", "/v1/responses", content_length=str(1 << 30)))
        while sent < 1 << 29:
            sent += connection.send(b"x" * (1 << 20))
    assert sent < 1 << 29


def test_a_body_that_nests_too_deep_is_refused(base_url):
    body = b'{"input":' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    answer = exchange(base_url, request("POST", "/v1/responses", body, connection="close"))
    assert statuses(answer) == [400]
    assert "nested" in error_of(answer)["message"]


def test_there_is_a_most_of_connections(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"server.connections": 3})) as url:
        held = [connect(url) for _ in range(3)]
        for connection in held:
            connection.sendall(request())
            until(connection, b'{"status":"ok"}')
        answer = exchange(url)
        assert (statuses(answer), error_of(answer)["code"]) == ([503], "server_is_overloaded")
        assert b"retry-after: 1" in answer
        held[0].sendall(request(connection="close"))
        assert statuses(rest_of(held[0])) == [200]
        assert statuses(exchange(url, request(connection="close"))) == [200]
        for connection in held:
            connection.close()


def test_one_address_has_a_most_of_connections(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"server.connections_per_address": 1})) as url, connect(url) as held:
        held.sendall(request())
        until(held, b'{"status":"ok"}')
        answer = exchange(url)
        assert (statuses(answer), error_of(answer)["type"]) == ([429], "rate_limit_error")


# Riddles

POST = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
NEXT = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
RIDDLES = {
    "two kinds of length": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two kinds of length, reversed": POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}\n",
    "the same length twice": POST + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"content-length: 2, 2\r\n\r\n{}",
    "a length with a sign": POST + b"content-length: +2\r\n\r\n{}",
    "a length beyond counting": POST + b"content-length: 99999999999999999999\r\n\r\n{}",
    "space before the colon": POST + b"content-length : 2\r\n\r\n{}",
    "a folded field": POST + b"x: y\r\n z\r\ncontent-length: 2\r\n\r\n{}",
    "an unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "a chunk size that is none": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk size in C": POST + b"transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size beyond counting": POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "a chunk of less than nothing": POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
    "a chunk ended by a bare line feed": POST + b"transfer-encoding: chunked\r\n\r\n2;a\n{}\r\n0\r\n\r\n",
    "codings before the last": POST + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks of an old version": b"POST /v1/responses HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a length among the trailers": POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\ncontent-length: 9\r\n\r\n",
    "bare line feeds": b"GET /livez HTTP/1.1\nhost: localhost\n\n",
    "a bare carriage return": b"GET /livez HTTP/1.1\r\nhost: localhost\rx: y\r\n\r\n",
    "NUL in a field": b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n\r\n",
    "NUL in the address": b"GET /li\0vez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\nx: y\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
    "another host in the address": b"GET http://elsewhere/livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a user in the address": b"GET http://me@localhost/livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an address without a path": b"GET http://localhost HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an address that is none": b"GET livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an address of raw bytes": b"GET /livez\xc3\xa9 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a field without a name": b"GET /livez HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
    "a field name with a space": b"GET /livez HTTP/1.1\r\nhost: localhost\r\na b: x\r\n\r\n",
    "no version": b"GET /livez\r\n\r\n",
    "an unknown version": b"GET /livez HTTP/1.7\r\nhost: localhost\r\n\r\n",
    "an unknown method": b"CONJURE /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("riddle", RIDDLES.values(), ids=RIDDLES)
def test_a_request_of_doubtful_meaning_is_refused_and_nothing_after_it_is_heard(base_url, riddle):
    answer = exchange(base_url, riddle + NEXT)
    assert statuses(answer) == [400]
    assert b"connection: close" in answer
    assert error_of(answer)["type"] == "invalid_request_error"


def test_a_tunnel_is_refused(base_url):
    assert statuses(exchange(base_url, b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n" + NEXT)) == [405]


def test_requests_in_a_row_are_answered_in_order(base_url):
    body = json.dumps({"model": "slow", "input": "first", "stream": True}).encode()
    answer = exchange(
        base_url, request("POST", "/v1/responses", body) + NEXT + ask(text="third") + request(path="/v1/models", connection="close")
    )
    assert statuses(answer) == [200] * 4
    assert [answer.find(mark) for mark in (b"response.completed", b'"version"', b"You said: third", b'"object":"list"')] == sorted(
        answer.find(mark) for mark in (b"response.completed", b'"version"', b"You said: third", b'"object":"list"')
    )


GARBAGE = {
    "bytes": b"\0\0\0garbage\r\n\r\n",
    "a head": b"GET /livez HTTP/1.1\r\nx: y\r\n\r\n",
    "a body": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("is_apart", [False, True], ids=["in one piece", "apart"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_request_before_garbage_is_answered_first_and_the_garbage_then_refused(base_url, garbage, is_apart):
    for asked, mark in (
        ([NEXT], b'"version"'),
        ([ask("slow", "first", stream=True)], b"response.completed"),
        ([ask("slow", "first", stream=True), NEXT], b'"version"'),
    ):
        pieces = [*asked, garbage + NEXT]
        answer = exchange(base_url, *(pieces if is_apart else [b"".join(pieces)]))
        assert statuses(answer) == [200] * len(asked) + [400]
        assert answer.find(mark) < answer.find(b"HTTP/1.1 400 ")
        assert error_of(answer)["type"] == "invalid_request_error"


def test_a_connection_that_its_request_closes_refuses_nothing_after_it(base_url):
    assert statuses(exchange(base_url, request(connection="close") + GARBAGE["bytes"])) == [200]


def test_a_body_that_drips_behind_a_request_lets_that_one_be_answered(hasty_url):
    answer = exchange(hasty_url, ask("slow", " ".join(["word"] * 200), stream=True) + request("POST", "/v1/responses", content_length="9"))
    assert statuses(answer) == [200, 408]
    assert b"response.completed" in answer


def test_a_client_of_http_2_is_told_which_version_is_spoken_here(base_url):
    answer = exchange(base_url, NEXT, b"PR", b"I * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert statuses(answer) == [200, 400]
    assert error_of(answer)["message"] == "The request must be HTTP/1.1, but is HTTP/2."


def test_chunks_of_one_byte_are_served_and_chunks_of_nothing_but_extensions_are_not(base_url):
    body = json.dumps({"model": "parrot", "input": "Hi " * 10_000}).encode()
    head = request("POST", "/v1/responses", transfer_encoding="chunked", connection="close")
    answer = exchange(base_url, head, b"".join(b"1\r\n%c\r\n" % byte for byte in body), b"0;end\r\n\r\n")
    assert statuses(answer) == [200]
    answer = exchange(base_url, head, *[b"1;" + b"x" * 16_000 + b"\r\n{\r\n"] * 20)
    assert statuses(answer) == [400]
    assert "chunks" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/%6civez", 200),  # an address is its characters, however they are written
        ("/v1%2Fmodels", 200),
        ("//v1/models", 404),
        ("/v1//models", 404),
        ("/v1/../v1/models", 404),
        ("/v1/models/", 404),
        ("/v1/models/%00", 404),
        ("/v1/models/%zz", 404),
        ("/v1/models/%ff%fe", 404),
        ("/livez?%zz=&&=;", 200),
        ("/v1/responses/resp_1/input_items?limit=1_0", 400),
        ("/v1/responses/resp_1/input_items?limit=" + "9" * 5000, 400),
        ("/v1/responses/" + "r" * 60_000, 404),
    ],
)
def test_an_address_is_found_by_its_characters_and_by_nothing_like_them(base_url, path, status):
    answer = exchange(base_url, request(path=path, connection="close"))
    assert statuses(answer) == [status]
    assert status == 200 or len(error_of(answer)["message"]) < 300


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/v1/models", 200, None),
        ("HEAD", "/none", 404, None),
        ("HEAD", "/v1/responses", 200, None),
        ("HEAD", "/v1/audio/speech", 405, "POST"),
        ("OPTIONS", "/v1/responses/resp_1", 405, "DELETE, GET, HEAD, POST"),
        ("PUT", "/v1/responses/input_tokens", 405, "POST"),
        ("TRACE", "/v1/models/parrot", 405, "GET, HEAD"),
        ("OPTIONS", "*", 404, None),
    ],
)
def test_a_method_that_an_address_does_not_have_is_told_which_it_has(base_url, method, path, status, allow):
    answer = exchange(base_url, request(method, path, connection="close"))
    assert statuses(answer) == [status]
    told = re.search(rb"\r\nallow: (.*?)\r\n", answer)
    assert (told[1].decode() if told else None) == allow
    body = answer.partition(b"\r\n\r\n")[2]
    assert body == b"" if method == "HEAD" else json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_old_client_is_served_and_its_connection_closed(base_url):
    answer = exchange(base_url, b"GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + NEXT)
    assert statuses(answer) == [200]
    assert b"connection: close" in answer


def test_a_stream_for_an_old_client_is_not_chunked_and_ends_with_the_connection(base_url):
    answer = exchange(base_url, ask(text="one two three", stream=True).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert statuses(head) == [200] and b"connection: close" in head and b"transfer-encoding" not in head
    *events, rest = body.split(b"\n\n")
    assert rest == b"" and all(event.startswith(b"event: response.") for event in events)
    assert events[-1].startswith(b"event: response.completed\n") and body.count(b"output_text.delta\n") == 5


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "\xff;;"]
)
def test_a_body_that_is_not_sent_as_json_is_refused_as_the_original_does(base_url, content_type):
    answer = exchange(base_url, request("POST", "/v1/responses", b'{"input":"Hi"}', content_type=content_type, connection="close"))
    assert (statuses(answer), error_of(answer)["code"]) == ([400], "unsupported_content_type")


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"])
def test_a_body_sent_as_json_by_any_name_or_none_is_read(base_url, content_type):
    asked = request("POST", "/v1/responses", b'{"input":"Hi"}', content_type=content_type, te="trailers", connection="close")
    assert statuses(exchange(base_url, asked)) == [200]


def test_an_address_with_a_host_in_it_is_served_by_its_path(base_url):
    answer = exchange(base_url, b"GET http://localhost/livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert statuses(answer) == [200]


def test_fields_behind_a_body_do_not_become_the_heads(base_url):
    body = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\n{}\r\n0\r\nhost: elsewhere\r\n\r\n"
    assert statuses(exchange(base_url, POST + body)) == [400]
    assert error_of(exchange(base_url, POST + body))["param"] == "input"


def test_a_client_that_waits_for_the_word_gets_it(base_url):
    body = json.dumps({"model": "parrot", "input": "Hi"}).encode()
    with connect(base_url) as connection:
        connection.sendall(request("POST", "/v1/responses", expect="100-continue", content_length=str(len(body)), connection="close"))
        assert until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert b"You said: Hi" in rest_of(connection)


def test_a_connection_whose_body_was_announced_and_not_read_serves_no_other_request(base_url):
    answer = exchange(base_url, request("POST", "/v1/none", content_length="70", expect="100-continue") + NEXT)
    assert statuses(answer) == [404]


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_a_request_that_asks_for_another_protocol_is_served_in_this_one(base_url, upgrade):
    body = json.dumps({"model": "parrot", "input": "Hi"}).encode()
    asked = request("POST", "/v1/responses", body, connection="Upgrade, HTTP2-Settings", upgrade=upgrade, http2_settings="AAMAAABkAAQ")
    answer = exchange(base_url, asked + request(connection="close"))
    assert statuses(answer) == [200, 200]
    assert b"You said: Hi" in answer


def test_a_connection_may_come_in_the_smallest_pieces(base_url):
    with connect(base_url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in ask() + request(connection="close"):
            connection.sendall(bytes([byte]))
        assert statuses(rest_of(connection)) == [200, 200]
