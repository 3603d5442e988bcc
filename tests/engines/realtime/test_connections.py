"""An engine in front of a Realtime server: connections that fail, are lost or fall silent, and the errors for clients."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import BuildContext, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.realtime.conversation import MAX_MALFORMED_MESSAGES, RealtimeUpstreamConversation, _Connection as UpstreamConnection
from antiphon.engines.realtime.engine import build
from antiphon.errors import ServerError, UpstreamError
from antiphon.wire.realtime.dialects import DIALECTS
from support.engines.realtime_server import (
    BY_HAND,
    LISTEN,
    RealtimeServer,
    answered,
    ask,
    engine_before,
    hello,
    of,
    playing,
    said,
    sound,
    spoken,
    talking,
)
from support.engines.upstreams import Heard, run, served, watched

SECRET = "sk-a-secret-key"
PLACE = BuildContext(weights_folder=Path(), base_folder=Path(), secrets={"KEY": SECRET})


async def silent(answer):
    """An answer that never goes on."""
    await answer.created()
    await answer.say("Well")


def test_the_server_is_asked_with_the_key_the_model_and_the_operators_headers():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        request = server.session.request
        assert request.query["model"] == "gpt-4o mini"
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        assert request.headers["X-Team"] == "blue"
        assert request.headers["OpenAI-Beta"] == "realtime=v1"

    options = {"api_key_env": "KEY", "model": "gpt-4o mini", "headers": {"X-Team": "blue"}}
    playing(scenario, dialect="beta", place=PLACE, options=options)


def test_a_ga_server_is_not_told_of_the_beta():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        assert "OpenAI-Beta" not in server.session.request.headers
        assert server.session.request.query["model"] == "gpt-realtime"

    playing(scenario)


def test_a_server_that_refuses_the_key_breaks_the_answer_without_showing_it():
    async def refusing(session):
        await session.error("invalid_api_key", f"Incorrect API key provided: {SECRET}.")
        await session.socket.close(code=3000, message=b"invalid_request_error.invalid_api_key")

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert (broke.status, broke.code) == (502, "upstream_credentials")
        assert SECRET not in broke.message

    playing(scenario, greeting=refusing, place=PLACE, options={"api_key_env": "KEY"})


def test_a_server_that_closes_instead_of_beginning_is_named_with_its_reason():
    async def closing(session):
        await session.socket.close(code=4000, message=b"invalid_request_error.beta_api_shape_disabled")

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert broke.status == 502
        assert "4000: invalid_request_error.beta_api_shape_disabled" in broke.message

    playing(scenario, greeting=closing)


def test_what_a_server_says_of_itself_as_it_closes_is_for_the_operator():
    async def closing(session):
        await session.socket.close(code=1011, message=b"worker 7 on gpu-1 died")

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert "(1011)" in broke.message and "gpu" not in broke.message

    playing(scenario, greeting=closing)


def test_a_server_behind_tls_is_trusted_by_an_authority_that_is_named(certificates):
    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert await heard.end_of() == events.ResponseEnded("resp_1")

    playing(
        scenario,
        tls=served(certificates),
        place=BuildContext(weights_folder=Path(), base_folder=certificates),
        options={"ca_file": "ca.pem"},
    )


def test_a_server_behind_tls_that_nobody_vouches_for_is_not_trusted(certificates):
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        assert "TLS can't be trusted" in (await heard.end_of()).message
        assert not server.sessions

    playing(scenario, tls=served(certificates))


def test_a_server_that_never_begins_its_session_is_given_up():
    async def mute(_session):
        pass

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert (await heard.end_of()).status == 504

    playing(scenario, greeting=mute, options={"timeout_connect_s": 0.2})


def test_a_server_that_sends_nonsense_before_its_session_is_given_up_at_once():
    async def raving(session):
        for _ in range(MAX_MALFORMED_MESSAGES + 1):
            await session.socket.send_str("{")

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert (broke.status, broke.code) == (502, "upstream_malformed")

    playing(scenario, greeting=raving)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_session_that_begins_when_it_was_refused_or_given_up_is_left_alone(is_refused):
    """A timeout can cancel the wait in the loop's turn in which `session.created` was read."""
    created = b'{"type": "session.created", "event_id": "sev_1", "session": {"type": "realtime", "model": "m"}}'
    refusal = b'{"type": "error", "event_id": "sev_2", "error": {"type": "server_error", "code": null, "message": "No.", "param": null}}'
    access = SimpleNamespace(dialect=DIALECTS["ga"], address=lambda _model: ("", {}))

    async def scenario():
        async with asyncio.TaskGroup() as tasks:
            connection = UpstreamConnection(RealtimeUpstreamConversation(access, "m", Heard(), tasks))
            if is_refused:
                connection.on_messages([refusal])
                assert isinstance(connection.session_start.result(), UpstreamError)
            else:
                connection.session_start.cancel()
            connection.on_messages([created, refusal])

    run(scenario())


def test_a_server_that_is_not_there_breaks_the_answer_and_counts():
    async def play():
        watcher, place = watched()
        server = RealtimeServer()
        server.port = 1
        async with asyncio.timeout(20), talking(server, place, failures=2) as (conversation, heard):
            for id in ("resp_1", "resp_2", "resp_3"):
                conversation.send(ask(id))
                broke = await heard.end_of(id)
                assert broke.status in (502, 503)
        assert watcher.failures == ["unreachable", "unreachable", "circuit_open"]
        assert watcher.states == ["closed", "open"]

    run(play())


def test_sound_alone_does_not_dial_again_and_again():
    async def play():
        watcher, place = watched()
        server = RealtimeServer()
        server.port = 1
        async with asyncio.timeout(20), talking(server, place) as (conversation, heard):
            conversation.send(BY_HAND)
            conversation.send(commands.AppendAudio(sound(20)))
            await heard.until(lambda _: of(heard, events.EngineError))
            for _ in range(50):
                conversation.send(commands.AppendAudio(sound(20)))
                await asyncio.sleep(0)
            conversation.send(commands.CommitAudio("turn_1"))
            await heard.until(lambda _: of(heard, events.InputTranscriptFailed))
        assert len(watcher.failures) == 2, "for the first sound, and for the commit"
        assert len(of(heard, events.EngineError)) == 1

    run(play())


def test_a_lost_connection_costs_the_answer_and_the_next_has_all_that_was_said():
    async def scenario(conversation, heard, server):
        conversation.send(BY_HAND)
        conversation.send(commands.AppendAudio(sound(300)))
        conversation.send(commands.CommitAudio("turn_1"))
        conversation.send(ask("resp_1", spoken("turn_1", sound(300))))
        await heard.until(lambda _: of(heard, events.TextDelta) and of(heard, events.InputTranscriptDone))
        await server.cut()
        broke = await heard.end_of()
        assert (broke.status, broke.code) == (502, "upstream_broke_off")
        server.play = hello
        conversation.send(ask("resp_2", spoken("turn_1", sound(300)), answered("Well"), said("Again")))
        assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2")
        assert len(server.sessions) == 2
        assert server.session.texts()[:3] == ["user: input_audio", "assistant: Well", "user: Again"]
        assert server.session.update["transcription"] == {}

    playing(scenario, silent)


def test_a_lost_connection_ends_the_turn_that_is_open_and_the_clock_goes_on():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(500)))
        await heard.until(lambda _: of(heard, events.SpeechStarted))
        await server.cut()
        await heard.until(lambda _: of(heard, events.SpeechStopped))
        assert of(heard, events.SpeechStopped)[0].at_ms == 500
        assert of(heard, events.InputTranscriptFailed)[0].id == of(heard, events.SpeechStopped)[0].id
        conversation.send(commands.AppendAudio(sound(800)))
        await heard.until(lambda _: len(of(heard, events.SpeechStopped)) == 2)
        assert [word.at_ms for word in of(heard, events.SpeechStarted)] == [200, 700]
        assert of(heard, events.SpeechStopped)[1].at_ms == 1200
        assert len({word.id for word in of(heard, events.SpeechStarted)}) == 2

    playing(scenario, turns=[(200, 700)])


def test_sound_that_is_not_committed_yet_is_sent_again_after_a_lost_connection():
    async def scenario(conversation, heard, server):
        conversation.send(BY_HAND)
        conversation.send(commands.AppendAudio(sound(300)))
        await server.until(lambda: server.sessions and server.session.heard)
        await server.cut()
        told_ms = 300
        while len(server.sessions) < 2:  # until it is noticed that there is nobody
            conversation.send(commands.AppendAudio(sound(1)))
            told_ms += 1
            await asyncio.sleep(0)
        conversation.send(commands.CommitAudio("turn_1"))
        await heard.until(lambda _: of(heard, events.InputTranscriptDone))
        assert server.session.heard == sound(told_ms)

    playing(scenario)


def test_a_cancelled_answer_ends_once_and_says_no_more():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.until(lambda _: of(heard, events.TextDelta))
        conversation.send(commands.Cancel("resp_1"))
        conversation.send(commands.Cancel("resp_1"))
        assert await heard.end_of() == events.ResponseEnded("resp_1", "cancelled")
        assert heard.text() == "Well"
        assert server.session.kinds().count("response.cancel") == 1

    playing(scenario, silent)


def test_an_answer_can_be_cancelled_before_it_was_asked_for():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        conversation.send(commands.Cancel("resp_1"))
        assert await heard.end_of() == events.ResponseEnded("resp_1", "cancelled")
        conversation.send(ask("resp_2"))
        assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2")

    playing(scenario)


def test_what_is_asked_after_a_cancelled_answer_waits_for_its_end():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.until(lambda _: of(heard, events.TextDelta))
        server.play = hello
        conversation.send(commands.Cancel("resp_1"))
        conversation.send(ask("resp_2", said("Hi"), answered("Well"), said("No")))
        assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2")
        assert "conversation" not in server.session.asked[-1]["response"]
        assert server.session.texts()[:3] == ["user: Hi", "assistant: ", "user: No"]

    playing(scenario, silent)


@pytest.mark.parametrize(("options", "play"), [({"timeout_idle_s": 0.1}, silent), ({"timeout_first_byte_s": 0.1}, None)])
def test_an_answer_that_does_not_come_or_go_on_breaks_in_time(options, play):
    async def nothing(_answer):
        pass

    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert (broke.status, broke.code) == (504, "upstream_timeout")
        await server.until(lambda: "response.cancel" in server.session.kinds())

    playing(scenario, play or nothing, options=options)


def test_an_item_that_upstream_refuses_breaks_the_answer_that_needs_it():
    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert (broke.status, broke.code) == (400, "invalid_value")

    playing(scenario, refuses=lambda _item: ("invalid_value", "No such content."))


def test_an_error_about_nothing_in_particular_is_trouble():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(20)))
        await server.until(lambda: server.sessions and server.session.asked)
        await server.session.error("invalid_value", "No such model.", server.session.asked[0]["event_id"])
        await heard.until(lambda _: of(heard, events.EngineError))
        assert of(heard, events.EngineError)[0].message == "No such model."

    playing(scenario)


def test_a_paused_conversation_reads_no_more_until_it_is_resumed():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.until(lambda _: of(heard, events.TextDelta))
        conversation.pause()
        (answer,) = server.answering
        await answer.say(" now")
        for _ in range(20):
            await asyncio.sleep(0)
        assert heard.text() == "Well"
        conversation.resume()
        await heard.until(lambda _: heard.text() == "Well now")

    playing(scenario, silent)


def test_more_than_there_is_room_for_is_not_taken():
    async def mute(_session):
        pass

    async def scenario(conversation, _heard, _server):
        conversation.send(commands.AppendAudio(bytes(9 << 20)))
        conversation.send(commands.AppendAudio(bytes(9 << 20)))
        with pytest.raises(EngineOverrun):
            conversation.send(commands.AppendAudio(b"\0\0"))

    playing(scenario, greeting=mute)


def test_without_a_connection_there_is_no_room_for_endless_small_commands():
    async def mute(_session):
        pass

    async def scenario(conversation, _heard, _server):
        conversation.send(commands.AppendAudio(bytes(2)))
        with pytest.raises(EngineOverrun):
            for _ in range(1 << 17):
                conversation.send(commands.CommitAudio("turn_1"))

    playing(scenario, greeting=mute)


def test_an_engine_that_stops_breaks_its_answers():
    async def play():
        async with asyncio.timeout(20), RealtimeServer(silent).open() as server:
            engine, heard = engine_before(server), Heard()
            async with engine.open(ConversationSettings(model="m"), heard) as conversation:
                conversation.send(ask("resp_1"))
                await heard.until(lambda _: of(heard, events.TextDelta))
                await engine.stop()
                assert (await heard.end_of()).code == "server_shutting_down"
                conversation.send(ask("resp_2"))
                assert isinstance(await heard.end_of("resp_2"), events.ResponseFailed)
                conversation.send(commands.AppendAudio(sound(20)))
            assert len(server.sessions) == 1

    run(play())


def test_leaving_closes_the_connection_in_good_order():
    async def play():
        async with asyncio.timeout(20), RealtimeServer(silent).open() as server:
            async with talking(server) as (conversation, heard):
                conversation.send(ask("resp_1"))
                await heard.until(lambda _: of(heard, events.TextDelta))
            count = len(heard.words)
            await server.until(lambda: server.session.socket.closed)
            assert server.session.socket.close_code == 1000
            assert len(heard.words) == count

    run(play())


def test_only_so_many_conversations_are_connected_at_once():
    async def play():
        async with asyncio.timeout(20), RealtimeServer().open() as server:
            engine = engine_before(server, concurrency=1, queue=1)
            heard = Heard()
            settings = ConversationSettings(model="m")
            async with engine.open(settings, heard) as first, engine.open(settings, heard) as second, engine.open(settings, heard) as third:
                first.send(ask("resp_1"))
                await heard.end_of()
                second.send(ask("resp_2"))
                with pytest.raises(EngineOverrun):
                    third.send(ask("resp_3"))
                second.send(commands.Cancel("resp_2"))
                assert await heard.end_of("resp_2") == events.ResponseEnded("resp_2", "cancelled")
            await engine.stop()
            assert len(server.sessions) == 1

    run(play())


def test_the_models_upstream_are_listed():
    async def play():
        async with asyncio.timeout(20), RealtimeServer().open() as server:
            engine = engine_before(server)
            assert await engine.list_models() == ("gpt-realtime",)
            await engine.stop()

    run(play())


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://x"},
        {"base_url": "ws://x/v1", "dialect": "gamma"},
        {"base_url": "ws://x/v1", "abilities": {"sings": True}},
        {"base_url": "ws://x/v1", "voice": "marin"},
        {},
    ],
)
def test_a_wrong_option_is_refused_at_the_start(options):
    with pytest.raises(ServerError, match="odel 'm'"):
        build("m", options, PLACE)
