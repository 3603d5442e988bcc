"""What the server counts, and how it tells it."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.runtime.core.metrics import MAX_MODEL_LABELS, Histogram
from antiphon.server.processes.run import background_server
from support.server.raw_http import ask, connect, exchange, request, until
from support.server.scripted_server import SCRIPT, configured

REFERENCE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()


@pytest.fixture
def url(tmp_path):
    """The address of a server that has counted nothing yet."""
    models = {"parrot": {"engine": "scripted", **SCRIPT}, "slow": {"engine": "scripted", "pace_ms": 5, **SCRIPT}}
    with background_server(configured(tmp_path, models)) as address:
        yield address


def told(base_url):
    """Every sample, by its name and the values of its labels."""
    with urllib.request.urlopen(f"{base_url}/metrics") as reply:
        assert reply.headers["content-type"].startswith("text/plain")
        families = text_string_to_metric_families(reply.read().decode())
        return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def post(base_url, **fields):
    request = urllib.request.Request(f"{base_url}/v1/responses", json.dumps(fields).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return reply.read()


def test_answers_are_counted_with_their_tokens_and_their_first_one(url):
    post(url, model="parrot", input="one two three")
    streamed = post(url, model="parrot", input="one two three", stream=True)
    post(url, model="parrot", input="too long")
    counts = told(url)
    assert counts["antiphon_tokens_total", "parrot", "input"] == 3 + 3 + 2
    assert counts["antiphon_tokens_total", "parrot", "output"] == 5 + 5 + 3
    assert counts["antiphon_stream_events_total",] == streamed.count(b"event: ")
    assert counts["gen_ai_server_request_duration_seconds_count", "parrot", "completed"] == 2
    assert counts["gen_ai_server_request_duration_seconds_count", "parrot", "incomplete"] == 1
    assert counts["gen_ai_server_time_to_first_token_seconds_count", "parrot"] == 1  # what is answered whole has no first token
    assert counts["antiphon_store_writes_total", "stored"] == 1 + 2 + 1


def test_requests_are_counted_by_route_and_never_by_what_a_client_made_up(url):
    for path in ("/v1/responses/resp_1", "/v1/responses/resp_2", "/made/up", "/v1/models/none"):
        exchange(url, request(path=path, connection="close"))
    counts = told(url)
    assert counts["http_server_request_duration_seconds_count", "GET", "404", "/v1/responses/{id}"] == 2
    assert counts["http_server_request_duration_seconds_count", "GET", "404", "none"] == 1
    assert not any("made" in str(key) or "resp_1" in str(key) for key in counts)
    assert counts["http_server_active_requests",] == 1, "the one that asks"


def test_names_that_clients_choose_are_counted_apart_up_to_a_number_of_them(tmp_path):
    models = {"mock-*": {"engine": "scripted", **SCRIPT}, "mock-own": {"engine": "scripted", **SCRIPT}}
    with background_server(configured(tmp_path, models)) as url:
        for name in [f"mock-{number}" for number in range(MAX_MODEL_LABELS + 20)] + ["mock-0", "mock-own"]:
            post(url, model=name, input="Hi", store=False)
        counts = {key[1]: value for key, value in told(url).items() if key[0] == "gen_ai_server_request_duration_seconds_count"}
    assert len(counts) == MAX_MODEL_LABELS + 2
    assert (counts["mock-0"], counts["mock-1"], counts["mock-own"], counts["mock-*"]) == (2, 1, 1, 20)


def test_who_left_is_counted_as_cancelled(url):
    with connect(url) as connection:
        connection.sendall(ask("slow", "sing", stream=True))
        until(connection, b"output_text.delta")
    cancelled = ("gen_ai_server_request_duration_seconds_count", "slow", "cancelled")
    assert any(told(url).get(cancelled) == 1 for _ in range(2000))
    assert told(url)["http_server_active_requests",] == 1


def test_connections_are_counted_in_and_out(url):
    held = [connect(url) for _ in range(5)]
    for connection in held:
        connection.sendall(request())
        until(connection, b'"ok"')
    assert told(url)["antiphon_connections",] == 6
    for connection in held:
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    assert any(told(url)["antiphon_connections",] == 1 for _ in range(2000))
    exchange(url, b"\0\0\0\0")
    assert told(url)["antiphon_dropped_connections_total", "malformed"] == 1


def test_every_metric_is_described_and_every_description_has_its_metric(url):
    post(url, model="parrot", input="Hi", stream=True)
    exchange(url, b"\0\0\0\0")
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        families = set(re.findall(r"# TYPE (\w+) ", reply.read().decode()))
    described = set(re.findall(r"^\| `([a-z_]+)` \|", REFERENCE, re.MULTILINE))
    reasons = {"slow_head", "slow_body", "slow_reader", "backlog", "large_head", "malformed", "unwanted_body", "connection_limit"}
    reasons |= {"large_message", "dead_peer", "defect", "aborted", "tls_handshake"}
    assert {name for name in families if not name.startswith("process_")} == described - {"large_head", "malformed"} - reasons
    assert all(f"`{reason}`" in REFERENCE for reason in reasons)


def test_a_histogram_puts_a_value_into_the_first_bound_that_holds_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 6.0)
