"""Recorded exchanges with every kind of server: the request, and the result, however the answer is split."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events
from antiphon.engines.chat.quirks import QUIRKS
from antiphon.engines.chat.request import encode_request
from support.engines.exchanges import FOLDER, RECORDED, answer, cut, heard, understood

ALL = pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
STREAMS = [recorded for recorded in RECORDED if "transfer-encoding" in recorded.headers]


def expected(means):
    return {key: value for key, value in means.items() if key not in ("says", "retry_after_s")}


@ALL
def test_a_server_is_sent_what_its_row_promises(recorded):
    assert json.loads(encode_request(recorded.ask, "m1", QUIRKS[recorded.quirks])) == recorded.request


@ALL
def test_an_answer_is_understood_in_pieces_of_any_size(recorded):
    whole = recorded.wire()
    for size in (len(whole), 1, 2, 3, 7, 64, 1000):
        words = heard(recorded.ask, cut(whole, range(size, len(whole), size)))
        assert understood(words) == expected(recorded.means), size
        assert isinstance(words[-1], events.ResponseEnded | events.ResponseFailed)
        if isinstance(words[-1], events.ResponseFailed):
            assert recorded.means["says"] in words[-1].message
            assert words[-1].retry_after_s == recorded.means.get("retry_after_s")


@given(st.data())
def test_it_makes_no_difference_where_an_answer_is_cut(data):
    recorded = data.draw(st.sampled_from(RECORDED))
    whole = recorded.wire()
    places = data.draw(st.lists(st.integers(1, len(whole)), max_size=12))
    assert understood(heard(recorded.ask, cut(whole, places))) == expected(recorded.means)


@given(st.data())
def test_line_ends_and_chunks_are_the_servers_to_choose(data):
    recorded = data.draw(st.sampled_from(STREAMS))
    line_end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    body = "".join(recorded.body).replace("\n", line_end).encode()
    chunks = cut(body, data.draw(st.lists(st.integers(1, len(body)), max_size=12)))
    whole = recorded.wire(chunks)
    places = data.draw(st.lists(st.integers(1, len(whole)), max_size=12))
    assert understood(heard(recorded.ask, cut(whole, places))) == expected(recorded.means)


@given(st.data())
def test_an_answer_that_stops_anywhere_has_one_end(data):
    recorded = data.draw(st.sampled_from(RECORDED))
    whole = recorded.wire()
    end = data.draw(st.integers(0, len(whole)))
    words = heard(
        recorded.ask, cut(whole[:end], data.draw(st.lists(st.integers(1, len(whole)), max_size=3))), is_reset=data.draw(st.booleans())
    )
    assert [type(word) in (events.ResponseEnded, events.ResponseFailed) for word in words].count(True) == 1
    assert isinstance(words[-1], events.ResponseEnded | events.ResponseFailed)
    full = expected(recorded.means)
    for what in ("text", "reasoning", "refusal"):
        assert full.get(what, "").startswith(understood(words).get(what, ""))


@given(st.data())
def test_garbage_in_an_answer_has_one_end(data):
    recorded = data.draw(st.sampled_from(RECORDED))
    whole = bytearray(recorded.wire())
    start = data.draw(st.integers(0, len(whole)))
    whole[start : start + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
    words = heard(recorded.ask, cut(bytes(whole), data.draw(st.lists(st.integers(1, len(whole) + 1), max_size=4))))
    assert [type(word) in (events.ResponseEnded, events.ResponseFailed) for word in words].count(True) == 1
    assert isinstance(words[-1], events.ResponseEnded | events.ResponseFailed)


@given(st.binary(max_size=400))
def test_garbage_instead_of_an_answer_has_one_end(data):
    (word,) = heard(RECORDED[0].ask, [data] if data else [])
    assert isinstance(word, events.ResponseFailed)


@pytest.mark.parametrize(
    "event",
    [
        '{"choices":[{"delta":{"content":' + "[" * 20_000 + "]" * 20_000 + "}}]}",
        '{"error":' + "[" * 20_000 + "]" * 20_000 + "}",
        "[" * 20_000,
        "[]",
        "null",
        "7",
        '{"choices":7}',
        '{"choices":[{"delta":"x"}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":"x"}]}}]}',
    ],
    ids=range(9),
)
def test_an_event_of_no_sense_breaks_the_answer(event):
    ask = RECORDED[0].ask
    for status, kind, body in (
        (200, "text/event-stream", f"data: {event}\n\n"),
        (200, "application/json", event),
        (400, "application/json", event),
    ):
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        (word,) = heard(ask, [head.encode() + body.encode()])
        assert isinstance(word, events.ResponseFailed)


def test_every_row_has_exchanges_of_text_calls_and_errors():
    means = {row: {key for recorded in RECORDED if recorded.quirks == row for key in recorded.means} for row in QUIRKS}
    assert all({"text", "calls", "used", "ended", "broke"} <= keys for keys in means.values()), means


def test_every_exchange_says_where_it_is_from():
    for path in FOLDER.glob("*.json"):
        found = json.loads(path.read_text())
        assert found["how"] in ("recorded", "rebuilt")
        assert found["from"]


def test_halves_of_a_character_cost_the_character_and_not_the_answer():
    def event(text):
        return f'data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}\n\n'

    body = "".join(map(event, ["a", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\uD83Db", "z"])) + "data: [DONE]\n\n"
    words = heard(RECORDED[0].ask, [answer(200, {"content-type": "text/event-stream"}, [body])])
    assert understood(words) == {"text": "a\ufffd\ufffd\U0001f600\ufffdbz", "ended": "stop"}


def test_what_is_impossible_has_a_log_probability_too():
    tokens = [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": None}]}, {"token": "c", "logprob": None}]
    chunk = {"choices": [{"index": 0, "delta": {"content": "ac"}, "logprobs": {"content": tokens}, "finish_reason": "stop"}]}
    words = heard(RECORDED[0].ask, [answer(200, {"content-type": "application/json"}, [json.dumps(chunk)])])
    assert [token.token.logprob for token in words[0].logprobs] == [-0.5, -9999.0]
    assert words[0].logprobs[0].alternatives[0].logprob == -9999.0
