"""Upstreams that send too much: other clients don't wait for them, and their answers end."""

import asyncio

import pytest

from antiphon.engine_api import events
from antiphon.engines.upstream.http_connection import SLICE_LINES
from antiphon.engines.upstream.http_exchange import ResponseLimits
from support.engines.upstreams import DONE, STREAM_HEAD, Server, ask, before, chunk, event, last_of, playing, run, watched, whole


def endless(data):
    async def play(writer):
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(data))
            await writer.drain()

    return play


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self):
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self):
        self.count += 1
        self._loop.call_soon(self._count)


def words_by_turn(body, **options):
    """How many words an engine says in each turn of the loop, for an answer that comes in one piece."""

    async def scenario():
        async with (
            asyncio.timeout(20),
            Server(STREAM_HEAD + chunk(body) + b"0\r\n\r\n").open() as server,
            before(server, **options) as (
                conversation,
                heard,
            ),
        ):
            turns, found = Turns(), {}
            deliver = conversation.deliver

            def count(words):
                found[turns.count] = found.get(turns.count, 0) + len(words)
                deliver(words)

            conversation.deliver = count
            conversation.send(ask())
            await heard.end_of()
            return list(found.values()), heard.text()

    return run(scenario())


def test_many_events_in_one_read_are_handled_in_many_turns():
    words, text = words_by_turn(event("a") * 2500 + event(finish="stop") + DONE)
    assert text == "a" * 2500
    assert max(words) <= SLICE_LINES, "the end of one read and the beginning of the next, with two lines for an event"
    assert len(words) > 2500 // SLICE_LINES


@pytest.mark.parametrize("nothing", [b":\n\n", b"\n", b": keep-alive\n", b"event: x\n\n", b"\r\n"])
def test_comments_and_empty_lines_take_turns_as_events_do(nothing):
    words, text = words_by_turn((nothing * 2000 + b"\n" + event("a")) * 5 + event(finish="stop") + DONE)
    assert text == "aaaaa"
    assert len(words) >= 5, "no two of them in one turn"


def test_one_long_event_is_whole():
    words, text = words_by_turn(event("a" * 200_000) + event(finish="stop") + DONE)
    assert len(words) <= 2
    assert len(text) == 200_000


@pytest.mark.parametrize("last_bytes", [b"0\r\n\r\n", b""])
def test_what_was_read_before_the_end_of_the_connection_is_passed_on(last_bytes):
    async def play(writer):
        writer.write(STREAM_HEAD + chunk(event("a") * 3000 + event(finish="stop") + DONE) + last_bytes)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        raise asyncio.IncompleteReadError(b"", None)

    heard, _ = playing(play)
    assert heard.text() == "a" * 3000
    assert isinstance(heard.words[-1], events.ResponseEnded)


def test_an_unread_rest_is_not_taken_for_the_next_answer():
    smuggled = event("mine") + event(finish="stop") + DONE
    first = STREAM_HEAD + chunk(event("a") * 600 + event(finish="stop") + DONE) + b"0\r\n\r\n"
    next_answer = STREAM_HEAD + chunk(event("not yours") + event(finish="stop") + DONE) + b"0\r\n\r\n"
    honest = STREAM_HEAD + chunk(smuggled) + b"0\r\n\r\n"
    heard, server = playing(first + next_answer, honest, asks=["resp_1", "resp_2"])
    assert (heard.text("resp_1"), heard.text("resp_2")) == ("a" * 600, "mine")
    assert server.connections == 2


def test_a_paused_answer_says_no_more_of_what_was_read():
    async def scenario():
        body = STREAM_HEAD + chunk(event("a") * 3000 + event(finish="stop") + DONE) + b"0\r\n\r\n"
        async with asyncio.timeout(20), Server(body).open() as server, before(server) as (conversation, heard):
            conversation.send(ask())
            await heard.until(lambda words: words)
            conversation.pause()
            said = len(heard.words)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(heard.words) == said
            conversation.resume()
            assert isinstance(await heard.end_of(), events.ResponseEnded)
            assert heard.text() == "a" * 3000

    run(scenario())


# How much an answer may come to


def ended_at_limit(play, **options):
    watcher, place = watched()

    async def scenario():
        async with asyncio.timeout(20), Server(play).open() as server, before(server, place, **options) as (conversation, heard):
            conversation.send(ask())
            end = await heard.end_of()
            await server.until(lambda: server.left)
            return heard, end

    heard, end = run(scenario())
    assert end == events.ResponseEnded("resp_1", "length")
    assert watcher.failures == ["too_long"]
    return heard


def test_an_endless_answer_ends_after_so_many_events_and_the_upstream_is_closed():
    assert ended_at_limit(endless(event("a")), max_response_events=1000).text() == "a" * 1000


def test_an_endless_answer_ends_after_so_many_bytes():
    text = ended_at_limit(endless(event("a" * 900)), max_response_bytes=1 << 20).text()
    assert (1 << 20) * 0.8 < len(text) <= 1 << 20


@pytest.mark.parametrize("nothing", [b":\n\n", b"\n\n", b": keep-alive\n\n", b"event: x\n\n", b"data:\n\n"])
def test_an_answer_of_nothing_ends_too(nothing):
    assert ended_at_limit(endless(nothing * 3000), max_response_bytes=1 << 20).text() == ""


def test_a_tool_call_without_end_is_cut_off():
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "[1, "}}
    heard = ended_at_limit(
        endless(b'data: {"choices":[{"delta":{"tool_calls":[%s]}}]}\n\n' % str(call).replace("'", '"').encode()), max_response_events=50
    )
    assert [type(word) for word in heard.words[:1]] == [events.ToolCallStarted]
    assert not any(isinstance(word, events.ToolCallDone) for word in heard.words)


def test_more_tool_calls_than_anybody_makes_are_an_error():
    def call(index):
        return b'data: {"choices":[{"delta":{"tool_calls":[{"index":%d,"function":{"name":"f","arguments":"["}}]}}]}\n\n' % index

    word, _ = last_of(STREAM_HEAD + chunk(b"".join(map(call, range(3000)))))
    assert (word.status, "more than 2048" in word.message) == (502, True)


def test_one_json_body_that_is_too_large_is_an_error():
    body = {"choices": [{"message": {"content": "a" * 5000}, "finish_reason": "stop"}]}
    word, _ = last_of(whole("200 OK", body), max_response_bytes=4000)
    assert (word.status, word.code) == (502, "upstream_malformed")
    assert "4000 bytes" in word.message


def test_a_usual_answer_is_far_below_the_limits():
    limits = ResponseLimits()
    assert limits.max_bytes >= 128_000 * 250
    assert limits.max_events >= 3 * 128_000


@pytest.mark.parametrize("name", ["max_response_bytes", "max_response_events"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(Exception, match=name):
        playing(b"", **{name: 0})
