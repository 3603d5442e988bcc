"""An engine in front of a Realtime server: input audio, turns, transcripts, clocks."""

import struct

import pytest

from antiphon.audio import encode_ulaw
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Voice
from support.engines.realtime_server import BY_HAND, LISTEN, answered, as_said, ask, hello, of, playing, said, sound, spoken, voice_of

both = pytest.mark.parametrize("dialect", ["ga", "beta"])


@both
def test_a_turn_starts_and_stops_where_the_upstream_says_and_its_words_follow(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        for _ in range(10):
            conversation.send(commands.AppendAudio(sound(100)))
        await heard.until(lambda _: of(heard, events.InputTranscriptDone))
        (started,), (stopped,) = of(heard, events.SpeechStarted), of(heard, events.SpeechStopped)
        assert (started.at_ms, stopped.at_ms, started.id) == (200, 700, stopped.id)
        assert of(heard, events.InputTranscriptDelta, events.InputTranscriptDone) == [
            events.InputTranscriptDelta(started.id, "good "),
            events.InputTranscriptDone(id=started.id, transcript="good day", input_tokens=5, input_audio_tokens=4, output_tokens=2),
        ]
        assert server.session.heard == sound(1000)

    playing(scenario, turns=[(200, 700)], dialect=dialect)


def test_the_upstream_is_told_how_to_listen_and_never_to_answer_by_itself():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(100)))
        await server.until(lambda: server.session.heard if server.sessions else None)
        assert server.session.update["turn_detection"] == {
            "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 200,
            "create_response": False, "interrupt_response": False,
        }  # fmt: skip
        assert server.session.update["transcription"] == {"model": "whisper-1"}
        assert server.session.update["format"] == {"type": "audio/pcm", "rate": 24000}

    playing(scenario)


def test_nothing_is_dialled_before_there_is_something_to_say():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.ClearAudio())
        conversation.send(commands.Cancel("resp_none"))
        assert not heard.words
        conversation.send(ask("resp_1"))
        await heard.end_of()
        assert len(server.sessions) == 1

    playing(scenario)


def test_a_turn_that_was_heard_is_answered_from_the_upstreams_own_item():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(800)))
        await heard.until(lambda _: of(heard, events.SpeechStopped))
        turn_id = of(heard, events.SpeechStopped)[0].id
        conversation.send(ask("resp_1", spoken(turn_id)))
        await heard.end_of()
        conversation.send(ask("resp_2", spoken(turn_id, transcript="good day"), answered("Hello there."), said("And?")))
        await heard.end_of("resp_2")
        assert server.session.kinds().count("conversation.item.create") == 1, "that is the question in writing"
        assert server.session.texts() == ["user: input_audio", "assistant: ", "user: And?", "assistant: "]

    playing(scenario, turns=[(200, 700)])


@both
def test_a_turn_committed_by_hand_is_answered_at_once(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(BY_HAND)
        conversation.send(commands.AppendAudio(sound(300)))
        conversation.send(commands.CommitAudio("turn_1"))
        conversation.send(ask("resp_1", spoken("turn_1")))
        await heard.end_of()
        assert server.session.texts() == ["user: input_audio", "assistant: "]
        assert of(heard, events.InputTranscriptDone)[0].id == "turn_1"
        assert not of(heard, events.SpeechStarted, events.SpeechStopped)

    playing(scenario, dialect=dialect)


def test_a_turn_that_is_open_can_be_committed_by_hand():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(400)))
        await heard.until(lambda _: of(heard, events.SpeechStarted))
        turn_id = of(heard, events.SpeechStarted)[0].id
        conversation.send(commands.CommitAudio(turn_id))
        conversation.send(ask("resp_1", spoken(turn_id)))
        await heard.end_of()
        assert server.session.texts() == ["user: input_audio", "assistant: "]
        assert of(heard, events.InputTranscriptDone)[0].id == turn_id
        assert not of(heard, events.SpeechStopped)

    playing(scenario, turns=[(200, 700)])


def test_nothing_more_is_said_of_a_turn_that_was_dropped():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(400)))
        await heard.until(lambda _: of(heard, events.SpeechStarted))
        conversation.send(commands.ClearAudio())
        conversation.send(ask("resp_1"))
        await heard.end_of()
        assert "input_audio_buffer.clear" in server.session.kinds()
        assert not of(heard, events.SpeechStopped, events.InputTranscriptDone, events.InputTranscriptFailed)

    playing(scenario, turns=[(200, 700)])


def test_a_turn_that_the_session_dropped_too_late_is_deleted_upstream():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(400)))
        await heard.until(lambda _: of(heard, events.SpeechStarted))
        conversation.send(commands.AppendAudio(sound(400)))  # upstream, the turn is over
        conversation.send(commands.ClearAudio())
        conversation.send(ask("resp_1"))
        await heard.end_of()
        conversation.send(ask("resp_2", said("Hi"), answered("Hello there.")))
        await heard.end_of("resp_2")
        assert server.session.texts()[:2] == ["user: Hi", "assistant: "]

    playing(scenario, turns=[(200, 700)])


def test_what_upstream_fails_to_write_down_is_not_heard():
    async def failing(session, item_id):
        error = {"type": "server_error", "code": "audio_unintelligible", "message": "It is noise."}
        place = {"item_id": item_id, "content_index": 0}
        await session.send("conversation.item.input_audio_transcription.failed", error=error, **place)
        await as_said(session, item_id)  # and once more, in vain

    async def scenario(conversation, heard, _server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(800)))
        await heard.until(lambda _: of(heard, events.InputTranscriptFailed))
        conversation.send(ask("resp_1"))
        await heard.end_of()
        (missed,) = of(heard, events.InputTranscriptFailed, events.InputTranscriptDone)
        assert (missed.code, missed.message) == ("audio_unintelligible", "It is noise.")

    playing(scenario, turns=[(200, 700)], transcribe=failing)


def test_a_commit_that_upstream_refuses_is_not_heard_and_its_sound_is_sent_as_an_item():
    async def scenario(conversation, heard, server):
        conversation.send(BY_HAND)
        conversation.send(commands.CommitAudio("turn_1"))
        await heard.until(lambda _: of(heard, events.InputTranscriptFailed))
        conversation.send(ask("resp_1", spoken("turn_1", sound(50))))
        await heard.end_of()
        assert server.session.texts() == ["user: input_audio", "assistant: "]
        assert not of(heard, events.EngineError)

    playing(scenario)


@both
def test_the_telephone_is_spoken_to_in_its_own_code(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(commands.Configure(rate_hz=8000))
        conversation.send(commands.AppendAudio(b"\x10\x20" * 800))
        conversation.send(ask("resp_1", voice=Voice(rate_hz=8000)))
        await heard.end_of()
        assert server.session.heard == encode_ulaw(b"\x10\x20" * 800)
        pcm = b"".join(word.pcm for word in of(heard, events.AudioDelta))
        assert len(pcm) == 2 * len(voice_of(2)), "a byte upstream is a sample here"

    playing(scenario, dialect=dialect)


@both
def test_sound_at_a_rate_that_servers_do_not_take_is_sent_at_the_one_they_do(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(commands.Configure(rate_hz=16_000))
        conversation.send(commands.AppendAudio(struct.pack("<4h", 0, 300, 600, -300)))
        conversation.send(ask("resp_1"))
        await heard.end_of()
        assert struct.unpack("<6h", server.session.heard) == (0, 200, 400, 600, 0, -300)
        assert not of(heard, events.EngineError)

    playing(scenario, dialect=dialect)


def test_sound_that_was_not_heard_here_is_sent_as_an_item():
    async def scenario(conversation, heard, server):
        conversation.send(
            ask("resp_1", history.Message("user", (history.SpeechPart(sound(100), 24_000), history.TextPart("What is that?"))))
        )
        await heard.end_of()
        assert server.session.texts()[0] == "user: input_audio What is that?"

    playing(scenario)


def test_detection_can_be_switched_off_in_the_middle_of_a_turn():
    async def scenario(conversation, heard, server):
        conversation.send(LISTEN)
        conversation.send(commands.AppendAudio(sound(400)))
        await heard.until(lambda _: of(heard, events.SpeechStarted))
        conversation.send(BY_HAND)
        conversation.send(commands.AppendAudio(sound(400)))
        conversation.send(commands.CommitAudio("turn_1"))
        await heard.until(lambda _: of(heard, events.InputTranscriptDone))
        assert of(heard, events.InputTranscriptDone)[0].id == "turn_1"
        assert not of(heard, events.SpeechStopped)

    playing(scenario, hello, turns=[(200, 700)])
