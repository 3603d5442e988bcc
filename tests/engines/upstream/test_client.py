"""The way to an upstream and back, over real sockets, with upstreams that behave as badly as they can."""

import asyncio
import contextvars
import socket

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import ConversationSettings
from support.engines.upstreams import (
    CUT,
    DONE,
    HALF,
    STREAM_HEAD,
    Heard,
    Server,
    ask,
    before,
    chunk,
    closing,
    engine_for,
    event,
    last_of,
    playing,
    resetting,
    run,
    streamed,
    watched,
    whole,
)

# What is heard


@pytest.mark.parametrize(
    ("play", "status", "code", "says"),
    [
        (CUT, 502, "upstream_broke_off", "closed the connection unanswered"),
        (resetting(b""), 502, "upstream_broke_off", "closed the connection unanswered"),
        (closing(b"HTTP/1.1 200 OK\r\ncontent-type: text"), 502, "upstream_broke_off", "closed the connection unanswered"),
        (
            closing(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"),
            502,
            "upstream_broke_off",
            "ended its answer before it was complete",
        ),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", 502, "upstream_broke_off", "head larger than 65536 bytes"),
        (b"x: y\r\n" * 20, 502, "upstream_broke_off", "did not answer in HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, 502, "upstream_broke_off", "head larger than 65536 bytes"),
        (b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 4000, 502, "upstream_broke_off", "head larger than 65536 bytes"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 502, "upstream_broke_off", "HTTP/1.1"),
        (whole("301 Moved Permanently", b"", location="http://other/"), 502, "server_error", "(301)"),
        (whole("204 No Content", b""), 502, "server_error", "(204)"),
        (whole("405 Method Not Allowed", {"detail": "Method Not Allowed"}), 502, "server_error", "(405)"),
        (
            whole("200 OK", b"<html>", content_type="text/html"),
            502,
            "upstream_malformed",
            "sent text/html where a stream of events was expected",
        ),
        (whole("200 OK", b"\x1f\x8b\x08", content_encoding="gzip"), 502, "upstream_malformed", "not requested: gzip"),
        (whole("200 OK", b"<html>"), 502, "upstream_malformed", "no chat completion"),
        (whole("200 OK", b""), 502, "upstream_broke_off", "ended its answer before it was complete"),
        (whole("200 OK", b"[" * 40_000), 502, "upstream_malformed", "no chat completion"),
        (whole("400 Bad Request", b"[" * 40_000), 400, None, "(400)"),
        (whole("500 Oh", b"\xff\xfe"), 502, "server_error", "(500)"),
        (whole("500 Oh", b"x" * 100_000), 502, "server_error", "(500)"),
        (whole("408 Request Timeout", {}), 504, "upstream_timeout", "ran out of time"),
        (whole("409 Conflict", {"error": "busy with that"}), 400, None, "busy with that"),
        (closing(HALF), 502, "upstream_broke_off", "before its answer was complete"),
        (resetting(HALF), 502, "upstream_broke_off", "before its answer was complete"),
        (closing(HALF + b"40\r\ndata: {"), 502, "upstream_broke_off", "before its answer was complete"),
        (HALF + b"what\r\n", 502, "upstream_broke_off", "did not answer in HTTP/1.1"),
        (HALF + chunk(DONE[:-2]) + b"0\r\n\r\n", 200, None, ""),
        (HALF + chunk(b"data: {]\n\n"), 502, "upstream_malformed", "no chat completion"),
        (HALF + b"0\r\n\r\n", 502, "upstream_broke_off", "ended its answer before it was complete"),
        (STREAM_HEAD + b"0\r\n\r\n", 502, "upstream_broke_off", "ended its answer before it was complete"),
    ],
    ids=lambda value: value if isinstance(value, str) and value else None,
)
def test_whatever_an_upstream_does_there_is_one_end_that_says_it(play, status, code, says):
    heard, _ = playing(play)
    (end,) = heard.ends("resp_1")
    assert heard.words[-1] is end
    if status == 200:
        assert end == events.ResponseEnded("resp_1")
    else:
        assert (end.status, end.code) == (status, code)
        assert says in end.message
        assert heard.text() in ("", "half")


def test_what_came_before_an_answer_broke_is_heard():
    for play in (closing(HALF), HALF + b"what\r\n", closing(HALF + chunk(event("half"))[:-20])):
        assert playing(play)[0].text() == "half"


def test_an_answer_may_be_announced_before_it_comes():
    word, _ = last_of(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + streamed("hello"))
    assert word == events.ResponseEnded("resp_1")


def test_an_answer_may_end_with_its_connection():
    told = event("hello") + event(finish="stop")
    for head in (b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"):
        heard, _ = playing(closing(head + b"content-type: text/event-stream\r\n\r\n" + told + DONE))
        assert (heard.text(), heard.words[-1]) == ("hello", events.ResponseEnded("resp_1"))


def test_an_answer_whose_last_event_lacks_its_empty_line_is_whole():
    heard, _ = playing(STREAM_HEAD + chunk(event("hello", "stop") + b"data: [DONE]") + b"0\r\n\r\n")
    assert (heard.text(), heard.words[-1]) == ("hello", events.ResponseEnded("resp_1"))


def test_an_end_mark_with_mixed_line_ends_is_the_end_mark():
    heard, _ = playing(STREAM_HEAD + chunk(event("hello")) + chunk(b"data: [DONE]\r\n\n") + b"0\r\n\r\n")
    assert (heard.text(), heard.words[-1]) == ("hello", events.ResponseEnded("resp_1"))


@pytest.mark.parametrize(
    ("piece", "text"), [(b"data: " + b"x" * (1 << 20), "an event larger than"), (b": x\n" * (1 << 18), "bytes without an event")]
)
def test_an_event_without_end_is_not_kept(piece, text):
    heard, _ = playing(STREAM_HEAD + b"".join(chunk(piece) for _ in range(9)))
    assert text in heard.words[-1].message
    assert heard.words[-1].code == "upstream_malformed"


def test_a_server_that_nobody_listens_for_is_told():
    async def scenario():
        watcher, place = watched()
        async with asyncio.timeout(20), Server(b"").open() as server:
            port = server.port
        server.port = port
        async with before(server, place) as (conversation, heard):
            conversation.send(ask())
            end = await heard.end_of()
        assert (end.status, end.code) == (502, "upstream_unreachable")
        assert watcher.failures == ["unreachable"]

    run(scenario())


def test_a_name_that_leads_nowhere_is_told():
    async def scenario():
        server = type("Nowhere", (), {"port": 80})
        async with asyncio.timeout(20), before(server, host="nowhere.invalid") as (conversation, heard):
            conversation.send(ask())
            assert (await heard.end_of()).code == "upstream_unreachable"

    run(scenario())


# Connections


def test_a_connection_is_used_again():
    heard, server = playing(
        streamed("one"), streamed("two"), whole("400 No", {"error": "no"}), streamed("four"), asks=[f"resp_{n}" for n in range(4)]
    )
    assert [heard.text(f"resp_{n}") for n in range(4)] == ["one", "two", "", "four"]
    assert len(server.asked) == 4
    assert server.connections <= 2, "a refusal's connection may be closed"


def test_what_a_connection_brings_belongs_to_the_request_that_it_answers():
    asked_by = contextvars.ContextVar("asked_by", default="")

    class NotingWho(Heard):
        def __call__(self, words):
            super().__call__([(asked_by.get(), word.id) for word in words])
            if isinstance(words[-1], events.ResponseEnded):
                over.set()

    over = asyncio.Event()

    async def scenario():
        async with Server(streamed("hello")).open() as server:
            engine, heard = engine_for(f"http://127.0.0.1:{server.port}/v1"), NotingWho()
            async with engine.open(ConversationSettings(model="m"), heard) as conversation:
                for name in ("resp_1", "resp_2"):
                    asked_by.set(name)
                    conversation.send(ask(name))
                    await over.wait()
                    over.clear()
            await engine.stop()
        assert set(heard.words) == {("resp_1", "resp_1"), ("resp_2", "resp_2")}
        assert server.connections == 1

    run(scenario())


@pytest.mark.parametrize("goodbye", [b"connection: close\r\n", b""])
def test_a_connection_that_its_server_closes_is_not_used_again(goodbye):
    answer = streamed("one").replace(b"transfer-encoding", goodbye + b"transfer-encoding")
    heard, server = playing(closing(answer), streamed("two"), asks=["resp_1", "resp_2"])
    assert heard.text("resp_2") == "two"
    assert server.connections == 2


def test_a_connection_closed_just_as_it_is_used_costs_no_answer():
    heard, server = playing(streamed("one"), CUT, streamed("two"), asks=["resp_1", "resp_2"])
    assert heard.text("resp_2") == "two"
    assert (server.connections, len(server.asked)) == (2, 3)


def test_a_second_answer_that_nobody_asked_for_is_nobodys():
    for more in (streamed("evil"), b"HTTP/1.1 200 OK\r\ncontent-le", b"garbage"):
        heard, server = playing(streamed("one") + more, streamed("two"), asks=["resp_1", "resp_2"])
        assert (heard.text("resp_1"), heard.text("resp_2")) == ("one", "two")
        assert server.connections == 2


def test_words_on_an_idle_connection_close_it():
    async def scenario():
        async def play(writer):
            writer.write(streamed("one"))
            await writer.drain()
            await told.wait()
            writer.write(streamed("evil"))
            await writer.drain()

        told = asyncio.Event()
        async with asyncio.timeout(20), Server(play, streamed("two")).open() as server, before(server) as (conversation, heard):
            conversation.send(ask())
            await heard.end_of()
            told.set()
            await server.until(lambda: server.left)
            conversation.send(ask("resp_2"))
            await heard.end_of("resp_2")
        assert heard.text("resp_2") == "two"

    run(scenario())


def test_an_answer_that_never_ends_its_message_keeps_no_connection():
    never = STREAM_HEAD + chunk(event("one", "stop")) + chunk(DONE)
    heard, server = playing(never, streamed("two"), asks=["resp_1", "resp_2"])
    assert (heard.text("resp_2"), server.connections) == ("two", 2)


# Silence


@pytest.mark.parametrize(
    ("play", "says"),
    [
        (b"", "did not begin to answer for 0.05 seconds"),
        (b"HTTP/1.1 200 OK\r\ncontent-", "did not begin to answer for 0.05 seconds"),
        (STREAM_HEAD, "did not begin to answer for 0.05 seconds"),
        (HALF, "fell silent in the middle of its answer for 0.05 seconds"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\n{", "fell silent in the middle"),
    ],
)
def test_a_silent_upstream_is_not_waited_for(play, says):
    watcher, place = watched()
    word, server = last_of(play, place=place, timeout_first_byte_s=0.05, timeout_idle_s=0.05, retries=3)
    assert (word.status, word.code) == (504, "upstream_timeout")
    assert says in word.message
    assert watcher.failures == ["timeout"]
    assert len(server.asked) == 1, "what took so long is not tried again"


def test_an_answer_that_lacks_nothing_but_its_end_mark_is_whole_when_silence_falls():
    heard, _ = playing(STREAM_HEAD + chunk(event("hello", "stop")), timeout_idle_s=0.05)
    assert (heard.text(), heard.words[-1]) == ("hello", events.ResponseEnded("resp_1"))


def test_an_upstream_that_never_shakes_hands_is_not_waited_for():
    """TLS to a server that says nothing."""

    async def scenario():
        async with asyncio.timeout(20):
            with socket.create_server(("127.0.0.1", 0)) as listening:
                server = type("Mute", (), {"port": listening.getsockname()[1]})
                async with before(server, scheme="https", timeout_connect_s=0.05) as (conversation, heard):
                    conversation.send(ask())
                    end = await heard.end_of()
        assert (end.status, end.code) == (504, "upstream_timeout")

    run(scenario())


# Leaving and pausing


def test_cancelling_closes_the_upstreams_connection():
    async def scenario():
        async with asyncio.timeout(20), Server(HALF).open() as server, before(server) as (conversation, heard):
            conversation.send(ask())
            await heard.until(lambda words: words)
            conversation.send(commands.Cancel("resp_1"))
            assert await heard.end_of() == events.ResponseEnded("resp_1", "cancelled")
            await server.until(lambda: server.left)

    run(scenario())


def test_leaving_closes_the_upstreams_connection_before_its_first_byte():
    async def scenario():
        async with asyncio.timeout(20), Server(b"").open() as server:
            async with before(server) as (conversation, heard):
                conversation.send(ask())
                await server.until(lambda: server.asked)
            await server.until(lambda: server.left)
            assert heard.words == []

    run(scenario())


def test_nothing_is_read_while_the_client_is_behind_and_no_time_passes():
    async def scenario():
        sent = 0

        async def play(writer):
            nonlocal sent
            writer.write(STREAM_HEAD)
            for _ in range(400):
                writer.write(chunk(event("x" * 50_000)))
                await writer.drain()
                sent += 1
            writer.write(chunk(event(finish="stop") + DONE) + b"0\r\n\r\n")

        async with asyncio.timeout(30), Server(play).open() as server, before(server, timeout_idle_s=1) as (conversation, heard):
            conversation.send(ask())
            await heard.until(lambda words: words)
            conversation.pause()
            stalled = -1
            while sent != stalled:  # until TCP has no more room
                stalled = sent
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.1)  # longer than the model server may be silent
            assert sent < 400
            conversation.resume()
            assert await heard.end_of() == events.ResponseEnded("resp_1")
            assert len(heard.text()) == 400 * 50_000

    run(scenario())


def test_a_pause_before_the_request_holds_for_its_answer():
    async def scenario():
        async with asyncio.timeout(20), Server(streamed("hello")).open() as server, before(server) as (conversation, heard):
            conversation.pause()
            conversation.send(ask())
            await server.until(lambda: server.asked)
            assert heard.words == []
            conversation.resume()
            await heard.end_of()
            assert heard.text() == "hello"

    run(scenario())
