"""How a scripted engine speaks: words before their audio, with its duration, or a recording."""

import asyncio
import struct

import pytest

from antiphon.audio import duration_ms, peak, wav_file
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Voice
from antiphon.errors import ServerError
from support.engines.hearings import RATE_HZ, ask, engine, noise, quiet, telling

VOICE = Voice(rate_hz=RATE_HZ)


def told(scripted, question):
    async def play():
        async with telling(scripted, question) as said:
            return await said.ended(question.id)

    return asyncio.run(play())


def saying(*lines, base=None, voice=VOICE, **script):
    scripted = engine(**({} if base is None else {"base": base}), answers=[{"lines": list(lines)}], **script)
    return told(scripted, ask("go", voice=voice))


def sound(said):
    return b"".join(word.pcm for word in said if isinstance(word, events.AudioDelta))


def words(said):
    return [word.text for word in said if isinstance(word, events.AudioTranscriptDelta)]


def sound_by_word(said):
    """Pairs of a word and how long its sound is, in milliseconds."""
    heard = []
    for word in said:
        if isinstance(word, events.AudioTranscriptDelta):
            heard.append([word.text, 0])
        elif isinstance(word, events.AudioDelta):
            heard[-1][1] += duration_ms(len(word.pcm), RATE_HZ)
    return [tuple(pair) for pair in heard]


def test_words_are_spoken_each_before_its_sound_60_ms_a_character():
    said = saying({"text": "Hi there."})
    assert sound_by_word(said) == [("Hi", 120), (" there.", 420)]
    assert not [word for word in said if isinstance(word, events.TextDelta)]
    assert all(
        len(word.pcm) % 2 == 0 and duration_ms(len(word.pcm), RATE_HZ) <= 100 for word in said if isinstance(word, events.AudioDelta)
    )


def test_the_tone_is_soft_and_always_the_same():
    one, other = (sound(saying({"text": "Hello"})) for _ in range(2))
    assert one == other
    assert peak(one) == 3277


@pytest.mark.parametrize(("rate_hz", "speed", "ms"), [(8_000, 1.0, 300), (16_000, 1.5, 200), (24_000, 0.25, 1200)])
def test_the_voice_has_its_rate_and_its_speed(rate_hz, speed, ms):
    said = saying({"text": "Hello"}, voice=Voice(rate_hz=rate_hz, speed=speed))
    assert duration_ms(len(sound(said)), rate_hz) == ms


def test_a_tone_without_words_is_as_long_as_it_is_told_to_be():
    said = saying({"aloud_ms": 1500})
    assert duration_ms(len(sound(said)), RATE_HZ) == 1500
    assert words(said) == []


def test_in_writing_there_is_no_sound(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav_file(noise(100), RATE_HZ))
    said = saying({"text": "One"}, {"aloud_ms": 500}, {"text": " two", "sound": "a.wav"}, {"sound": "a.wav"}, base=tmp_path, voice=None)
    assert [type(word) for word in said] == [events.TextDelta, events.TextDelta, events.Usage, events.ResponseEnded]


def test_a_recording_is_played_as_it_is_and_its_words_are_spread_over_it(tmp_path):
    pcm = quiet(100) + noise(300)
    (tmp_path / "a.wav").write_bytes(wav_file(pcm, RATE_HZ))
    said = saying({"sound": "a.wav"}, base=tmp_path)
    assert sound(said) == pcm
    said = saying({"sound": "a.wav", "text": "ten of clubs and spades"}, base=tmp_path)
    assert sound(said) == pcm
    assert sound_by_word(said) == [("ten", 80), (" of", 80), (" clubs", 80), (" and", 80), (" spades", 80)]


def test_a_recording_at_another_rate_is_stretched_to_the_voices(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav_file(struct.pack("<4h", 0, 100, 200, 300), 12_000))
    said = saying({"sound": "a.wav"}, base=tmp_path)
    assert struct.unpack("<8h", sound(said)) == (0, 50, 100, 150, 200, 250, 300, 300)
    said = saying({"sound": "a.wav"}, base=tmp_path, voice=Voice(rate_hz=12_000, speed=2))
    assert struct.unpack("<2h", sound(said)) == (0, 200)


def test_a_recording_stands_beside_the_script_that_names_it(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "a.wav").write_bytes(wav_file(noise(20), RATE_HZ))
    (tmp_path / "scripts" / "s.toml").write_text('answers = [{ lines = [{ sound = "a.wav" }] }]')
    assert sound(told(engine(tmp_path, script="scripts/s.toml"), ask("go", voice=VOICE))) == noise(20)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (None, "can't be read"),
        (b"RIFF", "playable WAV file"),
        (b"not sound at all, but long enough", "playable WAV file"),
        (wav_file(b"abcd", 8_000).replace(b"\x01\x00\x01\x00", b"\x01\x00\x02\x00", 1), "not 16 bits mono"),
    ],
)
def test_a_recording_that_cannot_be_played_is_refused_by_name(tmp_path, file, named):
    if file is not None:
        (tmp_path / "a.wav").write_bytes(file)
    with pytest.raises(ServerError, match=rf"a\.wav.*{named}"):
        saying({"sound": "a.wav"}, base=tmp_path)


def test_what_is_not_said_aloud_is_as_in_writing():
    said = saying(
        {"reasoning": "hm"},
        {"text": "One"},
        {"call": "note", "input": "x"},
        {"wait_ms": 1},
        {"refusal": "No."},
        {"finish_reason": "length"},
    )
    kinds = [type(word).__name__ for word in said if not isinstance(word, events.AudioDelta)]
    assert kinds == [
        "ReasoningDelta",
        "AudioTranscriptDelta",
        "ToolCallStarted",
        "ToolArgumentsDelta",
        "ToolCallDone",
        "RefusalDelta",
        "Usage",
        "ResponseEnded",
    ]
    assert said[-1].reason == "length"


def test_a_failure_cuts_the_speech_off():
    said = saying({"text": "One"}, {"failure": {"message": "Lost my voice."}}, {"text": "two"})
    assert words(said) == ["One"]
    assert said[-1].message == "Lost my voice."


def test_trouble_is_told_and_the_answer_goes_on():
    async def play():
        scripted = engine(answers=[{"lines": [{"text": "One"}, {"error": {"message": "A crackle."}}, {"text": "two"}]}])
        async with telling(scripted, ask("go", voice=VOICE)) as said:
            await said.ended()
            return said.words

    said = asyncio.run(play())
    assert events.EngineError(message="A crackle.") in said
    assert words(said) == ["One", "two"]


def test_speech_keeps_the_pace_and_stops_while_the_client_is_behind():
    async def play():
        scripted = engine(pace_ms=0.1, answers=[{"say": "one two"}])
        async with telling(scripted, ask("go", voice=VOICE)) as said:
            said.conversation.pause()
            await said.settle()
            assert said.words == []
            said.conversation.resume()
            await said.ended()
            return said.deliveries

    assert all(len(delivery) == 1 for delivery in asyncio.run(play())[:-1])


def test_a_cancelled_speech_ends_as_cancelled():
    async def play():
        scripted = engine(pace_ms=1, answers=[{"lines": [{"text": "la ", "repeat": 100_000}]}])
        async with telling(scripted, ask("sing", voice=VOICE)) as said:
            await said.until(lambda: sound(said.words))
            said.send(commands.Cancel("resp_1"))
            return await said.ended()

    said = asyncio.run(play())
    assert said[-1] == events.ResponseEnded("resp_1", "cancelled")


def test_sound_costs_a_token_for_100_ms_heard_and_50_ms_said():
    speech = history.SpeechPart(quiet(1230), RATE_HZ, None, "never counted")
    said = told(engine(answers=[{"say": "Hello"}]), ask("three words more", speech, voice=VOICE))
    assert said[-2] == events.Usage(id="resp_1", input_tokens=3 + 13, output_tokens=1 + 6, input_audio_tokens=13, output_audio_tokens=6)


def test_a_script_claims_tokens_of_sound_too():
    claimed = {"input_tokens": 9, "input_audio_tokens": 5, "cached_audio_tokens": 4, "output_audio_tokens": 3}
    usage = saying({"usage": claimed}, {"text": "Hello"})[-2]
    assert (usage.input_audio_tokens, usage.cached_audio_tokens, usage.output_audio_tokens) == (5, 4, 3)
