"""What every engine promises that does full duplex: the words after `Converse`, as `antiphon.engine_api.commands` tells them."""

import asyncio
import contextlib
import time

import pytest

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, events
from antiphon.engines.duplex.engine import DuplexAdapter
from antiphon.engines.duplex.options import can_adapt
from antiphon.speech.dsp.resample import resample
from support.contracts.engines import BUZZ, DEAF, conversing, of, recording, with_engine

PATIENCE_S = 60
RATE_HZ = 16_000
VOICE_HZ = 24_000
PIECE_BYTES = RATE_HZ // 5
"""A tenth of a second."""

SILENCE = bytes(2 * RATE_HZ)
LOUD = (b"\0\x20" * 40 + b"\0\xe0" * 40) * 120
TURNS_ONLY = {"abilities": {"full_duplex": False, "sees": False}}

CASES = [
    pytest.param("scripted", {}, LOUD, id="scripted"),
    pytest.param("worker", {}, LOUD, id="worker"),
    pytest.param("scripted", TURNS_ONLY, LOUD, id="duplex"),
    pytest.param("scripted", TURNS_ONLY | {"pace_ms": 1}, LOUD, id="duplex-paced"),
    pytest.param("worker", TURNS_ONLY, LOUD, id="duplex-worker"),
    pytest.param("realtime", {"model": "slow"}, LOUD, id="duplex-realtime"),
    pytest.param(
        "cascade", {"abilities": DEAF}, resample(recording("cards_001"), 24_000, RATE_HZ), id="duplex-cascade", marks=pytest.mark.weights
    ),
]
"""Each with half a second or more of speech that the engine knows for speech: s16le at 16 kHz."""

OF_TURNS = (
    events.SpeechStarted,
    events.SpeechStopped,
    events.InputTranscriptDelta,
    events.InputTranscriptSegment,
    events.InputTranscriptFailed,
)
ENDS = (events.ResponseEnded, events.ResponseFailed)


def in_full_duplex(name, options, scenario, asked=None):
    """Play the scenario in a conversation in full duplex that is ready."""

    async def conversed(engine):
        engine = DuplexAdapter(engine) if can_adapt(engine.capabilities) else engine
        assert engine.capabilities.full_duplex
        async with conversing(engine) as (listener, _, tell):
            tell(asked or commands.StartDuplex(instructions="Be brief."))
            await listener.until(lambda words: words)
            assert isinstance(listener.words[0], events.DuplexStarted)
            await scenario(listener, tell)
        check(listener.words)

    with_engine(name, options, conversed)


def check(words):
    """One answer at a time, each with one end and then listening; audio has whole samples; there are no turn events except transcripts."""
    assert not of(words, *OF_TURNS, events.EngineError)
    for heard in of(words, events.InputTranscriptDone):
        assert heard.transcript and 0 <= heard.start_ms < heard.end_ms
    open_id, over = None, set()
    for word, following in zip(words, [*words[1:], None], strict=True):
        if isinstance(word, events.DuplexStarted | events.Listening | events.InputTranscriptDone):
            continue
        assert word.id not in over
        assert open_id in (None, word.id)
        open_id = word.id
        if isinstance(word, ENDS):
            over.add(word.id)
            open_id = None
            assert following is None or isinstance(following, events.Listening)
    assert all(len(word.pcm) % 2 == 0 for word in of(words, events.AudioDelta))


async def say(tell, *sounds):
    """Tell the sound a tenth of a second at a time."""
    pcm = b"".join(sounds)
    for at in range(0, len(pcm), PIECE_BYTES):
        tell(commands.AppendAudio(pcm[at : at + PIECE_BYTES]))
        await asyncio.sleep(0)


async def until(listener, tell, condition):
    """Be silent until that holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [word for word in listener.words if not isinstance(word, events.Listening | events.AudioDelta)]
        await say(tell, SILENCE[:PIECE_BYTES])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await listener.until(lambda _: condition())


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_it_listens_to_every_piece_of_silence(name, options, speech):
    async def scenario(listener, tell):
        await say(tell, SILENCE)
        await listener.until(lambda words: len(of(words, events.Listening)) == 10)

    in_full_duplex(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_it_answers_who_has_spoken_aloud_and_listens_again(name, options, speech):
    async def scenario(listener, tell):
        await say(tell, speech, SILENCE)
        await until(listener, tell, lambda: of(listener.words, *ENDS))
        (ended,) = of(listener.words, *ENDS)
        said = [word for word in listener.words if word.id == ended.id]
        assert ended == events.ResponseEnded(ended.id)
        assert isinstance(of(said, events.AudioTranscriptDelta, events.AudioDelta)[0], events.AudioTranscriptDelta), (
            "words stand before their sound"
        )
        assert duration_ms(sum(len(word.pcm) for word in of(said, events.AudioDelta)), VOICE_HZ) > 200
        (used,) = of(said, events.Usage)
        assert used.output_audio_tokens > 0
        await until(listener, tell, lambda: isinstance(listener.words[-1], events.Listening))

    in_full_duplex(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_it_writes_where_it_is_to_have_no_voice(name, options, speech):
    async def scenario(listener, tell):
        await say(tell, speech, SILENCE)
        await until(listener, tell, lambda: of(listener.words, *ENDS))
        assert of(listener.words, events.TextDelta)
        assert not of(listener.words, events.AudioDelta, events.AudioTranscriptDelta)

    in_full_duplex(name, options, scenario, commands.StartDuplex(voice=None))


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_it_falls_silent_when_somebody_speaks_and_answers_anew(name, options, speech):
    async def scenario(listener, tell):
        await say(tell, speech, SILENCE)
        await until(listener, tell, lambda: of(listener.words, events.AudioDelta))
        await say(tell, speech)
        await until(listener, tell, lambda: len(of(listener.words, *ENDS)) == 2)
        first, second = of(listener.words, *ENDS)
        assert first.id != second.id
        assert (first.reason, second.reason) == ("cancelled", "stop")

    in_full_duplex(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_it_falls_silent_when_it_is_told_to_listen(name, options, speech):
    async def scenario(listener, tell):
        await say(tell, speech, SILENCE)
        await until(listener, tell, lambda: of(listener.words, events.AudioDelta))
        tell(commands.ForceListen())
        await say(tell, SILENCE)
        await listener.until(lambda words: of(words, *ENDS))
        assert [end.reason for end in of(listener.words, *ENDS)] == ["cancelled"]

    in_full_duplex(name, options, scenario)


@pytest.mark.parametrize(("name", "options", "speech"), CASES)
def test_leaving_in_the_middle_of_all_delivers_nothing_more(name, options, speech):
    counted = []

    async def scenario(listener, tell):
        await say(tell, speech, SILENCE)
        await until(listener, tell, lambda: of(listener.words, events.AudioDelta))
        tell(commands.AppendAudio(speech + SILENCE))
        counted.append((listener, len(listener.words)))

    in_full_duplex(name, options, scenario)
    ((listener, count),) = counted
    assert len(listener.words) == count


def test_sound_at_24_khz_is_as_good():
    async def scenario(listener, tell):
        tell(commands.AppendAudio(BUZZ + bytes(2 * 24_000)))
        await until(listener, tell, lambda: of(listener.words, *ENDS))

    for options in ({}, TURNS_ONLY):
        in_full_duplex("scripted", options, scenario, commands.StartDuplex(rate_hz=24_000))
