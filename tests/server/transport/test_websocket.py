"""What a WebSocket of the server does, on real sockets: from its handshake to its end, with clients of every kind."""

import itertools
import json
import re
import socket
import struct
import urllib.request

import pytest

from support.server.echo_server import echoing
from support.server.raw_http import connect, error_of, exchange, request, rest_of, statuses, until
from support.server.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Client, frame, handshake

MIB = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with echoing(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def url(served):
    return served.url


def eventually(base_url, is_so):
    """Whether something becomes true while the server is asked, which takes it a round of its loop each time."""
    for _ in range(20_000):
        if is_so():
            return True
        exchange(base_url, request(path="/none", connection="close"))
    return False


# The handshake


def test_a_handshake_is_answered_with_the_headers_that_every_answer_has(url):
    with Client(url) as client:
        fields = dict(re.findall(r"^([\w-]+): (.*?)\r?$", client.head.decode(), re.MULTILINE))
        assert fields["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert (fields["upgrade"], fields["connection"], fields["x-more"]) == ("websocket", "upgrade", "yes")
        assert fields["x-request-id"].startswith("req_")
        assert not {"content-length", "transfer-encoding", "sec-websocket-protocol", "sec-websocket-extensions"} & set(fields)
        client.say(b"hello")
        assert client.next() == (TEXT, b"hello")
        client.close()


def test_compression_is_never_agreed_on(url):
    with Client(url, sec_websocket_extensions="permessage-deflate; client_max_window_bits") as client:
        assert b"extensions" not in client.head.lower()
        client.send(frame(TEXT, b"x", reserved=4))
        assert client.closed()[0] == 1002


def test_the_chosen_subprotocol_is_told(tmp_path):
    with echoing(tmp_path, subprotocol="realtime") as server, Client(server.url, sec_websocket_protocol="realtime, other") as client:
        assert b"sec-websocket-protocol: realtime\r\n" in client.head + b"\r\n"


def test_frames_that_come_with_the_head_are_heard(url):
    with Client(url, behind_head=frame(TEXT, b"early") + frame(TEXT, b"bird")) as client:
        assert [client.next(), client.next()] == [(TEXT, b"early"), (TEXT, b"bird")]
        client.close()


def test_nothing_is_heard_before_the_route_is_ready(served):
    with Client(served.url, "/echo?unread", behind_head=frame(TEXT, b"early")) as client:
        client.say(b"late")
        assert eventually(served.url, lambda: served.echoes[-1].socket is not None)
        exchange(served.url, request(path="/none", connection="close"))
        assert served.echoes[-1].heard == []


def test_a_request_before_the_handshake_is_answered_first(url):
    with connect(url) as connection:
        connection.sendall(request(path="/none") + handshake() + frame(TEXT, b"hello"))
        answer = until(connection, b"\x81\x05hello")
        assert statuses(answer) == [404, 101]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_websocket_version": "8"}, 426),
        ({"sec_websocket_version": None}, 426),
        ({"sec_websocket_version": "13, 8"}, 426),
        ({"upgrade": None}, 426),
        ({"connection": "keep-alive"}, 426),
        ({"upgrade": "h2c"}, 426),
        ({"content_length": "0"}, 426),
        ({"sec_websocket_key": None}, 400),
        ({"sec_websocket_key": "c2hvcnQ="}, 400),
        ({"sec_websocket_key": "not base64 at all!!!"}, 400),
        ({"host": "elsewhere.example"}, 421),
        ({"origin": "https://elsewhere.example"}, 403),
    ],
)
def test_a_handshake_that_is_not_in_order_is_refused_over_http(url, headers, status):
    with connect(url) as connection:
        connection.sendall(handshake(**headers))
        head, _, body = until(connection, b"}}").partition(b"\r\n\r\n")
    assert statuses(head) == [status]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    if status == 426:
        assert b"\r\nsec-websocket-version: 13\r\n" in head
        assert b"\r\nupgrade: websocket\r\n" in head


def test_an_old_client_can_not_upgrade(url):
    answer = exchange(url, handshake().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert statuses(answer) == [426]


def test_nothing_that_follows_a_refused_handshake_is_taken_for_a_request(url):
    answer = exchange(url, handshake("/none") + request(path="/metrics"))
    assert statuses(answer) == [404]
    assert b"connection: close" in answer


def test_another_address_takes_no_notice_of_a_handshake(url):
    answer = exchange(url, handshake("/metrics"))
    assert statuses(answer) == [200]


def test_other_protocols_are_still_not_spoken(url):
    asked = request(path="/metrics", connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMAAABkAAQ")
    assert statuses(exchange(url, asked + request(path="/metrics", connection="close"))) == [200, 200]


# Messages


def test_messages_come_back_in_their_order_in_one_write_each_or_together(url):
    said = [b"%d " % number * size for number, size in enumerate((0, 1, 40, 41, 42, 126, 20_000, 30_000, 3))]
    with Client(url) as client:
        client.send(*[frame(TEXT, each) for each in said])
        assert [client.next() for _ in said] == [(TEXT, each) for each in said]
        client.close()


def test_a_message_may_come_in_any_pieces(url):
    text = "Grüße, 世界 🌍".encode()
    cut = [text[at : at + 3] for at in range(0, len(text), 3)]  # in the middle of characters
    pieces = [frame(CONTINUATION if at else TEXT, piece, is_last=at == len(cut) - 1) for at, piece in enumerate(cut)]
    with Client(url) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(PING, b"before") + b"".join(pieces):
            client.send(bytes([byte]))
        assert [client.next(), client.next()] == [(PONG, b"before"), (TEXT, text)]
        client.send(pieces[0], frame(PING, b"between"), *pieces[1:])
        assert [client.next(), client.next()] == [(PONG, b"between"), (TEXT, text)]
        client.close()


def test_bytes_are_refused_where_nobody_takes_them(url):
    with Client(url, "/echo?text") as client:
        client.send(frame(BINARY, b"\0\1"))
        assert client.closed() == (1003, "Messages must be text.")
        client.send(frame(CLOSE, b"\x03\xeb"))
        assert client.is_at_end()
    with Client(url) as client:
        client.send(frame(BINARY, b"\0\1"))
        assert client.next() == (BINARY, b"\0\1")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"x", is_masked=False), 1002),
        (frame(3, b"x"), 1002),
        (frame(TEXT, b"x", reserved=1), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(TEXT, b"x", is_last=False) + frame(TEXT, b"y"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, b"x", is_last=False), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, b"\x03\xed"), 1002),
        (frame(CLOSE, b"\x03\xee"), 1002),
        (frame(CLOSE, b"\0\0"), 1002),
        (frame(CLOSE, b"\x13\x88"), 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xed\xa0\x80"), 1007),
        (frame(TEXT, b"\xf4\x90", is_last=False), 1007),
        (frame(TEXT, b"\xc3", is_last=False) + frame(CONTINUATION), 1007),
        (frame(TEXT, b"", size_bytes=16 * MIB + 1), 1009),
        (frame(TEXT, b"x" * MIB, is_last=False) + frame(CONTINUATION, b"y" * MIB, is_last=False) * 16, 1009),
    ],
    ids=itertools.count(),  # a frame's mask is never the same twice
)
def test_what_breaks_the_protocol_is_told_so_and_nothing_after_it_is_heard(served, sent, code):
    with Client(served.url) as client:
        client.send(frame(TEXT, b"before"), sent, frame(TEXT, b"after"))
        assert client.next() == (TEXT, b"before")
        assert client.closed()[0] == code
        assert client.is_at_end()
    assert eventually(served.url, lambda: served.echoes[-1].gone == 1)
    assert served.echoes[-1].heard == [b"before"]


def test_who_sends_too_much_reads_why(url):
    with Client(url) as client:
        client.send(frame(TEXT, b"x" * 20 * MIB))
        code, reason = client.closed()
        assert (code, reason) == (1009, "The message is larger than 16777216 bytes.")
        assert client.is_at_end()


def test_what_is_refused_is_told_in_plain_words(url):
    with Client(url) as client:
        client.send(frame(CLOSE, b"\x03"))
        assert client.closed() == (1002, "A frame is not as RFC 6455 defines it.")
    with Client(url) as client:
        client.send(frame(TEXT, size_bytes=16 * MIB + 1))
        assert client.closed() == (1009, "The message is larger than 16777216 bytes.")


def test_the_largest_message_is_heard_and_so_are_small_ones_around_it(url):
    large = b"x" * 16 * MIB
    with Client(url) as client:
        client.send(frame(TEXT, b"a"), frame(TEXT, large))
        assert [client.next(), client.next()] == [(TEXT, b"a"), (TEXT, large)]
        later = frame(TEXT, b"c")
        client.send(frame(TEXT, b"b"), frame(TEXT, large[:-1]), later[:4])
        assert [client.next(), client.next()] == [(TEXT, b"b"), (TEXT, large[:-1])]
        client.send(later[4:])
        assert client.next() == (TEXT, b"c")
        client.close()


# Ends


@pytest.mark.parametrize(("sent", "code"), [(b"", None), (b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"\x0f\xa0", 4000)])
def test_a_client_that_closes_is_answered_alike_and_the_server_drops_the_connection(served, sent, code):
    with Client(served.url) as client:
        client.say(b"last words")
        client.send(frame(CLOSE, sent), frame(TEXT, b"after"))
        assert client.next() == (TEXT, b"last words")
        assert client.next() == (CLOSE, sent[:2])
        assert client.is_at_end()
    assert eventually(served.url, lambda: served.echoes[-1].gone == 1)
    assert served.echoes[-1].heard == [b"last words"]


def test_the_server_closes_with_code_and_reason_and_waits_for_the_answer(served):
    with Client(served.url) as client:
        client.say(b"close me")
        assert client.closed() == (4000, "as you wish")
        exchange(served.url, request(path="/none", connection="close"))
        assert served.echoes[-1].gone == 0
        client.send(frame(TEXT, b"unheard"), frame(CLOSE, b"\x0f\xa0"))
        assert client.is_at_end()
    assert eventually(served.url, lambda: served.echoes[-1].gone == 1)
    assert served.echoes[-1].heard == [b"close me"]


def test_a_defect_is_logged_and_ends_its_own_connection_and_no_other(tmp_path, capsys):
    with echoing(tmp_path) as served, Client(served.url) as other, Client(served.url) as client:
        client.say(b"fail")
        assert client.closed()[0] == 1011
        assert client.is_at_end()
        other.say(b"still here")
        assert other.next() == (TEXT, b"still here")
        other.close()
    assert "RuntimeError: as you wish" in capsys.readouterr().err


@pytest.mark.parametrize("farewell", ["reset", "half-close", "none"])
def test_a_client_that_vanishes_is_noticed_once(served, farewell):
    with Client(served.url) as client:
        client.say(b"hello")
        assert client.next() == (TEXT, b"hello")
        if farewell == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif farewell == "half-close":
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_at_end()
    assert eventually(served.url, lambda: served.echoes[-1].gone)
    assert eventually(served.url, lambda: served.metrics.active <= 1)
    assert served.echoes[-1].gone == 1


def test_everything_that_was_counted_in_is_counted_out(tmp_path):
    with echoing(tmp_path, connections_per_address=3) as server:
        for _ in range(3):
            with Client(server.url), Client(server.url) as client:
                with urllib.request.urlopen(f"{server.url}/metrics") as reply:
                    told = reply.read().decode()
                assert "\nhttp_server_active_requests 3.0\n" in told
                client.close()
            assert eventually(server.url, lambda: server.metrics.active == 0)
        assert eventually(server.url, lambda: server.metrics.connections == 0)
        assert sum(server.metrics.requests["/echo", "GET", 101].counts) == 6
        assert not server.server.server_state.connections


# Guards


def test_who_does_not_read_is_dropped_before_much_waits_for_it(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.say(b"sing")
        assert eventually(server.url, lambda: server.metrics.dropped["backlog"] == 1)
        assert eventually(server.url, lambda: server.echoes[0].gone == 1)
        assert server.echoes[0].pauses == 1


def test_who_is_dropped_for_not_reading_is_asked_for_nothing_more(tmp_path):
    """Amplification: what had come with the same packet, such as a thousand requests for a long item, was answered all the same."""
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(frame(TEXT, b"sing") + frame(TEXT, b"mute") * 1000 + frame(BINARY, b"x") * 1000)
        assert eventually(server.url, lambda: server.metrics.dropped["backlog"] == 1)
        assert eventually(server.url, lambda: server.echoes[0].gone == 1)
        assert server.echoes[0].heard == [b"sing"]


def test_who_is_behind_for_too_long_is_dropped(tmp_path):
    with echoing(tmp_path, slow_reader_s=0.2) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(*[frame(TEXT, b"x" * 65_000)] * 6)
        assert eventually(server.url, lambda: server.metrics.dropped["slow_reader"] == 1)
        assert eventually(server.url, lambda: server.echoes[0].gone == 1)


def test_who_was_behind_and_catches_up_gets_everything(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(*[frame(TEXT, b"x" * 65_000)] * 10)
        assert eventually(server.url, lambda: server.echoes and server.echoes[0].pauses == 1)
        assert [client.next()[0] for _ in range(10)] == [TEXT] * 10
        assert eventually(server.url, lambda: server.echoes[0].resumes == server.echoes[0].pauses)
        client.close()


@pytest.mark.parametrize("kind", [TEXT, BINARY])
def test_who_sends_faster_than_it_reads_gets_every_answer_in_its_order(tmp_path, kind):
    said = [b"%d " % number + b"x" * (number * 7 % 3000) for number in range(2000)]
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(*[frame(kind, each) for each in said])
        assert eventually(server.url, lambda: server.echoes and server.echoes[0].pauses)
        assert [client.next() for _ in said] == [(kind, each) for each in said]
        client.say(b"go on")
        assert client.next() == (TEXT, b"go on")
        client.close()
        assert not server.metrics.dropped.total()


def test_who_does_not_read_its_answers_is_asked_for_no_more(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            while True:
                client.socket.sendall(frame(TEXT, b"x" * 1000) * 1000)
        heard = len(server.echoes[0].heard)
        exchange(server.url, request(path="/none", connection="close"))
        assert len(server.echoes[0].heard) == heard
        assert (server.echoes[0].gone, server.metrics.dropped.total()) == (0, 0)


def test_who_is_behind_is_heard_where_nothing_has_to_be_answered(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(frame(TEXT, b"chant"))
        assert eventually(server.url, lambda: server.echoes and server.echoes[0].pauses == 1)
        client.send(frame(TEXT, b"mute") * 100)
        assert eventually(server.url, lambda: server.echoes[0].heard == [b"chant"] + [b"mute"] * 100)


def test_an_answer_over_the_limit_reaches_who_reads_it(tmp_path):
    said = [b"a" * 3 * MIB, b"b" * 3 * MIB, b"c"]
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        for each in said[:2]:
            client.say(each)
        client.say(said[2])
        assert [client.next()[1] for _ in said] == said
        assert not server.metrics.dropped.total()
        client.close()


def test_what_breaks_the_protocol_behind_held_messages_is_told_behind_their_answers(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(*[frame(TEXT, b"x" * 60_000)] * 6, frame(TEXT, b"x" * 900) * 40, frame(3, b"reserved"), frame(TEXT, b"late"))
        assert [client.next()[0] for _ in range(46)] == [TEXT] * 46
        assert client.closed()[0] == 1002
        assert len(server.echoes[0].heard) == 46


def test_a_defect_behind_held_messages_ends_its_connection(tmp_path, capsys):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(*[frame(TEXT, b"x" * 65_000)] * 8 + [frame(TEXT, b"fail")])
        assert [client.next()[0] for _ in range(8)] == [TEXT] * 8
        assert client.closed()[0] == 1011
    assert "RuntimeError: as you wish" in capsys.readouterr().err


def test_who_is_closed_while_it_is_behind_is_still_read(tmp_path):
    with echoing(tmp_path) as server, Client(server.url, receive_buffer_bytes=4096) as client:
        client.send(frame(TEXT, b"close me when I am behind"), *[frame(TEXT, b"x" * 65_000)] * 40)
        assert eventually(server.url, lambda: server.echoes and server.echoes[0].pauses == 1)
        kind = TEXT
        while kind == TEXT:
            kind, payload = client.next()
        assert (kind, payload[:2]) == (CLOSE, b"\x0f\xa0")
        client.send(frame(CLOSE, b"\x0f\xa0"))
        assert client.is_at_end()
        assert len(server.echoes[0].heard) < 40


def test_a_silent_client_is_asked_and_kept_while_it_answers(tmp_path):
    with echoing(tmp_path, heartbeat_s=0.05) as server, Client(server.url) as client:
        for _ in range(6):
            assert client.next() == (PING, b"")
            client.send(frame(PONG))
        client.say(b"here")
        assert (TEXT, b"here") in [client.next(), client.next()]
        assert server.metrics.dropped["dead_peer"] == 0


def test_a_client_that_answers_nothing_is_taken_for_dead(tmp_path):
    with echoing(tmp_path, heartbeat_s=0.05) as server, Client(server.url) as client:
        heard = rest_of(client.socket)
        assert heard == b"\x89\0" * 2
        assert eventually(server.url, lambda: server.metrics.dropped["dead_peer"] == 1)
        assert server.echoes[0].gone == 1


def test_a_client_that_is_not_read_is_not_taken_for_dead(tmp_path):
    with echoing(tmp_path, heartbeat_s=0.02) as held, Client(held.url) as client, Client(held.url) as silent:
        client.say(b"hold")
        assert rest_of(silent.socket).endswith(b"\x89\0"), "by the time that another has been dropped"
        assert eventually(held.url, lambda: held.metrics.dropped["dead_peer"] == 1)
        assert [echo.gone for echo in held.echoes if echo.heard] == [0]


def test_a_flood_is_not_read_faster_than_it_may_come(tmp_path):
    with echoing(tmp_path, pace=1) as server, Client(server.url) as client:  # one a second, so that a test sees none of them pass
        client.socket.settimeout(0.2)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 * MIB:
                sent += client.socket.send(frame(TEXT, b"mute") * 10_000)
        heard = len(server.echoes[0].heard)
        assert heard < 2 * sent / 10
        exchange(server.url, request(path="/none", connection="close"))
        assert len(server.echoes[0].heard) == heard
        assert (server.echoes[0].gone, server.metrics.dropped.total()) == (0, 0)


@pytest.mark.parametrize("sent", [frame(TEXT, b"hold"), frame(TEXT, b"mute") * 10_000], ids=["held by its owner", "too fast"])
@pytest.mark.parametrize("has_more_to_read", [False, True])
def test_a_client_that_vanishes_while_it_is_not_read_is_noticed(tmp_path, sent, has_more_to_read):
    with echoing(tmp_path, pace=1) as server:
        with Client(server.url) as client:
            client.send(sent)
            assert eventually(server.url, lambda: server.echoes and server.echoes[0].heard)
            client.send(frame(TEXT, b"mute") * 10 * has_more_to_read)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert eventually(server.url, lambda: server.echoes[0].gone == 1)


def test_a_stopping_server_says_so_and_ends_with_the_farewell(tmp_path):
    with echoing(tmp_path, drain_s=3600) as server:
        with Client(server.url) as client, Client(server.url) as deaf:
            server.server.should_exit = True
            assert eventually_draining(server)
            client.say(b"still served")
            assert client.next() == (TEXT, b"still served")
            server.server.force_exit = True
            assert client.closed() == (1012, "The server is shutting down.")
            client.send(frame(CLOSE, b"\x03\xf4"))
            assert client.is_at_end()
            assert deaf.closed()[0] == 1012


def eventually_draining(server):
    while not server.server.service.live_sessions.is_draining:
        pass
    return True


def test_a_refused_handshake_has_an_error_that_says_what_to_do(url):
    answer = exchange(url, request(path="/echo", connection="close"))
    assert statuses(answer) == [426]
    assert error_of(answer)["code"] == "upgrade_required"
