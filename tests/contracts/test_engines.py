"""What every engine promises, whatever answers: the contract of `engines/base.py`."""

import asyncio

import pytest

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Sampling, Transcription, TurnDetection, Voice
from antiphon.errors import shutting_down
from antiphon.runtime.core.engine_types import ENGINES
from support.contracts.engines import BUZZ, DEAF, RATE_HZ, conversing, of, recording, with_engine

CASES = [
    pytest.param("scripted", {"pace_ms": 1}, id="scripted"),
    pytest.param("scripted", {}, id="scripted-at-once"),
    pytest.param("chat", {"quirks": "generic"}, id="chat"),
    pytest.param("responses", {}, id="responses"),
    pytest.param("balanced", {"quirks": "generic"}, id="balanced"),
    pytest.param("fallback", {"quirks": "generic", "fallback": ["other"]}, id="fallback"),
    pytest.param("realtime", {"model": "slow"}, id="realtime"),
    pytest.param("realtime", {"dialect": "beta"}, id="realtime-beta"),
    pytest.param("worker", {"pace_ms": 1}, id="worker"),
    pytest.param("worker", {}, id="worker-at-once"),
    pytest.param("omni", {}, id="omni"),
    pytest.param("local", {"context": 1024}, id="local", marks=pytest.mark.weights),
    pytest.param("child", {"context": 1024}, id="child", marks=pytest.mark.weights),
]


def ask(id, text="Count from one to a hundred in words.", **more):
    more.setdefault("sampling", Sampling(max_tokens=24))
    return commands.Respond(id=id, history=(history.Message("user", (history.TextPart(text),)),), **more)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_answer_has_one_end_and_its_words_carry_its_id(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
            tell(ask("resp_2"))
            for id in ("resp_1", "resp_2"):
                assert (await listener.end_of(id)).reason in ("stop", "length")
            for id in ("resp_1", "resp_2"):
                said = [word for word in listener.words if word.id == id]
                assert len(listener.ends(id)) == 1
                assert said[-1] is listener.ends(id)[0], "the end comes last"
                assert "".join(word.text for word in said if isinstance(word, events.TextDelta)).strip()
                (used,) = (word for word in said if isinstance(word, events.Usage))
                assert used.input_tokens > 0
                assert used.output_tokens > 0

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_cancelled_answer_ends_as_cancelled_or_had_ended_before(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=Sampling(max_tokens=500)))
            tell(commands.Cancel("resp_1"))
            await listener.end_of("resp_1")
            tell(ask("resp_2"))
            await listener.until(lambda words: any(word.id == "resp_2" for word in words))
            tell(commands.Cancel("resp_2"))
            tell(commands.Cancel("resp_2"))
            tell(commands.Cancel("resp_never"))
            await listener.end_of("resp_2")
            tell(ask("resp_3"))
            assert (await listener.end_of("resp_3")).reason in ("stop", "length")
            assert [len(listener.ends(id)) for id in ("resp_1", "resp_2", "resp_3", "resp_never")] == [1, 1, 1, 0]

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_answer_goes_on_under_its_id_when_its_tools_have_run(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, conversation, tell):
            is_asked_again = False

            def ask_again(words):
                nonlocal is_asked_again
                listener.collect(words)
                if listener.ends("resp_1") and not is_asked_again:
                    is_asked_again = True  # in the call stack of the last event, as a tool without work does
                    tell(ask("resp_1", "And now from a hundred to one.", sampling=Sampling(max_tokens=500)))

            listener.take = ask_again
            tell(ask("resp_1"))
            await listener.until(lambda _: is_asked_again)
            conversation.pause()
            conversation.resume()
            before = len(listener.words)
            await listener.until(lambda words: any(isinstance(word, events.TextDelta) for word in words[before:]))
            tell(commands.Cancel("resp_1"))
            await listener.until(lambda _: len(listener.ends("resp_1")) == 2)
            assert listener.ends("resp_1")[1].reason in ("stop", "length", "cancelled")

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_leaving_a_conversation_delivers_nothing_more(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1"))
        count = len(listener.words)
        async with conversing(engine) as (other, _, tell):
            tell(ask("resp_2"))
            await other.end_of("resp_2")
        assert len(listener.words) == count

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_paused_conversation_goes_on_when_it_is_resumed(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, conversation, tell):
            conversation.pause()
            tell(ask("resp_1"))
            conversation.resume()
            assert (await listener.end_of("resp_1")).reason in ("stop", "length")

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_engine_that_stops_fails_what_it_was_saying_so_that_clients_try_again(name, options):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(ask("resp_1", sampling=Sampling(max_tokens=500)))
            await listener.until(lambda words: words)
            await engine.stop()
            end = await listener.end_of("resp_1")
            had_ended = isinstance(end, events.ResponseEnded) and end.reason in ("stop", "length")
            assert had_ended or end == events.ResponseFailed.from_error("resp_1", shutting_down())

    with_engine(name, options, scenario, is_shared=False)


def test_every_engine_is_held_to_the_contract():
    known = {case.values[0] for case in CASES} - {"child", "balanced", "fallback"}
    assert known == set(ENGINES) - {"embeddings"}, "which answers nothing"


# Engines that listen, and those that speak


SILENCE = bytes(size_bytes(1000, RATE_HZ))

LIVE_CASES = [
    pytest.param("scripted", {}, BUZZ, id="scripted"),
    pytest.param("scripted", {"pace_ms": 1}, BUZZ, id="scripted-paced"),
    pytest.param("realtime", {"model": "slow"}, BUZZ, id="realtime"),
    pytest.param("realtime", {"dialect": "beta"}, BUZZ, id="realtime-beta"),
    pytest.param("worker", {"pace_ms": 1}, BUZZ, id="worker"),
    pytest.param("cascade", {"abilities": DEAF}, recording("cards_001"), id="cascade", marks=pytest.mark.weights),
]
"""Each with half a second or more of speech that the engine knows for speech: s16le at 24 kHz."""

LISTEN = commands.Configure(rate_hz=RATE_HZ, turn_detection=TurnDetection(), transcription=Transcription())
BY_HAND = commands.Configure(rate_hz=RATE_HZ, transcription=Transcription())
VOICE = Voice(rate_hz=RATE_HZ)


async def say(tell, *sounds):
    """Tell the sound in pieces of 20 ms, each when the one before has been taken."""
    pcm = b"".join(sounds)
    size = size_bytes(20, RATE_HZ)
    for start in range(0, len(pcm), size):
        tell(commands.AppendAudio(pcm[start : start + size]))
        await asyncio.sleep(0)


def transcribed(words):
    """The ids of the turns whose transcripts are over."""
    return [word.id for word in of(words, events.InputTranscriptDone, events.InputTranscriptFailed)]


def check_turns(words, dropped=()):
    """Speech starts and stops by turns, its clock runs forward, a transcript is over once. Turns in `dropped` were ended from without."""
    open_id, clock_ms, begun = None, 0, set()
    for word in of(words, events.SpeechStarted, events.SpeechStopped):
        assert word.at_ms >= clock_ms
        clock_ms = word.at_ms
        if isinstance(word, events.SpeechStarted):
            assert open_id is None or open_id in dropped, "a turn starts when the one before is over"
            assert word.id not in begun, "every turn has an id of its own"
            open_id = word.id
            begun.add(word.id)
        else:
            assert word.id == open_id
            open_id = None
    over = []
    for word in of(
        words, events.InputTranscriptDelta, events.InputTranscriptSegment, events.InputTranscriptDone, events.InputTranscriptFailed
    ):
        assert word.id not in over, "nothing is heard of a turn whose transcript is over"
        if isinstance(word, events.InputTranscriptDone | events.InputTranscriptFailed):
            over.append(word.id)


def check_spoken(said):
    """Sound is whole samples, and words stand before the sound that they are heard in."""
    aloud = of(said, events.AudioTranscriptDelta, events.AudioDelta)
    assert all(word.pcm and len(word.pcm) % 2 == 0 for word in of(aloud, events.AudioDelta))
    assert isinstance(aloud[0], events.AudioTranscriptDelta)
    assert isinstance(aloud[-1], events.AudioDelta)
    assert not of(said, events.TextDelta), "what is spoken is not written too"


def live(name, options, scenario):
    async def listened(engine):
        assert engine.capabilities.listens
        async with conversing(engine) as (listener, conversation, tell):
            await scenario(listener, conversation, tell)

    with_engine(name, options, listened)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_turns_start_and_stop_in_order_and_each_is_transcribed_once(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, SILENCE, speech, SILENCE, speech, SILENCE)
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words)
        stopped = of(listener.words, events.SpeechStopped)
        assert transcribed(listener.words) == [word.id for word in stopped]
        first, second = of(listener.words, events.SpeechStarted)
        speech_ms = duration_ms(len(speech), RATE_HZ)
        assert 0 <= first.at_ms <= 1000 + speech_ms, "the clock is the sound's, not the wall's"
        assert stopped[0].at_ms <= second.at_ms <= stopped[1].at_ms <= 3000 + 2 * speech_ms

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_several_turns_in_one_piece_of_sound_all_come_out(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        tell(commands.AppendAudio((speech + SILENCE) * 3))
        await listener.until(lambda words: len(transcribed(words)) == 3)
        check_turns(listener.words)
        assert len(of(listener.words, events.SpeechStopped)) == 3

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_committed_by_hand_is_transcribed_under_the_id_it_was_given(name, options, speech):
    async def scenario(listener, _, tell):
        tell(BY_HAND)
        for id in ("hand_1", "hand_2"):
            await say(tell, speech, SILENCE)
            tell(commands.CommitAudio(id))
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words)
        assert set(transcribed(listener.words)) == {"hand_1", "hand_2"}
        assert not of(listener.words, events.SpeechStarted, events.SpeechStopped)

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_nothing_more_is_said_of_a_turn_that_was_forgotten(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech)
        await listener.until(lambda words: of(words, events.SpeechStarted))
        (started,) = of(listener.words, events.SpeechStarted)
        tell(commands.ClearAudio())
        count = len(listener.words)
        await say(tell, SILENCE, speech, SILENCE)
        await listener.until(transcribed)
        check_turns(listener.words, dropped=(started.id,))
        assert started.id not in [word.id for word in listener.words[count:]]

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_that_was_committed_while_it_was_open_is_over_and_transcribed(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech)
        await listener.until(lambda words: of(words, events.SpeechStarted))
        (started,) = of(listener.words, events.SpeechStarted)
        tell(commands.CommitAudio(started.id))
        await say(tell, SILENCE, speech, SILENCE)
        await listener.until(lambda words: len(transcribed(words)) == 2)
        check_turns(listener.words, dropped=(started.id,))
        assert [word.id for word in of(listener.words, events.SpeechStopped)] != [started.id]
        assert transcribed(listener.words)[0] == started.id

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_a_turn_is_answered_aloud_with_one_end(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        await say(tell, speech, SILENCE)
        await listener.until(lambda words: of(words, events.SpeechStopped))
        (stopped,) = of(listener.words, events.SpeechStopped)
        heard = history.Message("user", (history.SpeechPart(speech, RATE_HZ, stopped.id),))
        tell(commands.Respond(id="resp_1", history=(heard,), voice=VOICE))
        assert (await listener.end_of("resp_1")).reason == "stop"
        said = [word for word in listener.words if word.id == "resp_1"]
        check_spoken(said)
        assert len(listener.ends("resp_1")) == 1
        assert said[-1] is listener.ends("resp_1")[0]
        (used,) = of(said, events.Usage)
        assert 0 < used.input_audio_tokens <= used.input_tokens
        assert 0 < used.output_audio_tokens <= used.output_tokens

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_speech_that_is_cut_off_ends_once_while_the_next_turn_goes_on(name, options, speech):
    async def scenario(listener, _, tell):
        tell(LISTEN)
        tell(ask("resp_1", voice=VOICE))
        await listener.until(lambda words: of(words, events.AudioDelta))
        await say(tell, speech)
        await listener.until(lambda words: of(words, events.SpeechStarted))
        tell(commands.Cancel("resp_1"))
        await listener.end_of("resp_1")
        await say(tell, SILENCE)
        await listener.until(transcribed)
        assert len(listener.ends("resp_1")) == 1
        check_turns(listener.words)

    live(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), LIVE_CASES)
def test_leaving_in_the_middle_of_speech_delivers_nothing_more(name, options, speech):
    async def scenario(engine):
        async with conversing(engine) as (listener, _, tell):
            tell(LISTEN)
            tell(ask("resp_1", voice=VOICE))
            await say(tell, speech, SILENCE)
            tell(commands.AppendAudio(speech + SILENCE))
        count = len(listener.words)
        async with conversing(engine) as (other, _, tell):
            tell(ask("resp_2"))
            await other.end_of("resp_2")
        assert len(listener.words) == count

    with_engine(name, options, scenario)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case.values[0] not in {live.values[0] for live in LIVE_CASES}])
def test_an_engine_that_does_not_listen_takes_no_notice_of_sound(name, options):
    async def scenario(engine):
        assert not engine.capabilities.listens
        async with conversing(engine) as (listener, _, tell):
            for word in (
                LISTEN,
                commands.AppendAudio(BUZZ + SILENCE),
                commands.CommitAudio("hand_1"),
                commands.AppendAudio(BUZZ),
                commands.ClearAudio(),
            ):
                tell(word)
            tell(ask("resp_1"))
            assert (await listener.end_of("resp_1")).reason in ("stop", "length")
            assert {word.id for word in listener.words} == {"resp_1"}

    with_engine(name, options, scenario)
