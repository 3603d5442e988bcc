"""The session of a request that is passed on: one end whatever happens, and the tokens that it took."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.errors import ServerError, shutting_down
from antiphon.protocols.chat.relay import RelayEncoder, RelaySession
from antiphon.protocols.session import Close, FromClient, FromEngine, Hangup, ReportRetry, Send, SendToEngine, Shutdown, Tick

RELAY = commands.Relay(id="r", path="chat/completions", body=b"x" * 400, stream=True)
FAILURE = events.ResponseFailed(id="r", message="boom", status=503, code="busy", param="input", retry_after_s=3)


def begun(relay=RELAY, **more):
    session = RelaySession(relay, 4096, **more)
    assert session.handle(FromClient(relay, 0)) == [SendToEngine(relay)]
    return session


def told(session, *batch):
    return session.handle(FromEngine(batch, 1))


def test_what_comes_is_sent_and_the_tokens_are_those_that_the_server_counts():
    session = begun(keeps_content=True)
    assert told(session, events.RelayData("r", b"a"), events.RelayData("x", b"of another"), events.RelayData("r", b"b")) == [
        Send(b"a"),
        Send(b"b"),
    ]
    assert session.tokens == 100 + 2
    used = events.Usage(id="r", input_tokens=7, output_tokens=3)
    assert told(session, used, events.ResponseEnded("r", "stop")) == [Close()]
    assert (session.tokens, session.outcome, session.usage.total_tokens, session.content()) == (10, "completed", 10, "a\nb")
    assert told(session, events.RelayData("r", b"late")) == []


def test_an_answer_that_was_cut_is_incomplete():
    session = begun()
    assert told(session, events.ResponseEnded("r", "length")) == [Close()] and session.outcome == "incomplete"


@pytest.mark.parametrize(("path", "param"), [("chat/completions", "messages"), ("completions", "prompt"), ("embeddings", "input")])
def test_a_failure_is_told_in_the_words_of_its_api(path, param):
    is_stream = path != "embeddings"
    session = begun(commands.Relay(id="r", path=path, body=b"{}", stream=is_stream))
    *sent, close = told(session, FAILURE)
    assert (close.error.status, close.error.code, close.error.param, close.error.retry_after_s) == (503, "busy", param, 3)
    assert [json.loads(each.event) for each in sent] == [close.error.body()] * is_stream
    assert session.outcome == "failed"


def test_a_retry_is_reported_before_anything_is_sent():
    assert told(begun(), events.RetryScheduled("r")) == [ReportRetry()]


def test_an_engine_that_stops_on_its_own_is_an_error():
    *_, close = told(begun(), events.ResponseEnded("r", "cancelled"))
    assert isinstance(close.error, ServerError)
    *_, close = told(begun(), events.EngineLost(message="gone", code="worker_lost"))
    assert close.error.code == "worker_lost"


def test_a_client_that_leaves_and_a_server_that_stops_cancel_the_engine():
    assert begun().handle(Hangup(1)) == [SendToEngine(commands.Cancel("r")), Close()]
    cancel, sent, close = begun().handle(Shutdown(shutting_down(), 1))
    assert cancel == SendToEngine(commands.Cancel("r")) and json.loads(sent.event) == close.error.body()
    assert RelaySession(RELAY, None).handle(Hangup(1)) == [Close()]


EVENTS = st.one_of(
    st.builds(lambda data: FromEngine((events.RelayData("r", data),), 1), st.binary(max_size=4)),
    st.sampled_from(
        [
            FromClient(RELAY, 1),
            FromEngine((FAILURE,), 1),
            FromEngine((events.ResponseEnded("r", "stop"), events.RelayData("r", b"late")), 1),
            FromEngine((events.ResponseEnded("r", "cancelled"),), 1),
            FromEngine((events.EngineLost(message="x", code="y"), events.RelayData("r", b"late")), 1),
            FromEngine((events.Usage(id="r", input_tokens=1, output_tokens=1),), 1),
            Hangup(1),
            Shutdown(shutting_down(), 1),
            Tick(1),
        ]
    ),
)


@given(arrivals=st.lists(EVENTS, max_size=12))
def test_whatever_comes_there_is_one_end_and_nothing_after_it(arrivals):
    session = RelaySession(RELAY, None)
    effects = [effect for event in (FromClient(RELAY, 0), *arrivals) for effect in session.handle(event)]
    closes = [index for index, effect in enumerate(effects) if isinstance(effect, Close)]
    assert len(closes) <= 1 and (not closes or closes[0] == len(effects) - 1)
    assert bool(closes) == (session.outcome is not None)


def test_an_event_is_one_line_whatever_space_is_in_it():
    buffer = bytearray()
    RelayEncoder().encode_sse_into([b'{"a":1}', b'{\n "a": "\\n"\n}'], buffer)
    assert bytes(buffer) == b'data: {"a":1}\n\ndata: {  "a": "\\n" }\n\n'
