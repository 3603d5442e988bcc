"""A client that is gone, at every step of a session: its place is free at once, or when it can't come back any more."""

import asyncio

import pytest

from antiphon.server.processes.run import background_server
from support.server.minicpmo_peer import BUZZ, SILENCE, opened
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

FREED_S = 5
"""How soon a place must be free."""

SLOW_TO_BEGIN = {"engine": "scripted", "sessions": 1, **SCRIPT, "duplex": {"ready_ms": 300}}
LONG = {"engine": "scripted", "sessions": 1, "answers": [{"lines": [{"text": "la ", "repeat": 1000}]}], "pace_ms": 5}
MODELS = {"one": {"engine": "scripted", "sessions": 1, **SCRIPT}, "slow": SLOW_TO_BEGIN, "long": LONG}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def served(tmp_path, **settings):
    return background_server(configured(tmp_path, MODELS, **{"logging.level": "error", "queue.update_s": 0.05, **settings}))


async def waits(peer, position):
    """Until it learns that it waits at that position."""
    while (event := await peer.hear())["type"] != "session.queue_done":
        if event["position"] == position:
            return
    raise AssertionError("there was a place")


async def is_free(url, model, mode="audio"):
    """The next client gets the place."""
    async with asyncio.timeout(FREED_S), opened(url, mode=mode, model=model) as peer:
        await peer.until("session.queue_done")


async def after_queue_done(peer):
    await peer.until("session.queue_done")


async def while_it_begins(peer):
    await peer.until("session.queue_done")
    await peer.say("session.init", payload={})


async def before_it_was_heard(peer):
    await while_it_begins(peer)
    await peer.hear_sound(SILENCE)


async def once_it_has_begun(peer):
    await peer.begin()


async def during_an_answer(peer):
    await peer.begin()
    for audio in (SILENCE, BUZZ, SILENCE, SILENCE):
        await peer.hear_sound(audio)
    await peer.deltas("audio")


async def while_it_closes(peer):
    await peer.begin()
    await peer.say("session.close")


STEPS = [after_queue_done, while_it_begins, before_it_was_heard, once_it_has_begun, during_an_answer, while_it_closes]


@pytest.mark.parametrize("model", ["one", "slow"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_a_client_that_vanishes_at_any_step_holds_no_place(tmp_path, step, model):
    with served(tmp_path, **{"minicpmo.resume_s": 60}) as url:
        async with opened(url, mode="audio", model=model) as peer:
            await step(peer)
            peer.vanish()
            await is_free(url, model)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_a_client_that_leaves_on_purpose_holds_no_place_though_it_could_come_back(tmp_path, step):
    with served(tmp_path, **{"minicpmo.resume_s": 60}) as url:
        async with opened(url, mode="audio", model="one", resumable="1") as peer:
            await step(peer)
            await peer.socket.close()
            await is_free(url, "one")


@pytest.mark.parametrize("step", STEPS[:2], ids=lambda step: step.__name__)
async def test_a_client_that_vanishes_before_it_began_can_not_come_back_and_holds_no_place(tmp_path, step):
    with served(tmp_path, **{"minicpmo.resume_s": 60}) as url:
        async with opened(url, mode="audio", model="slow", resumable="1") as peer:
            await step(peer)
            peer.vanish()
            await is_free(url, "slow")


async def test_a_client_that_vanishes_while_it_closes_holds_no_place_though_it_could_come_back(tmp_path):
    with served(tmp_path, **{"minicpmo.resume_s": 60}) as url:
        async with opened(url, mode="audio", model="one", resumable="1") as peer:
            await while_it_closes(peer)
            peer.vanish()
            await is_free(url, "one")


@pytest.mark.parametrize("is_polite", [False, True], ids=["vanishes", "closes"])
async def test_a_client_that_is_gone_while_it_waits_is_nobody_in_the_queue(tmp_path, is_polite):
    with served(tmp_path) as url:
        async with opened(url, mode="audio", model="one") as serving, opened(url, mode="audio", model="one") as waiting:
            await serving.begin()
            await waits(waiting, 1)
            async with opened(url, mode="audio", model="one") as last:
                await waits(last, 2)
                if is_polite:
                    await waiting.socket.close()
                else:
                    waiting.vanish()
                async with asyncio.timeout(FREED_S):
                    await waits(last, 1)
                await serving.socket.close()
                async with asyncio.timeout(FREED_S):
                    await last.until("session.queue_done")


@pytest.mark.parametrize("is_polite", [False, True], ids=["vanishes", "closes"])
async def test_an_answer_in_chat_ends_with_its_client(tmp_path, is_polite):
    with served(tmp_path, **{"minicpmo.resume_s": 60}) as url:
        async with opened(url, mode="chat", model="long") as peer:
            await peer.begin()
            sing = {"messages": [{"role": "user", "content": "Sing"}], "generation": {"max_new_tokens": 10_000}}
            await peer.say("input.append", input=sing)
            await peer.deltas("text")
            if is_polite:
                await peer.socket.close()
            else:
                peer.vanish()
            await is_free(url, "long", "chat")


async def test_the_place_of_who_could_come_back_is_held_for_that_long_and_then_free(tmp_path):
    with served(tmp_path, **{"minicpmo.resume_s": 0.5}) as url:
        async with opened(url, mode="audio", model="one", resumable="1") as peer:
            await peer.begin()
            peer.vanish()
            async with opened(url, mode="audio", model="one") as following:
                await waits(following, 1)
                async with asyncio.timeout(0.5 + FREED_S):
                    await following.until("session.queue_done")
