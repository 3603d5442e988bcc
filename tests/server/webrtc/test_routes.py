"""Calls over WebRTC on loopback: speaking and hearing, breaking in, joining, hanging up, and whom they are refused."""

import asyncio
import gc
import json
import os
import signal
import threading

import aiohttp
import pytest

from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer, numbers
from support.server.own_process import serving
from support.server.raw_http import POLL_S
from support.server.realtime_peer import IN_WRITING, connected, kinds, posted, refusal
from support.server.scripted_server import configured

pytest.importorskip("aiortc", reason="aiortc is not installed")

from support.server.caller import calling, posted_sdp

pytestmark = pytest.mark.anyio

MODELS = {
    "parrot": {"engine": "scripted", "answers": [{"when": "", "say": "You said: {input}"}]},
    "singer": {"engine": "scripted", "answers": [{"say": "la " * 32}]},
    "quiet": {"engine": "scripted", "abilities": {"voices": ["soft"]}},
    "deaf": {"engine": "scripted", "abilities": {"listens": False, "audio_in": False, "turn_detection": []}},
}
WRITTEN = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def opened(tmp_path, **settings):
    return background_server(configured(tmp_path, MODELS, **{"logging.level": "error", **settings}), is_persistent=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server that needs no key."""
    with opened(tmp_path_factory.mktemp("calls")) as address:
        yield address


async def over(url, count=0):
    """Ask until no more sessions than that are open."""
    while (await asyncio.to_thread(numbers, url))[("antiphon_realtime_sessions",)] != count:  # noqa: ASYNC110 - no event here
        await asyncio.sleep(POLL_S)


async def hung_up(url, call_id, key=None):
    return (await posted_sdp(url, "", key, path=f"/v1/realtime/calls/{call_id}/hangup"))[:2]


def of_buffer(events):
    return [event["type"].removeprefix("output_audio_buffer.") for event in events if event["type"].startswith("output_audio_buffer")]


# Speaking and hearing


async def test_what_is_said_aloud_is_answered_aloud_from_the_first_event_to_the_last(url):
    async with calling(url, model="parrot") as caller:
        assert (await caller.hear())["type"] == "session.created"
        caller.tones.speak(600)
        heard = await caller.until("output_audio_buffer.stopped")
        assert kinds(heard) == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_audio_transcript.delta",
            "output_audio_buffer.started",
            *["response.output_audio_transcript.delta"] * (len(heard) - 19),
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
            "rate_limits.updated",
            "output_audio_buffer.stopped",
        ]
        assert caller.audible > 20


async def test_the_sound_of_a_session_is_counted_and_none_of_it_is_told_as_events(tmp_path):
    with opened(tmp_path) as url:
        async with calling(url, model="parrot") as caller:
            caller.tones.speak(600)
            heard = await caller.until("output_audio_buffer.stopped")
            assert not [event for event in heard if "delta" in event and event["type"] == "response.output_audio.delta"]
            counts = await asyncio.to_thread(numbers, url)
        assert counts["antiphon_realtime_audio_seconds_total", "in"] > 1
        assert counts["antiphon_realtime_audio_seconds_total", "out"] > 0.5
        await over(url)
        assert numbers(url)["antiphon_realtime_sessions_ended_total", "parrot", "left"] == 1


async def test_who_breaks_in_is_heard_and_what_was_not_heard_of_the_answer_is_gone(url):
    async with calling(url, model="singer") as caller:
        await caller.say("response.create")
        heard = await caller.until("response.done")
        await caller.listen_to(5)
        caller.tones.speak(600)
        heard += await caller.until("conversation.item.truncated")
        assert of_buffer(heard) == ["started", "cleared"]
        assert kinds(heard)[-3:] == ["input_audio_buffer.speech_started", "output_audio_buffer.cleared", "conversation.item.truncated"]
        assert 100 <= heard[-1]["audio_end_ms"] < 32 * 100


async def test_a_client_may_clear_what_is_playing(url):
    async with calling(url, model="singer") as caller:
        await caller.say("response.create")
        await caller.until("response.done")
        await caller.say("output_audio_buffer.clear")
        assert of_buffer(await caller.until("conversation.item.truncated")) == ["cleared"]


async def test_a_model_that_does_not_hear_is_written_to(url):
    async with calling(url, model="deaf") as caller:
        assert (await caller.hear())["type"] == "session.created"
        await caller.say("session.update", session=IN_WRITING["ga"])
        await caller.say("conversation.item.create", item=WRITTEN)
        await caller.say("response.create")
        assert "error" not in kinds(await caller.until("response.done"))


async def test_what_is_no_event_is_an_error_and_the_call_goes_on(url):
    async with calling(url) as caller:
        await caller.hear()
        caller.channel.send("no JSON")
        assert (await caller.hear())["error"]["code"] == "invalid_json"
        caller.channel.send(b"\xff")
        assert (await caller.hear())["error"]["code"] == "invalid_json"
        await caller.say("sing", event_id="evt_7")
        assert (await caller.hear())["error"]["event_id"] == "evt_7"


async def test_an_event_that_no_data_channel_takes_is_an_error_there(url):
    async with calling(url) as caller:
        await caller.hear()
        for _ in range(2):
            await caller.say("session.update", session={"type": "realtime", "instructions": "x" * 200_000})
        assert kinds([await caller.hear()]) == ["session.updated"]
        await caller.until("session.updated")
        tools = [{"type": "function", "name": f"f{number}", "description": "y" * 1000} for number in range(100)]
        await caller.say("session.update", session={"type": "realtime", "tools": tools})
        assert (await caller.hear())["error"]["code"] == "event_too_large"


async def test_the_beta_is_spoken_with_who_asks_for_it(url):
    async with calling(url, model="parrot", dialect="beta") as caller:
        assert "modalities" in (await caller.hear())["session"]
        caller.tones.speak(600)
        heard = await caller.until("output_audio_buffer.stopped")
        assert {"conversation.created", "response.audio.done"} <= set(kinds(heard)) and "response.audio.delta" not in kinds(heard)


# How it begins


async def test_a_server_may_say_in_a_form_what_the_session_is(url):
    async with calling(url, session={"type": "realtime", "model": "singer", "instructions": "Sing."}) as caller:
        session = (await caller.hear())["session"]
        assert (session["model"], session["instructions"]) == ("singer", "Sing.")


async def test_a_session_that_cannot_be_had_is_refused_before_the_call_begins(url):
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("sdp", "v=0")
    form.add_field("session", json.dumps({"type": "realtime", "model": "quiet", "audio": {"output": {"voice": "loud"}}}))
    status, answer, _ = await posted_sdp(url, form)
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (400, "unsupported_value") and "'soft'" in error["message"]


async def test_a_call_may_be_one_that_is_only_written_down(url):
    async with calling(url, intent="transcription") as caller:
        assert (await caller.hear())["session"]["type"] == "transcription"
        caller.tones.speak(600)
        heard = await caller.until("conversation.item.input_audio_transcription.completed")
        assert "response.created" not in kinds(heard)


async def test_of_pictures_that_move_nothing_is_taken(url):
    async with calling(url, video=True) as caller:
        assert (await caller.hear())["type"] == "session.created"
        assert "a=inactive" in caller.connection.remoteDescription.sdp.partition("m=video")[2]


def without_audio():
    return "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:0\r\n"


def bundled_with_nothing():
    """An offer of which the library makes half a connection: its channel is to share the way of a section that isn't there."""
    way = (
        "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuv\r\na=setup:actpass\r\na=fingerprint:sha-256 " + ":".join(["AB"] * 32) + "\r\n"
    )
    audio = "m=audio 9 UDP/TLS/RTP/SAVPF 96\r\na=sendrecv\r\na=mid:5\r\na=rtcp-mux\r\na=rtpmap:96 opus/48000/2\r\n" + way
    channel = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:1\r\na=sctp-port:5000\r\n" + way
    return "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1\r\n" + audio + channel


@pytest.mark.parametrize(
    "offer",
    [
        b"",
        b"\xff",
        "hello",
        without_audio(),
        bundled_with_nothing(),
        "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\n",
        "v=0\r\nm=audio\r\n",
        "v=0\r\n" + "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n" * 9,
    ],
)
async def test_what_is_no_offer_is_refused_in_the_originals_words(url, offer):
    status, answer, _ = await posted_sdp(url, offer)
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["type"]) == (400, "invalid_offer", "invalid_request_error")
    assert error["message"].startswith("Invalid SDP offer. ")
    assert not any(name == "antiphon_realtime_sessions_ended_total" and "failed" in labels for name, *labels in numbers(url))


async def test_other_bodies_and_forms_without_an_offer_are_refused_by_name(url):
    assert (await posted(url, "/v1/realtime/calls", {}))[1]["error"]["code"] == "unsupported_content_type"
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("session", '{"type": "realtime"}')
    status, answer, _ = await posted_sdp(url, form)
    assert (status, json.loads(answer)["error"]["param"]) == (400, "sdp")
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("sdp", "v=0")
    form.add_field("session", '{"type": "poem"}')
    status, answer, _ = await posted_sdp(url, form)
    assert status == 400 and json.loads(answer)["error"]["param"].startswith("session")
    assert (await posted_sdp(url, "v=0", model="none"))[0] == 404


@pytest.mark.parametrize("disposition", ["\\); namename*=\"utf-8''", "form-data; name*0=a; name*x=b", "form-data; name*=utf-8''%"])
async def test_a_form_whose_head_is_malformed_is_a_mistake_of_the_client(url, disposition):
    body = f"--b\r\nContent-Disposition: {disposition}\r\n\r\nv=0\r\n--b--\r\n"
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/realtime/calls", data=body, headers={"content-type": "multipart/form-data; boundary=b"}) as reply:
            assert (reply.status, (await reply.json())["error"]["type"]) == (400, "invalid_request_error")


# Whom it is for


async def test_a_client_secret_calls_with_the_session_that_it_holds(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key = await server.key()
    with server.serving() as url:
        assert (await posted_sdp(url, "v=0"))[0] == 401
        _, made = await posted(url, "/v1/realtime/client_secrets", {"session": {"type": "realtime", "model": "singer"}}, key)
        async with calling(url, key=made["value"]) as caller:
            assert (await caller.hear())["session"]["model"] == "singer"
            assert await refusal(url, key=made["value"], call_id=caller.call_id) == 403
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("sdp", "v=0")
        form.add_field("session", '{"type": "realtime"}')
        assert (await posted_sdp(url, form, made["value"]))[0] == 400


async def test_only_its_own_tenant_finds_a_call(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key, foreign = await server.key(), await server.key(tenant="other")
    with server.serving() as url:
        async with calling(url, key=key) as caller:
            path = f"/v1/realtime/calls/{caller.call_id}"
            assert await refusal(url, key=foreign, call_id=caller.call_id) == 404
            assert (await hung_up(url, caller.call_id, foreign))[0] == 404
            assert (await posted(url, f"{path}/accept", {}, foreign))[0] == 404
            for action in ("accept", "reject", "refer"):
                status, answer = await posted(url, f"{path}/{action}", {}, key)
                assert (status, answer["error"]["code"]) == (400, "call_not_sip")


async def test_a_call_is_one_of_its_keys_streams_until_it_ends(tmp_path):
    server = KeyServer(tmp_path, MODELS)
    key = await server.key(streams=1)
    with server.serving() as url:
        async with calling(url, key=key) as caller:
            await caller.hear()
            assert await refusal(url, key=key) == 429
        while (await posted_sdp(url, "v=0", key))[0] == 429:
            pass


async def test_there_are_no_more_calls_than_sessions_are_allowed(tmp_path):
    with opened(tmp_path, **{"realtime.sessions": 1}) as url:
        async with calling(url) as caller:
            await caller.hear()
            assert (await posted_sdp(url, "v=0"))[0] == 503
            assert await refusal(url) == 503


async def test_there_are_no_more_calls_than_ports(tmp_path):
    with opened(tmp_path, **{"calls.ports": "50721-50721"}) as url:
        async with calling(url) as caller:
            assert "127.0.0.1 50721 typ host" in caller.connection.remoteDescription.sdp
            with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="No UDP port")):
                async with calling(url):
                    pass


# Beside it


async def test_a_server_joins_a_call_hears_what_the_caller_does_and_has_its_say(url):
    async with calling(url, model="parrot") as caller, connected(url, call_id=caller.call_id) as beside:
        first = await beside.hear()
        assert (first["type"], first["session"]) == ("session.created", (await caller.hear())["session"])
        await beside.say("session.update", session={"type": "realtime", "instructions": "Be brief."})
        for each in (caller, beside):
            assert (await each.hear())["session"]["instructions"] == "Be brief."
        await caller.say("conversation.item.create", item=WRITTEN)
        await beside.until("conversation.item.done")
        await beside.say("response.create")
        mirrored = await beside.until("output_audio_buffer.stopped")
        assert "response.output_audio.delta" not in kinds(mirrored)
        assert kinds(mirrored) == kinds(await caller.until("output_audio_buffer.stopped"))[2:]


async def test_who_leaves_a_call_that_they_joined_does_not_end_it_and_a_call_that_ends_is_told(url):
    async with calling(url) as caller:
        await caller.hear()
        async with connected(url, call_id=caller.call_id, dialect="beta") as beside:
            assert "modalities" in (await beside.hear())["session"]
        async with connected(url, call_id=caller.call_id) as beside:
            await beside.hear()
            await caller.say("output_audio_buffer.clear")
            assert (await beside.hear())["type"] == "output_audio_buffer.cleared"
            assert (await posted(url, f"/v1/realtime/calls/{caller.call_id}/accept", {}))[0] == 400
            assert await hung_up(url, caller.call_id) == (200, "")
            assert (await beside.end())[0] == 1000
        await asyncio.wait_for(caller.ended.wait(), 20)
        await over(url)
        assert await refusal(url, call_id=caller.call_id) == 404


# How it ends


async def test_a_call_is_over_when_its_time_is_up(tmp_path):
    with opened(tmp_path, **{"realtime.session_minutes": 0.02}) as url:
        async with calling(url) as caller:
            assert (await caller.until("error"))[-1]["error"]["code"] == "session_expired"
            await asyncio.wait_for(caller.ended.wait(), 20)
        await over(url)
        assert numbers(url)["antiphon_realtime_sessions_ended_total", "parrot", "expired"] == 1


async def test_calls_go_on_while_the_server_drains_and_are_told_when_it_stops(tmp_path):
    with serving(tmp_path, drain_s=1) as (process, url):
        async with calling(url) as caller:
            await caller.hear()
            process.send_signal(signal.SIGTERM)
            while (await posted_sdp(url, "v=0"))[0] != 503:
                pass
            await caller.say("output_audio_buffer.clear")
            assert (await caller.hear())["type"] == "output_audio_buffer.cleared"
            await asyncio.wait_for(caller.ended.wait(), 20)
        assert process.wait(10) == 0


def alive():
    """Tasks that are not done, threads but those that wait for anything to do, and open descriptors."""
    gc.collect()
    tasks = sum(type(each) is asyncio.Task and not each.done() for each in gc.get_objects())
    threads = sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())
    return tasks, threads, len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_of_calls_however_they_ended(url):
    async def put_through():
        for _ in range(3):
            async with calling(url, model="singer") as caller:
                await caller.say("response.create")
                await caller.until("output_audio_buffer.started")
            async with calling(url) as caller:
                await hung_up(url, caller.call_id)
                await caller.ended.wait()
            await posted_sdp(url, without_audio())
        await over(url)

    gc.freeze()  # what came before: among all that other tests have left, looking for tasks took seconds
    await put_through()
    before = alive()
    await put_through()
    for _ in range(200):
        after = alive()
        if all(now <= then for now, then in zip(after, before, strict=True)):
            break
        await asyncio.to_thread(numbers, url)
        await asyncio.sleep(0.05)  # what the server does every few seconds has a task for a moment
    assert all(now <= then for now, then in zip(after, before, strict=True)), (after, before)
