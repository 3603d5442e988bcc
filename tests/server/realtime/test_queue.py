"""Realtime sessions for one place: who asks for the queue is told where it stands, until the session begins."""

import asyncio

import aiohttp
import pytest

from support.server.key_server import counted
from support.server.one_place import MODEL, serving_one_place
from support.server.raw_http import PATIENCE_S, POLL_S
from support.server.realtime_peer import IN_WRITING, connected

pytestmark = pytest.mark.anyio

SCRIPT = {"answers": [{"when": "", "say": "You said: {input}"}]}
IN_QUEUE = {"model": MODEL, "queue": "1"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def place(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.update_s": 0.05}) as place:
        yield place


async def recorded(http, session_id):
    async with http.get(f"/v1/sessions/{session_id}") as reply:
        return await reply.json()


async def begun(peer):
    """The first event of a session that has a place."""
    event = await peer.hear()
    assert event["type"] == "session.created"
    return event


async def test_who_finds_a_place_free_is_told_nothing_of_a_queue(place):
    async with connected(place.url, **IN_QUEUE) as peer:
        await begun(peer)
        await peer.say("session.update", session=IN_WRITING["ga"])
        assert (await peer.ask("Hi"))[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("dialect", ["ga", "beta"])
async def test_who_waits_is_told_its_place_and_begins_when_it_is_its_turn(place, dialect):
    async with connected(place.url, **IN_QUEUE) as first:
        await begun(first)
        async with connected(place.url, **IN_QUEUE, dialect=dialect) as second, connected(place.url, **IN_QUEUE) as third:
            told = await second.hear()
            assert {key: told[key] for key in ("type", "position")} == {"type": "antiphon.queued", "position": 1}
            assert told["event_id"] and told["ticket_id"].startswith("q_") and told["estimated_wait_s"] > 0
            last = await third.hear()
            assert (last["type"], last["position"], last["queue_length"]) == ("antiphon.queued", 2, 2)
            assert (await second.hear())["ticket_id"] == told["ticket_id"]  # again and again
            await first.socket.close()
            heard = await second.until("session.created")
            assert {event["type"] for event in heard[:-1]} <= {"antiphon.queued"}
            while last["position"] == 2:
                last = await third.hear()
            assert (last["position"], last["queue_length"]) == (1, 1)
            await second.say("session.update", session=IN_WRITING[dialect])
            assert (await second.ask("Hi"))[-1]["response"]["status"] == "completed"
            await second.socket.close()
            await third.until("session.created")


async def test_what_is_said_while_waiting_is_done_once_the_session_begins_but_for_audio(place):
    async with connected(place.url, **IN_QUEUE) as first:
        await begun(first)
        async with connected(place.url, **IN_QUEUE) as second:
            await second.until("antiphon.queued")
            await second.say("session.update", session={**IN_WRITING["ga"], "instructions": "Be brief."})
            await second.say("input_audio_buffer.append", audio="AAAA", event_id="mine")
            await second.say("no.such.event", event_id="wrong")
            errors = [(await second.until("error"))[-1]["error"] for _ in range(2)]
            assert [(each["code"], each["event_id"]) for each in errors] == [("not_ready", "mine"), ("invalid_value", "wrong")]
            await first.socket.close()
            heard = await second.until("session.updated")
            assert [event["type"] for event in heard if event["type"] != "antiphon.queued"] == ["session.created", "session.updated"]
            assert heard[-1]["session"]["instructions"] == "Be brief."
            assert (await second.ask("Hi"))[-1]["response"]["status"] == "completed"


async def test_what_is_kept_for_the_session_has_a_limit(place):
    async with connected(place.url, **IN_QUEUE) as first:
        await begun(first)
        async with connected(place.url, **IN_QUEUE) as second:
            await second.until("antiphon.queued")
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 300_000}]}
            for number in range(2):
                await second.say("conversation.item.create", item=item, event_id=f"item {number}")
            assert (await second.until("error"))[-1]["error"]["event_id"] == "item 1"
            for number in range(70):
                await second.say("input_audio_buffer.clear", event_id=f"clear {number}")
            refused = [(await second.until("error"))[-1]["error"] for _ in range(7)]
            assert [each["event_id"] for each in refused] == [f"clear {number}" for number in range(63, 70)]


async def test_who_leaves_the_queue_gives_its_place_in_it_to_the_next(place):
    async with connected(place.url, **IN_QUEUE) as first:
        await begun(first)
        async with connected(place.url, **IN_QUEUE) as third_to_be:
            async with connected(place.url, **IN_QUEUE) as last:
                await third_to_be.until("antiphon.queued")
                assert (await last.hear())["position"] == 2
                await third_to_be.socket.close()
                while (await last.hear())["position"] == 2:
                    pass
                counted(place.url, ("antiphon_queue_tickets_total", MODEL, "realtime", "gave_up"), 1)


async def test_who_does_not_ask_waits_as_before_without_a_word(place):
    async with connected(place.url, **IN_QUEUE) as first:
        await begun(first)
        async with connected(place.url, model=MODEL) as second, connected(place.url, model=MODEL, queue="0") as third:
            for peer in (second, third):
                await begun(peer)
                await peer.say("session.update", session=IN_WRITING["ga"])
                assert (await peer.hear())["type"] == "session.updated"
            await first.socket.close()
            assert (await second.ask("Hi"))[-1]["response"]["status"] == "completed"


async def test_a_ticket_that_is_cancelled_ends_the_wait_and_so_does_a_full_queue(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.size": 1}) as place:
        async with connected(place.url, **IN_QUEUE) as first, aiohttp.ClientSession(place.url) as http:
            await begun(first)
            async with connected(place.url, **IN_QUEUE) as second:
                ticket = (await second.hear())["ticket_id"]
                async with connected(place.url, **IN_QUEUE) as third:
                    assert (await third.hear())["error"]["code"] == "queue_full"
                    assert (await third.end())[0] == 1013
                async with http.delete(f"/api/queue/{ticket}") as reply:
                    assert reply.status == 200
                assert (await second.until("error"))[-1]["error"]["code"] == "worker_busy"
                assert (await second.end())[0] == 1013
            counted(place.url, ("antiphon_realtime_sessions_ended_total", MODEL, "no_worker"), 2)


async def test_a_recording_has_the_wait_and_the_session(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.update_s": 0.01, "recording.when": "always"}) as place:
        async with connected(place.url, **IN_QUEUE) as first:
            await begun(first)
            async with connected(place.url, **IN_QUEUE) as second:
                for _ in range(5):
                    assert (await second.hear())["type"] == "antiphon.queued"
                await first.socket.close()
                created = (await second.until("session.created"))[-1]
                await second.say("session.update", session=IN_WRITING["ga"])
                await second.ask("Hi")
        async with aiohttp.ClientSession(place.url) as http:
            async with asyncio.timeout(PATIENCE_S):
                while (record := await recorded(http, created["session"]["id"])).get("status", "live") == "live":  # noqa: ASYNC110 - a server sets no event
                    await asyncio.sleep(POLL_S)
                assert record["status"] == "kept"
