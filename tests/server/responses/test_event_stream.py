"""When the head of a stream is sent: an upstream's refusal reaches the client as a status, also behind retries."""

import asyncio
import json
import selectors
from types import SimpleNamespace

import pytest

from antiphon.errors import UpstreamError
from antiphon.server.processes.run import background_server
from antiphon.server.responses.event_stream import MAX_HEAD_DELAY_S, MAX_HELD_HEAD_DELAY_S, EventStream
from antiphon.server.transport.connection import SCOPE_KEY
from antiphon.wire.responses.events import ResponseCreated
from support.engines.upstreams import CUT, streamed, whole
from support.server.plain_http import post
from support.server.raw_upstream import playing
from support.server.scripted_server import configured

BUSY = whole("429 Too Many Requests", {"error": {"message": "slow down"}}, retry_after=1.2)
LOADING = whole("503 Service Unavailable", {"error": {"message": "loading"}}, retry_after=1.2)
TOO_LONG = whole("400 Bad Request", {"error": {"message": "This model's maximum context length is 9 tokens."}})


async def slow_busy(writer):
    await asyncio.sleep(1.2)
    writer.write(BUSY)


@pytest.mark.parametrize(
    ("engine", "plays", "status", "code", "retry_after"),
    [
        ("chat", [BUSY], 429, "rate_limit_exceeded", "1"),
        ("responses", [BUSY], 429, "rate_limit_exceeded", "1"),
        ("chat", [whole("503 No", {}), slow_busy], 429, "rate_limit_exceeded", "1"),
        ("chat", [LOADING], 503, "server_is_overloaded", "1"),
        ("responses", [LOADING, CUT], 502, "upstream_broke_off", None),
        ("chat", [LOADING, TOO_LONG], 400, "context_length_exceeded", None),
    ],
)
def test_a_refusal_behind_long_retries_is_a_status_and_no_event(tmp_path, engine, plays, status, code, retry_after):
    with playing(*plays) as (upstream, server):
        options = {"engine": engine, "base_url": upstream, "retries": 1} | ({"quirks": "generic"} if engine == "chat" else {})
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            got, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": True})
    assert (got, json.loads(body)["error"]["code"], headers["retry-after"]) == (status, code, retry_after)
    assert len(server.asked) >= 2


def test_a_retry_that_is_answered_is_streamed(tmp_path):
    with playing(BUSY, streamed("at last")) as (upstream, _):
        options = {"engine": "chat", "quirks": "generic", "base_url": upstream, "retries": 1}
        with background_server(configured(tmp_path, {"m": options})) as base_url:
            status, headers, body = post(base_url, {"model": "m", "input": "Hi", "stream": True})
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert b"at last" in body


class SkippingSelector(selectors.DefaultSelector):
    """Waits for nothing: the time goes on instead."""

    skipped_s = 0.0

    def select(self, timeout=None):
        self.skipped_s += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.selector = SkippingSelector()
        super().__init__(self.selector)

    def time(self):
        return self.selector.skipped_s


def sent_at(*, begun_at=0, held_at=(), over_at=None):
    """When the head is sent, in seconds, of a stream whose first event comes then; None if the session fails before."""

    async def scenario():
        loop, sent = asyncio.get_running_loop(), []

        async def send(message):
            if message["type"] == "http.response.start":
                sent.append(loop.time())

        flow = SimpleNamespace(write_paused=False)
        connection = SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: True), flow=flow, loop=loop)
        scope = {"extensions": {SCOPE_KEY: connection}}
        encoder = SimpleNamespace(encode_sse_into=lambda _events, _out: None, stream_end=b"")
        stream = EventStream(encoder, scope, send, 15.0)

        def begin():
            stream.send(ResponseCreated(sequence_number=0, response=None))
            stream.flush()

        if begun_at is not None:
            loop.call_at(begun_at, begin)
        for at in held_at:
            loop.call_at(at, stream.hold_head)
        if over_at is not None:
            loop.call_at(over_at, stream.close, UpstreamError("No."))
        await stream.open()
        stream.stop_heartbeat()
        return sent[0] if sent else None

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


def test_the_head_waits_for_a_second_and_behind_a_refusal_for_ten():
    assert sent_at() == pytest.approx(MAX_HEAD_DELAY_S)
    assert sent_at(over_at=MAX_HEAD_DELAY_S - 0.1) is None
    assert sent_at(over_at=MAX_HEAD_DELAY_S + 0.1) == pytest.approx(MAX_HEAD_DELAY_S)
    assert sent_at(held_at=[0.5], over_at=9) is None


def test_the_wait_counts_from_the_first_refusal():
    assert sent_at(held_at=[0.5, 3, 6]) == pytest.approx(0.5 + MAX_HELD_HEAD_DELAY_S)
    assert sent_at(held_at=[2]) == pytest.approx(MAX_HEAD_DELAY_S), "too late"


def test_the_head_waits_for_the_store_however_long_it_takes():
    assert sent_at(begun_at=None, over_at=MAX_HEAD_DELAY_S + 9) is None
    assert sent_at(begun_at=MAX_HEAD_DELAY_S + 2) == pytest.approx(MAX_HEAD_DELAY_S + 2)
