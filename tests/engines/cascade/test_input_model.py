"""Turn detection around an engine that takes the audio of a turn and speaks by itself."""

import pytest

from antiphon.engine_api import events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engines.cascade.engine import Cascade
from antiphon.engines.cascade.parts import SpeechStack
from support.engines.cascades import LISTEN, UNREAD, VOICE, Puppet, Session, quiet, said, talked, text, used


class Hearer(Puppet):
    capabilities = Capabilities(audio_in=True, audio_out=True, hears_speech=True, full_duplex=True, sees=True, voices=("own",))


async def one_turn(session):
    await session.hear(quiet(300), said("one", "two"), quiet(800))
    await session.until(lambda: session.inner.asks)


@pytest.mark.parametrize(("configure", "transcripts"), [(LISTEN, 1), (UNREAD, 0)], ids=["read", "unread"])
def test_the_engine_within_is_given_the_sound_and_it_is_written_down_only_for_who_reads_it(configure, transcripts):
    session = talked(one_turn, Hearer(), configure)
    (asked,) = session.inner.asks
    (part,) = asked.history[-1].parts
    assert isinstance(part, history.SpeechPart)
    assert part.pcm
    assert len(session.transcripts()) == transcripts
    assert bool(session.transcriber.asked) == bool(transcripts)


def test_it_answers_in_its_own_voice_and_counts_its_own_tokens():
    async def scenario(session):
        await one_turn(session)
        counted = lambda id: events.Usage(id=id, input_tokens=9, output_tokens=7, input_audio_tokens=3, output_audio_tokens=5)  # noqa: E731
        session.inner.say(
            lambda id: events.AudioTranscriptDelta(id, "Hello."),
            lambda id: events.AudioDelta(id, b"\5\0" * 80),
            counted,
            lambda id: events.ResponseEnded(id),
        )
        await session.settle()

    session = talked(scenario, Hearer(), UNREAD)
    assert session.inner.asks[0].voice == VOICE
    assert session.synthesizer.said == []
    assert session.words(events.AudioTranscriptDelta, events.AudioDelta, events.TextDelta) == [
        events.AudioTranscriptDelta("resp_1", "Hello."),
        events.AudioDelta("resp_1", b"\5\0" * 80),
    ]
    (count,) = session.words(events.Usage)
    assert (count.input_tokens, count.input_audio_tokens, count.output_audio_tokens) == (9, 3, 5)


def test_nothing_is_begun_before_it_is_asked_for():
    session = talked(one_turn, Hearer(), UNREAD)
    assert session.counted == []
    assert not session.cascade.capabilities.foresees


def test_its_voices_are_offered_and_what_only_it_could_do_alone_is_not():
    session = Session(Hearer())
    abilities = session.cascade.capabilities
    assert (abilities.voices, abilities.audio_out, abilities.listens) == (("own",), True, True)
    assert (abilities.full_duplex, abilities.sees) == (False, False)


def test_an_engine_that_speaks_but_does_not_hear_is_given_words_and_our_voice():
    class Speaker(Puppet):
        capabilities = Capabilities(audio_out=True, voices=("own",))

    async def scenario(session):
        await one_turn(session)
        session.inner.say(text("Hi."), used, lambda id: events.ResponseEnded(id))
        await session.until(lambda: session.ends())

    session = talked(scenario, Speaker(), UNREAD)
    assert session.inner.asks[0].voice is None
    assert session.inner.asks[0].history[-1].parts == (history.TextPart("one two"),)
    assert session.synthesizer.said


def test_that_the_engine_within_is_gone_is_told():
    async def scenario(session):
        session.inner.deliver([events.EngineLost(code="backend_error", message="gone")])
        await session.settle()

    session = talked(scenario, Hearer())
    assert session.words(events.EngineLost) == [events.EngineLost(code="backend_error", message="gone")]


def test_an_engine_that_hears_speaks_without_a_mouth_of_ours():
    abilities = Cascade(Hearer(), SpeechStack()).capabilities
    assert (abilities.audio_out, abilities.listens) == (True, False)
