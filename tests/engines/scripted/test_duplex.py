"""Scripted full duplex: which event comes at which chunk of audio."""

import asyncio

import pytest

from antiphon.audio import wav_file
from antiphon.engine_api import commands, events
from antiphon.engine_api.options import Voice
from antiphon.engines.scripted.voice import tone
from support.engines.duplexes import RATE_HZ, TURN_END, VOICE_HZ, performed, piece
from support.engines.hearings import engine, noise, quiet, telling

LISTENING = events.Listening()
READY = events.DuplexStarted()


def toned(ms):
    return tone(ms, Voice())


def test_it_is_ready_and_listens():
    async def scenario(duet):
        await duet.pieces(2)

    assert performed(engine(), scenario).words == [READY, LISTENING, LISTENING]


def test_it_says_at_a_piece_what_the_script_says():
    async def scenario(duet):
        await duet.pieces(4)

    says = [{"at": 2, "lines": [{"metrics": {"n": 1}}, {"text": "Hi"}, {"wait_ms": 1000}, {"text": " there"}]}]
    words = performed(engine(duplex={"says": says}), scenario, commands.StartDuplex(voice=None)).words
    assert words[:4] == [READY, LISTENING, events.EngineMetrics("duplex_1", {"n": 1}), events.TextDelta("duplex_1", "Hi")]
    assert words[4] == events.TextDelta("duplex_1", " there")
    used, *rest = words[5:]
    assert used.output_tokens == 2
    assert rest == [events.ResponseEnded("duplex_1"), LISTENING, LISTENING]


def test_what_is_said_aloud_takes_as_long_as_it_sounds():
    async def scenario(duet):
        await duet.pieces(1, ms=500)
        assert duet.kinds() == ["DuplexStarted", "AudioTranscriptDelta", *["AudioDelta"] * 5]
        await duet.pieces(1, ms=300)
        assert duet.sound_ms() == 800
        await duet.pieces(1, ms=1000)
        assert duet.kinds()[-3:] == ["Usage", "ResponseEnded", "Listening"]
        assert b"".join(word.pcm for word in duet.words if isinstance(word, events.AudioDelta)) == toned(1000)

    performed(engine(duplex={"says": [{"at": 1, "lines": [{"text": "Hello", "aloud_ms": 1000}]}]}), scenario)


def test_a_turn_is_answered_as_the_script_answers_it():
    async def scenario(duet):
        await duet.hear(TURN_END)
        await duet.pieces(3)

    script = {"hears": [{"says": "weather?"}], "answers": [{"when": "weather", "lines": [{"text": "Rain", "aloud_ms": 700}]}]}
    duet = performed(engine(**script), scenario)
    assert duet.kinds() == [
        "DuplexStarted",
        "InputTranscriptDone",
        "AudioTranscriptDelta",
        *["AudioDelta"] * 7,
        "Usage",
        "ResponseEnded",
        *["Listening"] * 4,
    ]
    (used,) = [word for word in duet.words if isinstance(word, events.Usage)]
    assert used.input_audio_tokens == 8
    assert used.output_audio_tokens == 14


def test_whoever_speaks_cuts_it_short():
    async def scenario(duet):
        await duet.pieces(2)
        await duet.hear(noise(500, rate_hz=RATE_HZ))

    duet = performed(engine(duplex={"says": [{"at": 1, "lines": [{"aloud_ms": 5000}]}]}), scenario)
    assert duet.sound_ms() == 2000
    assert duet.words[-2:] == [events.ResponseEnded("duplex_1", "cancelled"), LISTENING]


def test_told_to_listen_it_falls_silent_and_answers_after():
    async def scenario(duet):
        await duet.pieces(1)
        duet.send(commands.ForceListen())
        await duet.hear(TURN_END)
        assert duet.words[-2:] == [events.ResponseEnded("duplex_1", "cancelled"), LISTENING]
        await duet.pieces(1)
        assert events.TextDelta("duplex_2", "Yes") in duet.words

    script = {"answers": [{"say": "Yes"}], "duplex": {"says": [{"at": 1, "lines": [{"text": "a"}, {"wait_ms": 5000}]}]}}
    performed(engine(**script), scenario, commands.StartDuplex(voice=None))


def test_the_pictures_that_were_seen_are_counted():
    async def scenario(duet):
        duet.send(commands.AppendImage(b"jpeg"), commands.AppendImage(b"jpeg"))
        await duet.hear(TURN_END)

    assert events.EngineMetrics("duplex_1", {"vision_slices": 2}) in performed(engine(), scenario).words


def test_an_answer_that_breaks_is_followed_by_listening():
    async def scenario(duet):
        await duet.pieces(2)

    lines = [{"text": "a"}, {"failure": {"message": "no"}}]
    words = performed(engine(duplex={"says": [{"at": 1, "lines": lines}]}), scenario, commands.StartDuplex(voice=None)).words
    assert words == [READY, events.TextDelta("duplex_1", "a"), events.ResponseFailed(id="duplex_1", message="no"), LISTENING, LISTENING]


# Workers that fail, or take their time


def test_what_comes_before_it_is_ready_waits():
    async def scenario(duet):
        duet.send(piece(), piece())
        await duet.settle()
        assert duet.words == []
        await duet.until(lambda: len(duet.words) == 3)
        assert duet.words == [events.DuplexStarted({"backend": "scripted"}), LISTENING, LISTENING]

    performed(engine(duplex={"ready_ms": 50, "metrics": {"backend": "scripted"}}), scenario)


def test_a_worker_may_refuse():
    async def scenario(duet):
        await duet.until(lambda: duet.words)
        await duet.pieces(2)
        assert duet.words == [events.EngineLost(code="worker_busy", message="No.")]

    performed(engine(duplex={"lost": {"code": "worker_busy", "message": "No."}}), scenario)


def test_a_worker_may_die_in_the_middle_of_an_answer():
    async def scenario(duet):
        await duet.pieces(4)

    script = {"says": [{"at": 2, "lines": [{"text": "a"}, {"wait_ms": 9000}]}], "lost": {"at": 3}}
    words = performed(engine(duplex=script), scenario, commands.StartDuplex(voice=None)).words
    assert [type(word).__name__ for word in words] == ["DuplexStarted", "Listening", "TextDelta", "ResponseFailed", "EngineLost"]
    assert words[-1].code == "backend_error"


def test_a_slow_worker_works_on_one_piece_after_another():
    async def scenario(duet):
        duet.send(*[piece()] * 3)
        await duet.settle()
        assert duet.words == [READY]
        await duet.until(lambda: len(duet.words) == 4)
        assert len(duet.deliveries) == 4

    performed(engine(duplex={"piece_ms": 5}), scenario)


@pytest.mark.parametrize("ms", [20, 100, 1000])
def test_pieces_of_any_length_give_the_same_answer(ms):
    async def scenario(duet):
        pcm = noise(600, rate_hz=RATE_HZ) + quiet(5400, RATE_HZ)
        size = RATE_HZ * ms // 1000 * 2
        await duet.hear(*(pcm[at : at + size] for at in range(0, len(pcm), size)))
        assert b"".join(word.pcm for word in duet.words if isinstance(word, events.AudioDelta)) == tone(1500, Voice(rate_hz=VOICE_HZ))
        assert duet.kinds().count("ResponseEnded") == 1

    performed(engine(answers=[{"lines": [{"aloud_ms": 1500}]}]), scenario)


def test_a_client_that_is_behind_is_waited_for():
    async def scenario(duet):
        await duet.settle()
        duet.conversation.pause()
        await duet.pieces(2)
        assert duet.words == [READY]
        duet.conversation.resume()
        await duet.settle()
        assert duet.words == [READY, LISTENING, LISTENING]

    performed(engine(), scenario)


def test_nothing_is_said_once_it_is_left():
    async def scenario(duet):
        duet.send(piece())

    duet = performed(engine(duplex={"ready_ms": 10_000}), scenario)
    assert duet.words == []


def test_pictures_and_the_word_to_listen_are_nothing_before_full_duplex_has_begun():
    async def play():
        async with telling(engine(), commands.AppendImage(b"jpeg"), commands.ForceListen()) as told:
            await told.settle()
            return told.words

    assert asyncio.run(play()) == []


def test_who_does_not_listen_does_no_full_duplex():
    assert engine().capabilities.full_duplex
    assert not engine(abilities={"listens": False}).capabilities.full_duplex


def test_a_recording_can_be_said_of_its_own_accord(tmp_path):
    async def scenario(duet):
        await duet.pieces(2)

    (tmp_path / "hello.wav").write_bytes(wav_file(noise(500, rate_hz=VOICE_HZ), VOICE_HZ))
    script = {"says": [{"at": 1, "lines": [{"sound": "hello.wav", "text": "Hello"}]}]}
    duet = performed(engine(tmp_path, duplex=script), scenario)
    assert b"".join(word.pcm for word in duet.words if isinstance(word, events.AudioDelta)) == noise(500, rate_hz=VOICE_HZ)
