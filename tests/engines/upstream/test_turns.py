"""When an upstream gets requests: in turn, retried, and none while it rests."""

import asyncio
import random

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from support.engines.upstreams import (
    BUSY,
    CUT,
    DOWN,
    HALF,
    Heard,
    Server,
    ask,
    before,
    chunk,
    closing,
    engine_for,
    last_of,
    playing,
    resetting,
    run,
    streamed,
    watched,
    whole,
)

# Retries


@pytest.mark.parametrize("play", [CUT, resetting(b""), DOWN, whole("502 Bad Gateway", b"<html>"), BUSY])
def test_what_came_to_nothing_is_tried_again(play):
    heard, server = playing(play, streamed("hello"), retries=1)
    assert (heard.text(), len(server.asked)) == ("hello", 2)
    assert server.asked[0] == server.asked[1]


@pytest.mark.parametrize(
    "play",
    [
        closing(HALF),
        HALF + chunk(b"data: {]\n\n"),
        whole("400 No", {"error": "no"}),
        whole("401 No", {"error": "no"}),
        whole("500 Oh", {"error": "oh"}),
        whole("429 Too Many", {"error": "no word of when"}),
        whole("429 Too Many", {"error": "later"}, retry_after=30),
        whole("503 Down", {"error": "later"}, retry_after=30),
    ],
)
def test_what_began_or_would_come_to_the_same_is_not_tried_again(play):
    word, server = last_of(play, streamed("hello"), retries=3)
    assert isinstance(word, events.ResponseFailed)
    assert len(server.asked) == 1


def test_tries_come_to_an_end():
    watcher, place = watched()
    word, server = last_of(DOWN, retries=1, place=place)
    assert (word.status, word.code, len(server.asked)) == (503, "server_is_overloaded", 2)
    assert watcher.failures == ["503", "503"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "2500", "retry_after": "9"}, 2.5),
        ({"retry_after": "9" * 400}, 86400.0),
        ({"retry_after": "Fri, 01 Jan 2100 00:00:00 GMT"}, 86400.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-1"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_passed_on(headers, seconds):
    word, _ = last_of(whole("429 Too Many", {"error": {"message": "slow down"}}, **headers))
    assert (word.status, word.type, word.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert word.retry_after_s == seconds


# The breaker


def test_an_upstream_that_fails_again_and_again_is_left_alone():
    watcher, place = watched()
    heard, server = playing(DOWN, place=place, asks=[f"resp_{n}" for n in range(7)])
    assert len(server.asked) == 5
    assert watcher.states == ["closed", "open"]
    assert watcher.failures == ["503"] * 5 + ["circuit_open"] * 2
    last = heard.words[-1]
    assert (last.status, last.code) == (503, "server_is_overloaded")
    assert 1 <= last.retry_after_s <= 12.5  # ten seconds, and up to a quarter more


def test_answers_that_the_request_is_to_blame_for_are_not_held_against_the_upstream():
    _, server = playing(whole("500 Oh", {"error": "oh"}), asks=[f"resp_{n}" for n in range(8)])
    assert len(server.asked) == 8


# Turns


def test_as_many_requests_are_made_at_once_as_are_allowed():
    async def scenario():
        ready = asyncio.Event()
        at_once = most = 0

        async def play(writer):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await ready.wait()
            at_once -= 1
            writer.write(streamed("hello"))
            await writer.drain()

        ids = [f"resp_{n}" for n in range(6)]
        async with asyncio.timeout(20), Server(play).open() as server, before(server, concurrency=2) as (conversation, heard):
            for id in ids:
                conversation.send(ask(id))
            await server.until(lambda: at_once == 2)
            ready.set()
            for id in ids:
                await heard.end_of(id)
        assert most == 2

    run(scenario())


def test_whoever_came_first_is_served_first():
    async def scenario():
        asks = [ask(f"resp_{number}", f"number {number}") for number in range(6)]
        async with asyncio.timeout(20), Server(streamed("hello")).open() as server, before(server, concurrency=1) as (conversation, heard):
            for each in asks:
                conversation.send(each)
            await heard.end_of(asks[-1].id)
        assert [body["messages"][0]["content"] for _, body in server.asked] == [f"number {number}" for number in range(6)]

    run(scenario())


def test_one_that_is_called_off_while_it_waits_is_never_asked_and_leaves_its_place():
    async def scenario():
        ready = asyncio.Event()

        async def play(writer):
            await ready.wait()
            writer.write(streamed("hello"))
            await writer.drain()

        options = {"concurrency": 1, "queue": 1}
        async with asyncio.timeout(20), Server(play).open() as server, before(server, **options) as (conversation, heard):
            conversation.send(ask("resp_1"))
            await server.until(lambda: server.asked)
            conversation.send(ask("resp_2"))
            with pytest.raises(EngineOverrun):
                conversation.send(ask("resp_3"))
            conversation.send(commands.Cancel("resp_2"))
            assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2", "cancelled")
            await asyncio.sleep(0)
            conversation.send(ask("resp_4"))
            ready.set()
            for id in ("resp_1", "resp_4"):
                assert await heard.end_of(id) == events.ResponseEnded(id)
        assert len(server.asked) == 2

    run(scenario())


def test_one_that_waits_too_long_is_told_so():
    async def scenario():
        options = {"concurrency": 1, "timeout_queue_s": 0.05}
        async with asyncio.timeout(20), Server(b"").open() as server, before(server, **options) as (conversation, heard):
            conversation.send(ask("resp_1"))
            conversation.send(ask("resp_2"))
            end = await heard.end_of("resp_2")
        assert (end.status, end.code, end.retry_after_s) == (503, "server_is_overloaded", 1)

    run(scenario())


@pytest.mark.parametrize("play", [streamed("hello"), CUT, HALF, DOWN, b"", whole("400 No", {}), closing(HALF)])
def test_every_way_to_end_gives_its_place_back(play):
    """One place, and one to wait for it: were they lost, the next request would be turned away."""
    asks = [f"resp_{number}" for number in range(3)]
    heard, _ = playing(play, asks=asks, concurrency=1, queue=1, timeout_first_byte_s=0.05, timeout_idle_s=0.05)
    assert all(len(heard.ends(id)) == 1 for id in asks)


def test_an_engine_that_stops_breaks_what_it_is_asked_wherever_that_stands():
    async def scenario():
        async with asyncio.timeout(20), Server(HALF, b"").open() as server:
            engine = engine_for(f"http://127.0.0.1:{server.port}/v1", concurrency=2)
            heard = Heard()
            async with engine.open(ConversationSettings(model="m1"), heard) as conversation:
                for id in ("resp_1", "resp_2", "resp_3"):  # half answered, asked, waiting
                    conversation.send(ask(id))
                await heard.until(lambda words: words)
                await server.until(lambda: len(server.asked) == 2)
                await engine.stop()
                for id in ("resp_1", "resp_2", "resp_3"):
                    assert (await heard.end_of(id)).status == 503
            await server.until(lambda: server.left == 2)

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_any_mix_of_endings_and_leavings(seed):
    """Every request has its one end, every place is given back, every connection closed."""
    dice = random.Random(seed)
    plays = [streamed("hello"), CUT, resetting(b""), HALF, closing(HALF), BUSY, DOWN, whole("400 No", {}), b"garbage\r\n\r\n", b""]
    mix = [*(dice.choice(plays) for _ in range(120)), streamed("hello")]
    options = {"concurrency": 3, "queue": 200, "failures": 1000, "timeout_first_byte_s": 0.05, "timeout_idle_s": 0.05}

    async def scenario():
        ids = [f"resp_{number}" for number in range(80)]
        async with asyncio.timeout(30), Server(*mix).open() as server:
            async with before(server, **options) as (conversation, heard):
                for id in ids:
                    conversation.send(ask(id))
                    for _ in range(dice.randrange(4)):
                        await asyncio.sleep(0)
                    if dice.random() < 0.4:
                        conversation.send(commands.Cancel(dice.choice(ids)))
                    if dice.random() < 0.2:
                        conversation.pause()
                        await asyncio.sleep(0)
                        conversation.resume()
                for id in ids:
                    await heard.end_of(id)
                server.plays = [streamed("hello")]
                for number in range(3):  # as many as there are places
                    conversation.send(ask(f"last_{number}"))
                for number in range(3):
                    assert await heard.end_of(f"last_{number}") == events.ResponseEnded(f"last_{number}")
            await server.until(lambda: not server.serving)

    run(scenario())
