"""A Realtime server whose responses never end."""

import contextlib

from antiphon.engine_api import events
from support.engines.realtime_server import ask, hello, playing
from support.engines.upstreams import watched


async def endless(answer):
    await answer.created()
    with contextlib.suppress(ConnectionError):
        while not answer.is_over:
            await answer.say("a")


async def endless_once(answer):
    await (hello if len(answer.session.server.answering) > 1 else endless)(answer)


def test_an_endless_response_is_cancelled_and_the_conversation_goes_on():
    watcher, place = watched()

    async def scenario(conversation, heard, server):
        conversation.send(ask("one"))
        assert await heard.end_of("one") == events.ResponseEnded("one", "length")
        assert set(heard.text("one")) == {"a"}
        assert len(heard.text("one")) <= 100
        conversation.send(ask("two"))
        assert await heard.end_of("two") == events.ResponseEnded("two")
        assert len(server.sessions) == 1

    playing(scenario, endless_once, place=place, options={"max_response_events": 100})
    assert watcher.failures == ["too_long"]


def test_a_response_ends_after_so_many_bytes():
    async def wordy(answer):
        await answer.created()
        with contextlib.suppress(ConnectionError):
            while not answer.is_over:
                await answer.say("a" * 1000)

    async def scenario(conversation, heard, _server):
        conversation.send(ask("one"))
        assert await heard.end_of("one") == events.ResponseEnded("one", "length")
        assert 50_000 < len(heard.text("one")) <= 100_000

    playing(scenario, wordy, options={"max_response_bytes": 100_000})


def test_a_server_that_does_not_stop_is_hung_up_on():
    watcher, place = watched()

    async def deaf(answer):
        await answer.created()
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.say("a" * 100_000)

    async def scenario(conversation, heard, server):
        server.heeds_cancel = False
        conversation.send(ask("one"))
        assert await heard.end_of("one") == events.ResponseEnded("one", "length")
        await server.until(lambda: server.session.socket.closed)
        assert len(heard.text("one")) <= 300_000

    playing(scenario, deaf, place=place, options={"max_response_bytes": 300_000})
    assert watcher.failures == ["too_long", "broke_off"]
