"""Coming back to a session whose connection was lost."""

import asyncio
import random

import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer, counted, numbers
from support.server.minicpmo_peer import BUZZ, SILENCE, opened, sound
from support.server.scripted_server import SCRIPT, configured

SHORT_SILENCE, SHORT_BUZZ = sound(0.3), sound(0.3, loudness=0.25)
"""So that all of it together may come at once."""

SING = {"messages": [{"role": "user", "content": "Sing"}], "generation": {"max_new_tokens": 1_000_000}}

pytestmark = pytest.mark.anyio

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "talker": {"engine": "scripted", "pace_ms": 2, "answers": [{"lines": [{"text": "la ", "repeat": 400}]}]},
    "singer": {"engine": "scripted", "answers": [{"lines": [{"text": "la " * 20_000, "repeat": 200}]}]},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS, **{"logging.level": "error"})) as address:
        yield address


async def begun(peer):
    return (await peer.begin())[-1]["resume_token"]


async def refused(url, token, **connection):
    async with opened(url, resume=token, **connection) as peer:
        event = await peer.hear()
        assert event["type"] == "error", event
        return event["error"]["code"], (await peer.end())[0]


async def test_who_does_not_ask_to_come_back_gets_no_token(url):
    async with opened(url, mode="chat", model="parrot") as peer:
        created = (await peer.begin())[-1]
        assert "resume_token" not in created and "seq" not in created
        assert "resume_s" not in created["metrics"]


async def test_a_client_that_can_come_back_is_told_for_how_long_it_is_waited_for(url):
    async with opened(url, mode="chat", model="parrot", resumable="1") as peer:
        assert (await peer.begin())[-1]["metrics"]["resume_s"] == 20


async def test_what_was_missed_comes_in_order_and_then_that_the_session_goes_on(url):
    async with opened(url, mode="chat", model="talker", resumable="1") as first:
        token = await begun(first)
        await first.say("input.append", input=SING)
        seen = (await first.deltas("text"))[-1]["seq"]
        first.vanish()
    async with opened(url, mode="chat", resume=token, after=str(seen)) as second:
        heard = await second.until("session.resumed")
        heard += await second.until("response.done")
        assert [event["seq"] for event in heard] == list(range(seen + 1, seen + 1 + len(heard)))
        assert heard[-1]["text"] == "la " * 400
        assert "".join(event.get("text", "") for event in heard[:-1]).count("la") == 400 - (seen - 1)


async def test_the_session_is_the_same_one_and_goes_on_as_before(url):
    async with opened(url, mode="audio", model="parrot", resumable="1") as first:
        created = (await first.begin())[-1]
        await first.hear_sound(SILENCE)
        await first.deltas("listen")
        first.vanish()
    async with opened(url, mode="audio", resume=created["resume_token"]) as second:
        resumed = (await second.until("session.resumed"))[-1]
        assert resumed["session_id"] == created["session_id"]
        for audio in (BUZZ, SILENCE, SILENCE):
            await second.hear_sound(audio)
        await second.deltas("audio")
        await second.say("session.close", reason="user_stop")
        assert (await second.until("session.closed"))[-1]["reason"] == "user_stop"
    assert await refused(url, created["resume_token"], mode="audio") == ("session_not_found", 1008)


async def test_a_client_whose_end_was_not_noticed_takes_its_session_over(url):
    async with opened(url, mode="chat", model="parrot", resumable="1") as first:
        token = await begun(first)
        async with opened(url, mode="chat", resume=token, after="1") as second:
            assert (await second.hear())["type"] == "session.resumed"
            assert (await first.end())[0] == 1012
            assert (await second.ask("Hi"))[-1]["text"] == "You said: Hi"


@pytest.mark.parametrize("after", ["99", "123456789"])
async def test_a_number_that_never_was_is_refused_and_disturbs_nobody(url, after):
    async with opened(url, mode="chat", model="parrot", resumable="1") as first:
        token = await begun(first)
        assert await refused(url, token, mode="chat", after=after) == ("session_not_found", 1008)
        assert await refused(url, token, mode="audio", after="1") == ("session_not_found", 1008)
        assert (await first.ask("Hi"))[-1]["text"] == "You said: Hi"


async def test_after_its_time_a_session_is_gone(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error", "minicpmo.resume_s": 0.1})) as url:
        async with opened(url, mode="chat", model="parrot", resumable="1") as first:
            token = await begun(first)
            first.vanish()
        counted(url, ("antiphon_minicpmo_sessions", "chat"), 0)
        assert await refused(url, token, mode="chat") == ("session_not_found", 1008)


async def test_where_none_waits_no_token_is_told(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error", "minicpmo.resume_s": 0})) as url:
        async with opened(url, mode="chat", model="parrot", resumable="1") as peer:
            created = (await peer.begin())[-1]
            assert "resume_token" not in created and "seq" not in created


async def test_a_session_of_another_key_is_not_found(tmp_path):
    keyed = KeyServer(tmp_path)
    mine, other = await keyed.key(tenant="anna"), await keyed.key(tenant="ben")
    with keyed.serving() as url:
        async with opened(url, key=mine, mode="chat", resumable="1") as first:
            token = await begun(first)
            first.vanish()
        assert await refused(url, token, key=other, mode="chat") == ("session_not_found", 1008)
        async with opened(url, key=mine, mode="chat", resume=token) as second:
            assert (await second.hear())["type"] == "session.resumed"


async def test_who_has_missed_too_much_can_not_come_back(url):
    async with opened(url, mode="chat", model="singer", resumable="1") as first:
        token = await begun(first)
        await first.say("input.append", input=SING)
        await first.deltas("text")
        first.vanish()
    counted(url, ("antiphon_minicpmo_sessions", "chat"), 0)
    assert await refused(url, token, mode="chat") == ("session_not_found", 1008)


async def test_a_session_that_ended_meanwhile_says_how(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error", "minicpmo.chat_s": 0.3})) as url:
        async with opened(url, mode="chat", model="parrot", resumable="1") as first:
            token = await begun(first)
            first.vanish()
        counted(url, ("antiphon_minicpmo_sessions", "chat"), 0)
        async with opened(url, mode="chat", resume=token) as second:
            assert (await second.until("session.closed"))[-1]["reason"] == "timeout"
            assert (await second.end())[0] == 1000


async def test_it_is_counted_who_came_back(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"})) as url:
        async with opened(url, mode="chat", model="parrot", resumable="1") as first:
            token = await begun(first)
            first.vanish()
        async with opened(url, mode="chat", resume=token) as second:
            await second.hear()
            told = numbers(url)
            assert told["antiphon_minicpmo_resumes_total", "resumed"] == 1
            assert told["antiphon_minicpmo_sessions", "chat"] == 1


@pytest.mark.parametrize("seed", range(20))
async def test_whenever_the_connection_is_cut_nothing_is_missing_and_nothing_comes_twice(url, seed):
    dice = random.Random(seed)
    seen, spoken, closed = [], 0, None
    token = None
    while closed is None:
        query = (
            {"mode": "audio", "model": "parrot", "resumable": "1"}
            if token is None
            else {"mode": "audio", "resume": token, "after": str(seen[-1])}
        )
        async with opened(url, **query) as peer:
            if token is None:
                token, seen = await begun(peer), [1]
            patience = dice.randrange(1, 25)  # events until the next cut
            for _ in range(dice.randrange(4)):
                await peer.hear_sound(SHORT_BUZZ if spoken % 8 in (2, 3) else SHORT_SILENCE)
                spoken += 1
            is_last = spoken > 30
            if is_last:
                await peer.say("session.close", reason="user_stop")
            while (patience > 0 or is_last) and closed is None:
                try:
                    async with asyncio.timeout(None if is_last else 0.05):
                        event = await peer.hear()
                except TimeoutError:
                    break
                assert "seq" in event, event
                seen.append(event["seq"])
                patience -= 1
                if event["type"] == "session.closed":
                    closed = event
            peer.vanish()
    assert seen == list(range(1, len(seen) + 1))
