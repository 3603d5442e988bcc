"""Calls for one place: who asks for the queue is told where it stands, and hanging up gives the ticket back."""

import asyncio

import aiohttp
import pytest

from support.server.key_server import counted
from support.server.one_place import MODEL, serving_one_place
from support.server.realtime_peer import connected

pytest.importorskip("aiortc", reason="aiortc is not installed")

from support.server.caller import PATIENCE_S, calling

pytestmark = pytest.mark.anyio

SCRIPT = {"hears": [{"says": "Hello."}], "answers": [{"when": "", "say": "You said: {input}"}]}
IN_QUEUE = {"model": MODEL, "queue": "1"}
TICKETS = "antiphon_queue_tickets_total"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_call_that_waits_is_told_its_place_and_is_heard_once_it_is_its_turn(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.update_s": 0.05}) as place:
        async with calling(place.url, **IN_QUEUE) as first:
            assert (await first.hear())["type"] == "session.created"
            async with calling(place.url, **IN_QUEUE) as caller, connected(place.url, **IN_QUEUE) as last:
                told = await caller.hear()
                assert (told["type"], told["position"]) == ("antiphon.queued", 1)
                assert (await last.hear())["position"] == 2
                await caller.say("session.update", session={"type": "realtime", "instructions": "Be brief."})
                caller.tones.speak(200)
                async with connected(place.url, call_id=caller.call_id) as beside:
                    assert (await beside.hear())["type"] == "antiphon.queued"
                    await first.connection.close()
                    assert (await beside.until("session.created"))[-1]["session"]["instructions"] != "Be brief."
                heard = await caller.until("session.updated")
                assert {event["type"] for event in heard[:-2]} == {"antiphon.queued"}
                assert heard[-1]["session"]["instructions"] == "Be brief."
                caller.tones.speak(600)
                assert "input_audio_buffer.speech_started" in [event["type"] for event in await caller.until("response.done")]


async def test_hanging_up_gives_the_place_in_the_queue_to_the_next(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.update_s": 0.05}) as place:
        async with connected(place.url, **IN_QUEUE) as first:
            await first.until("session.created")
            async with connected(place.url, **IN_QUEUE) as last:
                async with calling(place.url, **IN_QUEUE) as caller:
                    assert (await caller.hear())["position"] == 2
                    await last.socket.close()
                    while (await caller.hear())["position"] == 2:
                        pass
            counted(place.url, (TICKETS, MODEL, "realtime", "gave_up"), 2)


async def test_a_call_is_told_that_the_queue_is_full_and_that_its_ticket_is_cancelled(tmp_path):
    with serving_one_place(tmp_path, SCRIPT, **{"queue.size": 1}) as place:
        async with connected(place.url, **IN_QUEUE) as first, aiohttp.ClientSession(place.url) as http:
            await first.until("session.created")
            async with calling(place.url, **IN_QUEUE) as second:
                ticket = (await second.hear())["ticket_id"]
                async with calling(place.url, **IN_QUEUE) as third:
                    assert (await third.hear())["error"]["code"] == "queue_full"
                    await asyncio.wait_for(third.ended.wait(), PATIENCE_S)
                async with http.delete(f"/api/queue/{ticket}") as reply:
                    assert reply.status == 200
                assert (await second.until("error"))[-1]["error"]["code"] == "worker_busy"
                await asyncio.wait_for(second.ended.wait(), PATIENCE_S)
            counted(place.url, ("antiphon_realtime_sessions_ended_total", MODEL, "no_worker"), 2)
