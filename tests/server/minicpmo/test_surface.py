"""Who may open which MiniCPM-o session, how it is refused, and how it ends."""

import asyncio
import json
import signal

import pytest

from antiphon.server.minicpmo.pacing import BURST_S
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer, counted, numbers
from support.server.minicpmo_peer import BUZZ, SILENCE, opened
from support.server.own_process import serving
from support.server.raw_http import exchange, request, statuses
from support.server.realtime_peer import refusal
from support.server.scripted_server import SCRIPT, configured

pytestmark = pytest.mark.anyio

MODELS = {
    "parrot": {"engine": "scripted", **SCRIPT},
    "mute": {"engine": "scripted", "abilities": {"full_duplex": False, "listens": False, "audio_out": False}},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("home"), MODELS, **{"logging.level": "error"})) as address:
        yield address


async def refused(url, **connection):
    """The error that a client gets, and the close code of its WebSocket."""
    async with opened(url, **connection) as peer:
        event = await peer.hear()
        assert event["type"] == "error" and event["error"]["message"]
        return event["error"]["code"], (await peer.end())[0]


async def named(url, **query):
    """The parameter of the address that the error names."""
    async with opened(url, **query) as peer:
        return (await peer.hear())["error"].get("param")


# Whole sessions


@pytest.mark.parametrize("mode", ["audio", "video"])
async def test_somebody_who_speaks_is_answered_in_words_and_sound(url, mode):
    async with opened(url, mode=mode) as peer:
        (created,) = (event for event in await peer.begin() if event["type"] == "session.created")
        assert created["mode"] == "full_duplex"
        for audio in (SILENCE, BUZZ, SILENCE, SILENCE):
            await peer.hear_sound(audio)
        heard = await peer.deltas("audio")
        assert {"listen", "text", "audio"} == {event["kind"] for event in heard}
        await peer.say("session.close", reason="user_stop")
        assert (await peer.until("session.closed"))[-1]["reason"] == "user_stop"
        assert (await peer.end())[0] == 1000


async def test_a_question_in_chat_is_answered(url):
    async with opened(url, mode="chat") as peer:
        await peer.begin()
        assert (await peer.ask("Hi"))[-1]["text"] == "You said: Hi"
        assert (await peer.ask("Ho"))[-1]["text"] == "You said: Ho"


async def test_every_event_from_the_beginning_on_has_its_number(url):
    async with opened(url, mode="chat", resumable="1") as peer:
        heard = [*await peer.begin(), *await peer.ask("Hi")]
        assert [event.get("seq") for event in heard] == [None, *range(1, len(heard))]


async def test_who_closes_its_websocket_is_answered_with_the_same(url):
    async with opened(url, mode="audio") as peer:
        await peer.begin()
        await peer.socket.close()
        assert peer.socket.close_code == 1000


# Which protocol


@pytest.mark.parametrize("query", [{}, {"mode": "video"}, {"mode": "chat", "model": "parrot"}, {"mode": "audio", "intent": "conversation"}])
async def test_a_mode_or_no_sign_at_all_means_this_protocol(url, query):
    async with opened(url, **query) as peer:
        assert (await peer.hear())["type"] == "session.queue_done"


@pytest.mark.parametrize(
    "connection",
    [
        {"model": "parrot"},
        {"intent": "conversation"},
        {"headers": {"OpenAI-Beta": "realtime=v1"}},
        {"protocols": ("realtime",)},
        {"protocols": ("realtime", "openai-beta.realtime-v1")},
    ],
)
async def test_what_openais_clients_say_means_the_other_one(url, connection):
    async with opened(url, **connection) as peer:
        event = await peer.hear()
        assert event["type"] == "session.created" and "session" in event


async def test_no_mode_is_video_and_takes_pictures(url):
    async with opened(url) as peer:
        await peer.begin()
        await peer.hear_sound(SILENCE, video_frames=["/9j/2Q=="])
        assert (await peer.hear())["type"] == "error"  # it was looked at, and is no picture


# Whom it lets in


async def test_the_subprotocol_of_the_sdk_is_selected(url):
    async with opened(url, protocols=("map.realtime",), headers={"authorization": "Bearer x"}, mode="audio", model="MiniCPM-o-4.5") as peer:
        assert peer.protocol == "map.realtime"
        assert (await peer.hear())["type"] == "session.queue_done"
    async with opened(url, protocols=("other",), mode="audio") as peer:
        assert peer.protocol == "other"


async def test_without_a_key_nobody_is_let_in_where_one_is_needed(tmp_path):
    keyed = KeyServer(tmp_path)
    key, wrong = await keyed.key(), await keyed.key(scopes=["audio"])
    with keyed.serving() as url:
        assert await refusal(url, mode="chat") == 401
        assert await refusal(url, mode="chat", key="ak_wrong") == 401
        assert await refusal(url, mode="chat", key=wrong) == 403
        async with opened(url, key=key, mode="chat") as peer:
            assert (await peer.hear())["type"] == "session.queue_done"


async def test_where_it_is_set_so_who_is_not_let_in_is_told_on_the_websocket(tmp_path):
    keyed = KeyServer(tmp_path, **{"realtime.auth_failure": "event"})
    await keyed.key()
    with keyed.serving() as url:
        assert (await refused(url, mode="chat"))[1] == 3000


async def test_a_page_of_another_site_is_refused(url):
    assert await refusal(url, mode="chat", headers={"origin": "https://evil.example"}) == 403


def test_a_request_that_is_no_handshake_is_told_what_is_needed(url):
    assert statuses(exchange(url, request(path="/v1/realtime?mode=chat", connection="close"))) == [426]


# What it is refused with


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"mode": "sing"}, "invalid_value"),
        ({"mode": ""}, "invalid_value"),
        ({"mode": "audio", "model": "mute"}, "model_not_found"),
        ({"mode": "audio", "resume": "resume_0"}, "session_not_found"),
        ({"mode": "audio", "resume": "resume_0", "after": "-1"}, "invalid_value"),
        ({"mode": "chat", "resumable": "maybe"}, "invalid_value"),
        ({"mode": "chat", "resumable": ""}, "invalid_value"),
        ({"mode": "chat", "record": "maybe"}, "invalid_value"),
        ({"mode": "chat", "record": "maybe", "resume": "resume_0"}, "invalid_value"),
    ],
)
async def test_what_there_is_not_is_told_and_closed_with_1008(url, query, code):
    assert await refused(url, **query) == (code, 1008)


async def test_what_of_the_address_is_wrong_is_named(url):
    assert await named(url, mode="sing") == "mode"
    assert await named(url, mode="audio", resume="resume_0", after="x") == "after"
    assert await named(url, mode="audio", resume="resume_0") == "resume"
    assert await named(url, mode="chat", resumable="maybe") == "resumable"
    assert await named(url, mode="chat", record="maybe") == "record"


@pytest.mark.parametrize(("value", "is_true"), [("1", True), ("Yes", True), ("TRUE", True), ("0", False), ("No", False), ("false", False)])
async def test_a_client_may_resume_if_it_asks_in_any_of_the_words_for_it(url, value, is_true):
    async with opened(url, mode="chat", resumable=value, record=value) as peer:
        (created,) = (event for event in await peer.begin() if event["type"] == "session.created")
        assert ("resume_token" in created) == is_true


async def test_a_server_without_a_model_that_can_says_so(tmp_path):
    with background_server(configured(tmp_path, {"mute": MODELS["mute"]}, **{"logging.level": "error"})) as url:
        assert await refused(url, mode="video") == ("model_not_found", 1008)
        async with opened(url, mode="chat") as peer:
            assert (await peer.hear())["type"] == "session.queue_done"


@pytest.mark.parametrize("query", [{}, {"model": "far"}, {"model": "MiniCPM-o-4.5"}])
async def test_who_comes_before_the_first_worker_is_told_to_come_back(tmp_path, query):
    models = {"mute": MODELS["mute"], "far": {"engine": "worker"}}
    with background_server(configured(tmp_path, models, **{"logging.level": "error"})) as url:
        for mode in ("audio", "video"):
            assert await refused(url, mode=mode, **query) == ("worker_busy", 1013)
    with background_server(configured(tmp_path, {"far": models["far"]}, **{"logging.level": "error"})) as url:
        assert await refused(url, mode="chat", **query) == ("worker_busy", 1013)


async def test_the_first_model_that_can_answers_where_the_one_that_is_named_is_not_there(tmp_path):
    models = {"mute": MODELS["mute"], "parrot": MODELS["parrot"]}
    with background_server(configured(tmp_path, models, **{"logging.level": "error"})) as url:
        async with opened(url, mode="audio", model="MiniCPM-o-4.5") as peer:
            await peer.begin()
        counted(url, ("antiphon_minicpmo_sessions_ended_total", "parrot", "audio", "left"), 1)


async def test_the_configured_model_goes_before_the_first(tmp_path):
    models = {"first": MODELS["parrot"], "second": MODELS["parrot"]}
    settings = {"logging.level": "error", "minicpmo.model": "second"}
    with background_server(configured(tmp_path, models, **settings)) as url:
        async with opened(url, mode="chat") as peer:
            await peer.begin()
        counted(url, ("antiphon_minicpmo_sessions_ended_total", "second", "chat", "left"), 1)


async def test_more_sessions_than_there_may_be_are_told_to_try_again_later(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error", "realtime.sessions": 1})) as url:
        async with opened(url, mode="chat") as peer:
            await peer.hear()
            assert await refused(url, mode="chat") == ("server_is_overloaded", 1013)
            assert await refusal(url, model="parrot") == 503


async def test_bytes_are_refused_in_words(url):
    async with opened(url, mode="audio") as peer:
        await peer.hear()
        await peer.socket.send_bytes(b"\0\1")
        event = await peer.hear()
        assert (event["type"], event["error"]["code"]) == ("error", "invalid_payload")
        assert (await peer.end())[0] == 1003


async def test_an_event_that_is_too_large_closes_the_session(url):
    async with opened(url, mode="audio") as peer:
        await peer.begin()
        await peer.hear_sound("A" * (2 << 20))
        assert [(await peer.hear())["type"], (await peer.end())[0]] == ["error", 1009]
    async with opened(url, mode="audio") as peer:
        await peer.hear()
        await peer.socket.send_str(json.dumps({"type": "session.init", "payload": {"x": "A" * (13 << 20)}}))
        assert (await peer.end())[0] == 1009


async def test_a_flood_is_not_read_faster_than_it_could_be_spoken(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"})) as url:
        before = numbers(url).get(("antiphon_realtime_audio_seconds_total", "in"), 0)
        async with opened(url, mode="audio") as peer:
            await peer.begin()
            begun_at = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):  # 26 MB, which are five minutes
                async with asyncio.timeout(1):
                    for _ in range(300):
                        await peer.hear_sound()
            peer.vanish()
            took_s = asyncio.get_running_loop().time() - begun_at
            taken_s = numbers(url)["antiphon_realtime_audio_seconds_total", "in"] - before
            # What one read of the socket brings more is 256 KiB.
            assert BURST_S <= taken_s <= BURST_S + 2 * took_s + 4


# The end


async def test_when_the_server_stops_a_session_is_told_and_closed_with_1012(tmp_path):
    with serving(tmp_path, drain_s=0.2) as (process, url):
        async with opened(url, mode="chat") as peer:
            await peer.begin()
            process.send_signal(signal.SIGTERM)
            closed = (await peer.until("session.closed"))[-1]
            assert closed["reason"] == "shutdown"
            assert (await peer.end())[0] == 1012


async def test_sessions_are_counted(tmp_path):
    with background_server(configured(tmp_path, MODELS, **{"logging.level": "error"})) as url:
        async with opened(url, mode="chat") as peer:
            await peer.begin()
            await peer.ask("Hi")
            assert numbers(url)["antiphon_minicpmo_sessions", "chat"] == 1
            await peer.say("session.close", reason="user_stop")
            await peer.end()
        counted(url, ("antiphon_minicpmo_sessions_ended_total", "parrot", "chat", "user_stop"), 1)
        told = numbers(url)
        assert told["antiphon_minicpmo_sessions", "chat"] == 0
        assert told["antiphon_realtime_events_total", "in"] == 3
        assert told["antiphon_tokens_total", "parrot", "output"] == 3


async def test_an_event_of_too_many_values_costs_that_event_and_nothing_else(url):
    async with opened(url, mode="chat") as peer:
        await peer.begin()
        await peer.say("input.append", input={"messages": [{"role": "user", "content": "a"}] * 10_000})
        error = (await peer.until("error"))[-1]["error"]
        assert (error["code"], "the limit is 20,000" in error["message"]) == ("invalid_payload", True)
        await peer.ask("Hi")


async def test_when_the_server_stops_who_waits_is_told_before_who_is_served_has_finished(tmp_path):
    models = [{"name": "parrot", "engine": "scripted", "sessions": 1}]
    with serving(tmp_path, models, drain_s=3600) as (process, url):
        async with opened(url, mode="chat") as served, opened(url, mode="chat") as waiting:
            await served.begin()
            await waiting.until("session.queued")
            process.send_signal(signal.SIGTERM)
            closed = (await waiting.until("session.closed"))[-1]
            assert (closed["reason"], closed["session_id"], (await waiting.end())[0]) == ("shutdown", None, 1012)
            assert (await served.ask("Hi"))[-1]["type"] == "response.done"
            await served.say("session.close", reason="user_stop")
            assert (await served.until("session.closed"))[-1]["reason"] == "user_stop"
        assert process.wait(20) == 0
