"""`GET /log`: the last lines as JSON, by level, event and request; bounded, and without secrets."""

import json

import httpx2
import pytest
from hypothesis import given, strategies as st

from antiphon.server.processes.run import background_server
from antiphon.server.transport.log_lines import MAX_BYTES, MAX_LINE_BYTES, MAX_LINES, LogLines
from support.server.scripted_server import SCRIPT, configured


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    config = configured(tmp_path_factory.mktemp("log"), {"parrot": {"engine": "scripted", **SCRIPT}}, **{"logging.level": "info"})
    with background_server(config) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def lines(http, **query):
    reply = http.get("/log", params=query)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson"), reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_request_is_found_by_its_id_and_its_event(http):
    request_id = http.post("/v1/responses", json={"model": "parrot", "input": "hello"}).headers["x-request-id"]
    (line,) = lines(http, request_id=request_id)
    assert (line["event"], line["status"], line["level"]) == ("request", 200, "info") and line["timestamp"].endswith("+00:00")
    assert lines(http, event="request", limit=1)[0]["path"] in ("/log", "/v1/responses")
    assert not [line for line in lines(http, level="error") if line["level"] == "info"]


@pytest.mark.parametrize(("query", "param"), [({"level": "loud"}, "level"), ({"limit": 0}, "limit"), ({"limit": 2001}, "limit")])
def test_a_wrong_parameter_is_named(http, query, param):
    reply = http.get("/log", params=query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


SECRETS = ["ak-abcdefgh12345678", "ek_abcdefgh12345678", "ck_abcdefgh12345678", "sk-ant-abcdefgh12345678", "whsec_abcdefgh12345678"]


@pytest.mark.parametrize(
    "text", ["{}", "Bearer {}", "wrong key '{}'.", "http://me:{}@there/x", "https://there/?api_key={}&x=1", "Authorization: BASIC {}"]
)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_is_kept_wherever_it_stands(text, secret):
    kept = LogLines()
    kept.add({"event": "x", "level": "error", "message": text.format(secret), "more": {"url": [text.format(secret)]}, "url": "a@b"})
    (line,) = kept.last(9)
    assert secret not in line.json.decode() and json.loads(line.json)["url"] == "a@b"


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner), max_leaves=5)))
def test_whatever_is_logged_is_one_line_of_json(fields):
    kept = LogLines()
    kept.add({"event": "x", "level": "info", **fields})
    (line,) = kept.last(9)
    assert b"\n" not in line.json and isinstance(json.loads(line.json), dict) and len(line.json) <= MAX_LINE_BYTES


def test_what_is_kept_is_bounded_by_lines_and_by_bytes():
    kept = LogLines()
    for number in range(MAX_LINES + 10):
        kept.add({"event": "x", "level": "info", "n": number})
    assert len(kept.last(10**6)) == MAX_LINES and [line.number for line in kept.after(MAX_LINES + 8)] == [MAX_LINES + 9, MAX_LINES + 10]
    for _ in range(2 * MAX_BYTES // 5000):
        kept.add({"event": "y", "level": "info", "text": "x" * 5000})
    assert sum(len(line.json) for line in kept.last(10**6)) <= MAX_BYTES
    kept.add({"event": "z", "level": "info", "text": "x" * 100_000, **{f"field{number}": "y" * 1000 for number in range(50)}})
    assert len(kept.last(1)[0].json) <= MAX_LINE_BYTES and json.loads(kept.last(1)[0].json)["truncated"] is True
