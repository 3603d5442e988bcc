"""What the log says of upstreams that fail: why, once in a while, and nothing that is secret."""

from pathlib import Path

import pytest
import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from antiphon.engine_api import commands
from antiphon.engine_api.engine import BuildContext
from antiphon.engines.upstream.failure_log import MAX_MESSAGE_CHARS, WINDOW_S, FailureLog
from support.engines.upstreams import CUT, HALF, STREAM_HEAD, chunk, closing, event, playing, streamed, whole

RELAY = commands.Relay(id="resp_1", path="chat/completions", body=b'{"model":"m","messages":[]}')
TOLD = "CUDA error at /opt/vllm/worker.py"


@pytest.fixture(autouse=True)
def every_level_is_logged():
    """Servers of other tests in this process may have left a higher one."""
    configuration = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**configuration)


@pytest.fixture
def lines():
    with bound_contextvars(request_id="req_1"), capture_logs([merge_contextvars]) as captured:
        yield captured


def context_of(**more):
    return BuildContext(weights_folder=Path(), base_folder=Path(), **more)


@pytest.mark.parametrize(
    ("play", "reason", "message"),
    [
        (whole("500 Oh", {"error": {"message": TOLD}}), "500", TOLD),
        (whole("429 Oh", {"error": {"message": TOLD}}), "429", TOLD),
        (whole("401 No", {"error": "wrong key"}), "401", "wrong key"),
        (whole("200 OK", b"<html>", content_type="text/html"), "malformed", "sent text/html"),
        (CUT, "broke_off", "closed the connection unanswered"),
        (closing(HALF), "broke_off", "before its answer was complete"),
        (HALF + chunk(b'data: {"error":{"message":"%b"}}\n\n' % TOLD.encode()), "garbled", TOLD),
        (HALF + chunk(b"data: {]\n\n"), "garbled", "no chat completion"),
    ],
)
def test_the_log_says_why_a_request_failed(play, reason, message, lines):
    playing(play)
    (line,) = lines
    assert (line["event"], line["log_level"], line["model"], line["reason"]) == ("upstream_failed", "warning", "m", reason)
    assert message in line["message"]
    assert line["request_id"] == "req_1" and "upstream" not in line


def test_an_answer_in_one_body_that_tells_of_a_failure_is_one(lines):
    heard, _ = playing(
        whole("200 OK", {"error": {"message": f"{TOLD} sk-s3cret-0123"}}), asks=(RELAY,), api_key_env="KEY", place=with_key()
    )
    assert heard.words[-1].cause == "garbled" and "s3cret" not in repr(heard.words)
    assert [(line["reason"], line["message"]) for line in lines] == [("garbled", f"{TOLD} …")]


def with_key():
    return context_of(secrets={"KEY": "sk-s3cret-0123"})


def test_a_line_has_no_key(lines):
    playing(whole("401 No", {"error": "wrong: sk-s3cret-0123"}), api_key_env="KEY", place=with_key())
    assert [line["message"] for line in lines] == ["wrong: …"]


def test_what_is_wrong_with_a_request_is_told_its_client_alone(lines):
    playing(whole("400 No", {"error": "no: Hi"}))
    assert [line["reason"] for line in lines] == ["400"] and "Hi" not in repr(lines)


def test_an_answer_that_got_too_long_has_a_line(lines):
    playing(STREAM_HEAD + chunk(event("a") * 20), max_response_events=10)
    assert [(line["reason"], line["request_id"]) for line in lines] == [("too_long", "req_1")]


def test_an_answer_that_is_well_has_none(lines):
    playing(streamed("hello"))
    assert lines == []


def test_one_of_several_upstreams_has_its_name(lines):
    playing(CUT, place=context_of(upstream_name="gpu1"))
    assert [(line["model"], line["upstream"]) for line in lines] == [("m", "m/gpu1")]


def test_a_server_that_fails_each_request_does_not_fill_the_log(lines):
    now = [100.0]
    log = FailureLog("m", "", lambda: now[0])
    for reason in ("500", "500", "timeout", "500"):
        log.add(reason, "")
    assert [line["reason"] for line in lines] == ["500", "timeout"]
    now[0] += WINDOW_S
    log.add("500", "")
    log.add("timeout", "")
    assert [(line["reason"], line.get("more")) for line in lines[2:]] == [("500", 2), ("timeout", None)]


def test_a_long_message_is_cut_and_stays_in_one_line(lines):
    FailureLog("m", "").add("500", "a\nb " + "x" * 1000)
    assert lines[0]["message"].startswith("a b xx") and len(lines[0]["message"]) == MAX_MESSAGE_CHARS + 1
