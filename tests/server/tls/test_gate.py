"""HTTPS as clients get it: real TLS over real sockets, and clients that speak none."""

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from support.server.own_process import serving
from support.server.raw_http import PATIENCE_S, POLL_S, connect, error_of, exchange, request, rest_of, statuses
from support.server.raw_socket import handshake
from support.server.tls_server import OTHER_NAME, serving_https, trusting


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving_https(tmp_path_factory.mktemp("https"), **{"server.head_timeout_s": 1.5}) as server:
        yield server


def secured(server, name="127.0.0.1", **options):
    """A connection with TLS; `name` is whom the client wants to speak to."""
    url, ca_file = server
    return trusting(ca_file, **options).wrap_socket(connect(url), server_hostname=name)


def failed_handshakes(server):
    """How many the server has counted."""
    with urllib.request.urlopen(server[0] + "/metrics", context=trusting(server[1])) as response:
        counts = re.findall(r'antiphon_dropped_connections_total\{reason="tls_handshake"\} ([0-9.]+)', response.read().decode())
    return int(float(counts[0])) if counts else 0


def await_failed_handshake(server, before):
    """Wait until the server has counted one more."""
    until = time.monotonic() + PATIENCE_S
    while failed_handshakes(server) != before + 1:
        assert time.monotonic() < until
        time.sleep(POLL_S)


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost", OTHER_NAME])
def test_the_certificate_is_for_every_name_of_the_server(server, name):
    with secured(server, name) as connection:
        assert connection.version() == "TLSv1.3" and connection.selected_alpn_protocol() is None
        connection.sendall(request())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_it_is_for_no_other_name_and_its_authority_is_trusted_by_nobody_else(server):
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate is not valid for"), secured(server, "other.test"):
        pass
    before = failed_handshakes(server)
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(server[0] + "/livez")
    await_failed_handshake(server, before)


def test_tls_1_2_is_spoken_as_well(server):
    with secured(server, maximum_version=ssl.TLSVersion.TLSv1_2) as connection:
        assert connection.version() == "TLSv1.2"


def test_a_request_in_one_flight_with_the_end_of_the_handshake_is_answered(server):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(server[1]).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with connect(server[0]) as connection:

        def step(work):
            while True:
                try:
                    return work()
                except ssl.SSLWantReadError:
                    first, rest = (sent := outgoing.read())[:1], sent[1:]
                    connection.sendall(first)  # also in pieces, of which the first tells that it is TLS
                    connection.sendall(rest)
                    incoming.write(connection.recv(1 << 16))

        step(tls.do_handshake)
        tls.write(request("POST", "/v1/responses", json.dumps({"model": "parrot", "input": "x" * 200_000}).encode()))
        assert step(lambda: tls.read(1 << 16)).startswith(b"HTTP/1.1 200")


def test_official_clients_and_websockets_work(server):
    url, ca_file = server
    with (
        httpx2.Client(verify=trusting(ca_file)) as http_client,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http_client, max_retries=0) as client,
    ):
        assert client.responses.create(model="parrot", input="Hi").output_text == "You said: Hi"
        stream = client.responses.create(model="parrot", input="word " * 500, stream=True)
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == "You said: " + "word " * 500

    # As the server's greeting says it: the client's own trust, and a variable.
    program = f"import openai; print(openai.OpenAI(base_url='{url}/v1', api_key='none').models.list().data[0].id)"
    environ = os.environ | {"SSL_CERT_FILE": str(ca_file)}
    run = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)
    assert run.stdout == "parrot\n", run.stderr

    with secured(server) as connection:  # aiohttp would leave the end of TLS to a loop that is gone by then
        connection.sendall(handshake("/v1/realtime?model=parrot"))
        answer = b""
        while b'"session.created"' not in answer:
            piece = connection.recv(1 << 16)
            assert piece, answer
            answer += piece
    assert answer.startswith(b"HTTP/1.1 101 ")


def test_plain_http_is_answered_and_browsers_are_led_to_https(server):
    url, _ = server
    answer = exchange(url, request("POST", "/v1/responses", b"{}"))
    assert statuses(answer) == [400] and error_of(answer)["code"] == "tls_required"
    port = urlsplit(url).port
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    plain.request("GET", "/docs?x=1", headers={"Accept": "text/html", "Host": f"{OTHER_NAME}:{port}"})
    response = plain.getresponse()
    assert (response.status, response.headers["location"]) == (307, f"https://{OTHER_NAME}:{port}/docs?x=1")
    plain.close()


def test_what_is_neither_is_refused(server):
    assert statuses(exchange(server[0], b"\x00\x01\x02\r\n\r\n")) == [400]
    assert not statuses(exchange(server[0], b"\x16nonsense that is no handshake"))


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_a_client_that_never_finishes_its_handshake_is_closed(server, sent):
    with connect(server[0]) as connection:
        before = failed_handshakes(server)
        connection.sendall(sent)
        rest_of(connection)  # ends, or the test does not
    await_failed_handshake(server, before)


def test_a_refused_client_gets_to_read_why(server):
    with secured(server) as connection:
        connection.sendall(request("POST", "/v1/responses", **{"content-length": str(1 << 30)}))
        assert statuses(connection.makefile("rb").readline()) == [413]
    with secured(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nbroken\r\n\r\n")
        assert statuses(rest_of(connection)) == [400]


def test_the_authority_is_handed_out_and_is_the_one(server):
    url, ca_file = server
    with urllib.request.urlopen(url + "/ca.crt", context=trusting(ca_file)) as response:
        assert response.headers["content-type"] == "application/x-x509-ca-cert"
        assert response.read() == ca_file.read_bytes()


def test_a_server_without_tls_has_no_authority(base_url):
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(base_url + "/ca.crt")
    with raised.value as error:
        assert error.code == 404 and json.load(error)["error"]["code"] == "no_certificate_authority"


def test_connections_are_counted_while_they_shake_hands(tmp_path):
    with serving_https(tmp_path, **{"server.connections_per_address": 2}) as server:
        with connect(server[0]) as first, connect(server[0]) as second:
            first.sendall(b"\x16")
            second.sendall(b"\x16")
            with connect(server[0]) as third:
                assert rest_of(third) == b""
            for connection in (first, second):
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
        until = time.monotonic() + 60
        while time.monotonic() < until:  # and given back, as soon as the server has seen them go
            try:
                with secured(server) as connection:
                    connection.sendall(request())
                    assert connection.recv(100).startswith(b"HTTP/1.1 200")
                    return
            except OSError:
                time.sleep(0.05)
        pytest.fail("no place became free")


def test_several_processes_have_one_authority_and_stop_with_idle_clients(tmp_path):
    with serving(tmp_path, processes=2, tls="auto") as (process, url):
        assert url.startswith("https://")
        ca_file = tmp_path / ".local/share/antiphon/tls/ca.crt"
        serials = set()
        for _ in range(16):
            with trusting(ca_file).wrap_socket(connect(url), server_hostname="127.0.0.1") as connection:
                connection.sendall(request())
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
                serials.add(connection.getpeercert()["serialNumber"])
        assert len(serials) == 1
        with trusting(ca_file).wrap_socket(connect(url), server_hostname="127.0.0.1") as idle, connect(url) as silent:
            process.terminate()
            assert process.wait(timeout=60) == 0
            assert isinstance(idle, socket.socket) and isinstance(silent, socket.socket)
