"""Who may open which Realtime session, in which dialect, and how a session ends."""

import json
import re
import signal

import aiohttp
import pytest

from antiphon.server.live.client import REASON_LIMIT_BYTES, close_reason
from antiphon.server.processes.run import background_server
from support.server.key_server import MODELS, KeyServer, counted, numbers
from support.server.own_process import serving
from support.server.raw_http import connect, error_of, exchange, request, statuses, until
from support.server.realtime_peer import IN_WRITING, connected, kinds, refusal, talked
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

BETA = {"OpenAI-Beta": "realtime=v1"}
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def opened(tmp_path, models=MODELS, **settings):
    config = configured(tmp_path, models, **{"logging.level": "error", **settings})
    return background_server(config, is_persistent=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server that needs no key."""
    with opened(tmp_path_factory.mktemp("open")) as address:
        yield address


async def session_of(url, **connection):
    async with connected(url, **connection) as peer:
        event = await peer.hear()
        assert event["type"] == "session.created"
        return event["session"]


# A whole session


async def test_a_question_in_writing_is_answered_from_the_first_event_to_the_last(url):
    assert kinds(await talked(url, model="parrot")) == [
        "session.created",
        "session.updated",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]


async def test_the_beta_is_spoken_from_the_first_event_to_the_last(url):
    heard = await talked(url, dialect="beta", headers=BETA)
    assert heard[0]["session"]["modalities"] == ["text", "audio"] and heard[0]["session"]["input_audio_format"] == "pcm16"
    assert kinds(heard) == [
        "session.created",
        "conversation.created",
        "session.updated",
        "conversation.item.created",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
        *["response.text.delta"] * 3,
        "response.text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]


async def test_a_frame_that_is_no_event_is_an_error_and_the_session_goes_on(url):
    async with connected(url) as peer:
        await peer.hear()
        for frame, code in [
            ("no JSON", "invalid_json"),
            ("[1]", "invalid_event"),
            ('{"type":"sing","event_id":"evt_7"}', "invalid_value"),
            ('{"type":"input_audio_buffer.append","audio":"abc"}', None),
        ]:
            await peer.socket.send_str(frame)
            event = await peer.hear()
            assert event["type"] == "error" and event["event_id"] and event["error"]["type"] == "invalid_request_error", frame
            assert code is None or event["error"]["code"] == code, frame
            assert event["error"]["event_id"] == ("evt_7" if "evt_7" in frame else None)
        await peer.say("session.update", session=IN_WRITING["ga"])
        assert kinds([await peer.hear()]) == ["session.updated"]


async def test_bytes_are_not_taken(url):
    async with connected(url) as peer:
        await peer.hear()
        await peer.socket.send_bytes(b"\x00\x01")
        assert (await peer.end())[0] == 1003


async def test_a_client_that_vanishes_midway_ends_the_answer(url):
    async with connected(url, model="endless") as peer:
        await peer.hear()
        await peer.say("session.update", session=IN_WRITING["ga"])
        await peer.say("response.create")
        await peer.until("response.output_text.delta")
        peer.socket.get_extra_info("socket").shutdown(2)
    counted(url, ("antiphon_realtime_sessions",), 0.0)
    assert numbers(url)["antiphon_realtime_sessions_ended_total", "endless", "left"] == 1


async def test_a_session_is_over_when_its_time_is_up(tmp_path):
    with opened(tmp_path, **{"realtime.session_minutes": 0.001}) as url:
        async with connected(url) as peer:
            heard = await peer.until("error")
            assert heard[-1]["error"]["code"] == "session_expired"
            assert await peer.end() == (1001, heard[-1]["error"]["message"])


def test_a_reason_is_cut_where_a_close_frame_ends_and_never_within_a_character():
    assert close_reason("The session is over.") == "The session is over."
    assert close_reason("x" * 200) == "x" * REASON_LIMIT_BYTES
    assert close_reason("ä" * 100) == "ä" * 61


# The dialect


@pytest.mark.parametrize(
    ("connection", "dialect"),
    [
        ({}, "ga"),
        ({"headers": BETA}, "beta"),
        ({"headers": {"OpenAI-Beta": "assistants=v2, realtime=v1"}}, "beta"),
        ({"protocols": ("realtime", "openai-beta.realtime-v1")}, "beta"),
        ({"headers": BETA, "dialect": "ga"}, "ga"),
        ({"dialect": "beta"}, "beta"),
        ({"path": "/openai/realtime"}, "beta"),
        ({"path": "/openai/realtime", "dialect": "ga"}, "ga"),
        ({"path": "/openai/v1/realtime"}, "ga"),
    ],
)
async def test_the_dialect_is_the_one_that_is_asked_for(url, connection, dialect):
    session = await session_of(url, **connection)
    assert ("modalities" in session, "output_modalities" in session) == (dialect == "beta", dialect == "ga")


async def test_the_configured_dialect_goes_before_the_clients_and_after_the_addresss(tmp_path):
    with opened(tmp_path, **{"realtime.dialect": "ga"}) as url:
        assert "output_modalities" in await session_of(url, headers=BETA)
        assert "modalities" in await session_of(url, dialect="beta")


# The handshake


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        ((), None),
        (("realtime",), "realtime"),
        (("openai-agents-sdk.0.20", "openai-insecure-api-key.none", "realtime"), "realtime"),
        (("openai-insecure-api-key.none", "openai-beta.realtime-v1"), "openai-beta.realtime-v1"),
    ],
)
async def test_one_subprotocol_is_selected_and_never_a_key(url, offered, selected):
    async with connected(url, protocols=offered) as peer:
        assert peer.protocol == selected


def test_a_handshake_as_a_browser_makes_it_is_answered_in_kind(url):
    with connect(url) as connection:
        offered = "realtime, openai-insecure-api-key.none, openai-agents-sdk.0.20"
        browser = {**HANDSHAKE, "sec-websocket-protocol": offered, "origin": url, "sec-fetch-site": "same-origin"}
        connection.sendall(request(path="/v1/realtime?model=parrot", host=url.removeprefix("http://"), **browser))
        head = until(connection, b"session.created").partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 101 ")
    assert b"\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
    assert head.count(b"sec-websocket-protocol") == 1 and b"\r\nsec-websocket-protocol: realtime" in head
    assert b"\r\nx-request-id: req_" in head


def test_a_request_that_is_no_handshake_is_told_what_is_needed(url):
    answer = exchange(url, request(path="/v1/realtime", connection="close"))
    assert statuses(answer) == [426] and b"upgrade: websocket" in answer.lower()
    assert error_of(answer)["code"] == "upgrade_required"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("model=none", 404, "model_not_found"),
        ("call_id=rtc_1", 404, "call_not_found"),
        ("intent=sing", 400, "invalid_value"),
        ("dialect=gamma", 400, "invalid_value"),
        ("model=parrot&queue=maybe", 400, "invalid_value"),
        ("model=parrot&record=maybe", 400, "invalid_value"),
    ],
)
def test_what_there_is_not_is_refused_by_name(url, query, status, code):
    answer = exchange(url, request(path=f"/v1/realtime?{query}", **HANDSHAKE | {"connection": "upgrade, close"}))
    assert statuses(answer) == [status] and error_of(answer)["code"] == code


async def test_a_session_that_transcribes_may_name_a_model_but_none_that_converses(tmp_path):
    writer = MODELS["parrot"] | {"abilities": {"transcribes": False}}
    with opened(tmp_path, {"parrot": MODELS["parrot"], "writer": writer}) as url:
        for name in ("gpt-4o-transcribe", "parrot"):  # as LiveKit and others do for servers that aren't the original
            assert (await session_of(url, intent="transcription", model=name))["type"] == "transcription"
        answer = exchange(
            url, request(path="/v1/realtime?intent=transcription&model=writer", **HANDSHAKE | {"connection": "upgrade, close"})
        )
    assert statuses(answer) == [400] and error_of(answer)["code"] == "invalid_model"


def test_the_modes_of_the_other_protocol_are_refused_where_only_this_one_is_spoken(url):
    answer = exchange(url, request(path="/openai/v1/realtime?mode=chat", **HANDSHAKE | {"connection": "upgrade, close"}))
    assert statuses(answer) == [400] and error_of(answer)["code"] == "unknown_parameter"


async def test_without_a_model_the_first_one_answers(url):
    assert (await session_of(url))["model"] == "parrot"
    assert (await session_of(url, model="second"))["model"] == "second"
    assert (await session_of(url, path="/openai/realtime", deployment="second"))["model"] == "second"


async def test_a_page_of_another_site_is_refused_unless_it_is_allowed(tmp_path):
    with opened(tmp_path, **{"server.allowed_origins": ["https://chat.example.com"]}) as url:
        assert await refusal(url, headers={"origin": "https://evil.example.com"}) == 403
        assert (await session_of(url, headers={"origin": "https://chat.example.com"}))["model"] == "parrot"


# Sessions that only transcribe


async def test_a_session_that_transcribes_needs_a_model_that_can(tmp_path):
    deaf = {"transcribes": False}
    with opened(tmp_path, {"deaf": {"engine": "scripted", "abilities": deaf}}) as url:
        assert await refusal(url, intent="transcription") == 404
        assert (await session_of(url))["model"] == "deaf"


async def test_a_session_that_transcribes_says_so(url):
    session = await session_of(url, intent="transcription")
    assert session["type"] == "transcription" and session["object"] == "realtime.transcription_session"


async def test_the_model_that_transcribes_can_be_chosen(tmp_path):
    with opened(tmp_path, **{"realtime.transcription_model": "second"}) as url:
        await session_of(url, intent="transcription")
        counted(url, ("antiphon_realtime_sessions_ended_total", "second", "left"), 1)


# Keys and limits


@pytest.mark.parametrize("way", ["bearer", "header", "subprotocol"])
async def test_a_key_opens_a_session_whichever_way_it_comes(tmp_path, way):
    server = KeyServer(tmp_path)
    key = await server.key()
    ways = {
        "bearer": {"key": key},
        "header": {"headers": {"api-key": key}},
        "subprotocol": {"protocols": ("realtime", f"openai-insecure-api-key.{key}")},
    }
    with server.serving() as url:
        assert (await session_of(url, **ways[way]))["model"] == "parrot"


async def test_who_has_no_key_or_one_without_the_scope_is_refused(tmp_path):
    server = KeyServer(tmp_path)
    old = await server.key(scopes=("responses:write", "responses:read", "models:read"))
    with server.serving() as url:
        assert await refusal(url) == 401
        assert await refusal(url, key="ak-nonsense") == 401
        assert await refusal(url, key=old) == 403


async def test_a_refusal_can_be_an_event_as_in_the_original(tmp_path):
    server = KeyServer(tmp_path, **{"realtime.auth_failure": "event"})
    key = await server.key()
    with server.serving() as url:
        for connection, code, end in [
            ({"key": "ak-nonsense"}, "invalid_api_key", (3000, "invalid_request_error.invalid_api_key")),
            ({}, "invalid_api_key", (3000, "invalid_request_error.invalid_api_key")),
            ({"key": key, "model": "none"}, "model_not_found", (4000, "invalid_request_error.model_not_found")),
        ]:
            async with connected(url, protocols=("realtime",), **connection) as peer:
                event = await peer.hear()
                assert peer.protocol == "realtime"
                assert (event["type"], event["error"]["type"], event["error"]["code"]) == ("error", "invalid_request_error", code)
                assert event["event_id"].startswith("event_")
                assert await peer.end() == end
        assert await refusal(url, key=key, headers={"origin": "https://evil.example.com"}) == 403
        assert statuses(exchange(url, request(path="/v1/realtime", connection="close"))) == [401]
        assert (await session_of(url, key=key))["model"] == "parrot"


async def test_a_refusal_of_a_handshake_that_is_malformed_itself_is_no_event(tmp_path, capfd):
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    with KeyServer(tmp_path, **{"realtime.auth_failure": "event"}).serving() as url:
        for wrong in ({"sec-websocket-version": "12"}, {"sec-websocket-version": "13", "sec-websocket-key": "short"}):
            with connect(url) as connection:
                connection.sendall(request(path="/v1/realtime", **upgrade | wrong))
                assert until(connection, b"\r\n").startswith(b"HTTP/1.1 401 ")
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_a_session_is_one_of_its_keys_streams(tmp_path):
    server = KeyServer(tmp_path)
    key = await server.key(streams=1)
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            await peer.hear()
            assert await refusal(url, key=key) == 429
        while await refused_still(url, key):
            pass


async def refused_still(url, key):
    try:
        await session_of(url, key=key)
    except aiohttp.WSServerHandshakeError:
        return True
    return False


async def test_each_answers_tokens_are_taken_from_its_key_and_the_client_is_told_what_is_left(tmp_path):
    server = KeyServer(tmp_path)
    key = await server.key(tokens_per_minute=1000)
    with server.serving() as url:
        async with connected(url, key=key) as peer:
            await peer.hear()
            await peer.say("session.update", session=IN_WRITING["ga"])
            used = (await peer.ask("word " * 200))[-1]["response"]["usage"]["total_tokens"]
            limits = (await peer.hear())["rate_limits"]
            assert [limit["name"] for limit in limits] == ["tokens"] and limits[0]["limit"] == 1000
            left = tokens_left(url, key)
    assert used > 200
    assert 1000 - used <= left < 1000  # 17 tokens come back in a second


@pytest.mark.parametrize("way", ["cancels", "leaves"])
async def test_an_answer_that_its_client_does_not_wait_for_takes_tokens_too(tmp_path, way):
    server = KeyServer(tmp_path)
    key = await server.key(tokens_per_minute=1000)
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 200}]}
    with server.serving() as url:
        async with connected(url, key=key, model="endless") as peer:
            await peer.say("session.update", session=IN_WRITING["ga"])
            await peer.say("conversation.item.create", item=item)
            await peer.say("response.create")
            await peer.until("response.output_text.delta")
            if way == "cancels":
                await peer.say("response.cancel")
                done, limits = (await peer.until("rate_limits.updated"))[-2:]
                assert done["response"]["usage"] is None
                assert limits["rate_limits"][0]["remaining"] in range(500, 751)
        while (left := tokens_left(url, key)) > 990:  # what fills up again until it takes note
            pass
    assert left in range(500, 780)


def tokens_left(url, key):
    answer = exchange(url, request(path="/v1/models", authorization=f"Bearer {key}", connection="close")).lower()
    return int(re.search(rb"x-ratelimit-remaining-tokens: (\d+)", answer)[1])


async def test_there_are_no_more_sessions_than_are_allowed(tmp_path):
    with opened(tmp_path, **{"realtime.sessions": 1}) as url:
        async with connected(url) as peer:
            await peer.hear()
            assert await refusal(url) == 503
        counted(url, ("antiphon_realtime_sessions",), 0.0)
        assert (await session_of(url))["model"] == "parrot"


# What is counted and logged


async def test_sessions_are_counted_with_their_events_answers_and_tokens(tmp_path):
    with opened(tmp_path) as url:
        async with connected(url) as peer:
            await peer.hear()
            counted(url, ("antiphon_realtime_sessions",), 1.0)
            await peer.say("session.update", session=IN_WRITING["ga"] | {"audio": {"input": {"turn_detection": None}}})
            await peer.hear()
            await peer.say("input_audio_buffer.append", audio="AAAA" * 1600)  # 100 ms
            usage = (await peer.ask("Hi"))[-1]["response"]["usage"]
        counted(url, ("antiphon_realtime_sessions",), 0.0)
        counts = numbers(url)
    assert counts["antiphon_realtime_sessions_ended_total", "parrot", "left"] == 1
    assert counts["antiphon_realtime_events_total", "in"] == 4
    assert counts["antiphon_realtime_events_total", "out"] >= 16
    assert counts["antiphon_realtime_responses_total", "parrot", "completed"] == 1
    assert counts["antiphon_realtime_audio_seconds_total", "in"] == pytest.approx(0.1)
    assert counts["antiphon_tokens_total", "parrot", "input"] == usage["input_tokens"]
    assert counts["antiphon_tokens_total", "parrot", "output"] == usage["output_tokens"]


async def test_what_is_said_is_logged_only_where_that_is_wanted(tmp_path, capfd):
    for wanted in (False, True):
        with opened(tmp_path, **{"logging.level": "info", "logging.format": "json", "logging.content": wanted}) as url:
            await talked(url, "a secret question")
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
        ended = next(line for line in lines if line["event"] == "session")
        assert (ended["model"], ended["dialect"], ended["end"], ended["responses"]) == ("parrot", "ga", "left", 1)
        assert ended["request_id"].startswith("req_") and ended["events_in"] == 3
        assert any("a secret question" in line.get("content", "") for line in lines) is wanted
        assert not any('.delta"' in line.get("content", "") for line in lines)


# Stopping


async def test_sessions_go_on_while_the_server_drains_and_are_told_when_it_stops(tmp_path):
    with serving(tmp_path, drain_s=1) as (process, url):
        async with connected(url, model="endless") as peer:
            await peer.hear()
            await peer.say("session.update", session=IN_WRITING["ga"])
            await peer.say("response.create")
            await peer.until("response.output_text.delta")
            process.send_signal(signal.SIGTERM)
            while await refusal_or_none(url) != 503:
                pass
            assert kinds([await peer.hear()]) == ["response.output_text.delta"]
            assert (await peer.until("response.done"))[-1]["response"]["status"] == "failed"
            assert (await peer.end())[0] == 1012
            await peer.socket.close()
        assert process.wait(10) == 0


async def refusal_or_none(url):
    try:
        return await refusal(url)
    except AssertionError:
        return None


async def test_frames_that_come_with_the_handshake_are_not_lost(url):
    def framed(text):
        mask = b"\x00\x00\x00\x00"
        return bytes([0x81, 0x80 | len(text)]) + mask + text

    with connect(url) as connection:
        connection.sendall(request(path="/v1/realtime?intent=conversation", **HANDSHAKE) + framed(b'{"type":"input_audio_buffer.clear"}'))
        got = until(connection, b"input_audio_buffer.cleared")
    assert got.index(b"session.created") < got.index(b"input_audio_buffer.cleared")


# Events that are too large


@pytest.mark.parametrize("headers", [{}, BETA])
async def test_an_event_of_too_many_values_costs_that_event_and_nothing_else(url, headers):
    part = {"type": "input_text", "text": "a"}
    item = {"type": "message", "role": "user", "content": [part] * 10_000}
    async with connected(url, model="parrot", headers=headers) as peer:
        await peer.hear()
        await peer.say("conversation.item.create", event_id="event_large", item=item)
        error = (await peer.until("error"))[-1]["error"]
        assert "the limit is 20,000" in error["message"]
        assert error["event_id"] == "event_large"
        item["content"] = [part] * 1000
        await peer.say("conversation.item.create", item=item)
        await peer.until("conversation.item.created" if headers else "conversation.item.done")
