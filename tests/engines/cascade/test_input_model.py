"""Ears around an engine that answers by the sound of a turn and speaks for itself."""

import pytest

from antiphon.engine_api import events as talk_events, history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.engines.cascade.engine import Cascade
from antiphon.engines.cascade.parts import Parts
from support.engines.cascades import LISTEN, UNREAD, VOICE, Puppet, Session, quiet, said, talked, text, used


class Hearer(Puppet):
    abilities = Abilities(audio_in=True, audio_out=True, hears_speech=True, full_duplex=True, sees=True, voices=("own",))


async def one_turn(session):
    await session.hear(quiet(300), said("one", "two"), quiet(800))
    await session.until(lambda: session.within.asks)


@pytest.mark.parametrize(("configure", "transcripts"), [(LISTEN, 1), (UNREAD, 0)], ids=["read", "unread"])
def test_the_engine_within_is_given_the_sound_and_it_is_written_down_only_for_who_reads_it(configure, transcripts):
    session = talked(one_turn, Hearer(), configure)
    (asked,) = session.within.asks
    (part,) = asked.history[-1].parts
    assert isinstance(part, turns.SpeechPart)
    assert part.pcm
    assert len(session.transcripts()) == transcripts
    assert bool(session.ear.asked) == bool(transcripts)


def test_it_answers_in_its_own_voice_and_counts_its_own_tokens():
    async def scenario(session):
        await one_turn(session)
        counted = lambda id: talk_events.Used(id=id, input_tokens=9, output_tokens=7, input_audio_tokens=3, output_audio_tokens=5)  # noqa: E731
        session.within.say(
            lambda id: talk_events.Spoken(id, "Hello."),
            lambda id: talk_events.Sound(id, b"\5\0" * 80),
            counted,
            lambda id: talk_events.Ended(id),
        )
        await session.settle()

    session = talked(scenario, Hearer(), UNREAD)
    assert session.within.asks[0].voice == VOICE
    assert session.mouth.said == []
    assert session.words(talk_events.Spoken, talk_events.Sound, talk_events.Text) == [
        talk_events.Spoken("resp_1", "Hello."),
        talk_events.Sound("resp_1", b"\5\0" * 80),
    ]
    (count,) = session.words(talk_events.Used)
    assert (count.input_tokens, count.input_audio_tokens, count.output_audio_tokens) == (9, 3, 5)


def test_nothing_is_begun_before_it_is_asked_for():
    session = talked(one_turn, Hearer(), UNREAD)
    assert session.counted == []
    assert not session.cascade.abilities.foresees


def test_its_voices_are_offered_and_what_only_it_could_do_alone_is_not():
    session = Session(Hearer())
    abilities = session.cascade.abilities
    assert (abilities.voices, abilities.audio_out, abilities.listens) == (("own",), True, True)
    assert (abilities.full_duplex, abilities.sees) == (False, False)


def test_an_engine_that_speaks_but_does_not_hear_is_given_words_and_our_voice():
    class Speaker(Puppet):
        abilities = Abilities(audio_out=True, voices=("own",))

    async def scenario(session):
        await one_turn(session)
        session.within.say(text("Hi."), used, lambda id: talk_events.Ended(id))
        await session.until(lambda: session.ends())

    session = talked(scenario, Speaker(), UNREAD)
    assert session.within.asks[0].voice is None
    assert session.within.asks[0].history[-1].parts == (turns.TextPart("one two"),)
    assert session.mouth.said


def test_that_the_engine_within_is_gone_is_told():
    async def scenario(session):
        session.within.deliver([talk_events.Lost(code="backend_error", message="gone")])
        await session.settle()

    session = talked(scenario, Hearer())
    assert session.words(talk_events.Lost) == [talk_events.Lost(code="backend_error", message="gone")]


def test_an_engine_that_hears_speaks_without_a_mouth_of_ours():
    abilities = Cascade(Hearer(), Parts()).abilities
    assert (abilities.audio_out, abilities.listens) == (True, False)
