"""A cascade's answers: text as its engine writes it, speech in speakable words, and failures."""

import asyncio

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engines.cascade.history import UNKNOWN_SPEECH_TEXT
from antiphon.engines.cascade.output import MAX_QUEUED_ITEMS
from antiphon.errors import ServerError
from antiphon.speech.base import SentenceContext
from support.engines.cascades import LISTEN, RATE_HZ, UNREAD, VOICE, Ear, Puppet, Synthesizer, quiet, said, talked, text, used
from support.engines.hearings import engine

PAUSE = quiet(800)
VOICE_DIED = ServerError("The voice broke off.", status=503)


def user(*parts):
    return engine_history.Message("user", tuple(engine_history.TextPart(part) if isinstance(part, str) else part for part in parts))


def asked(*history, id="resp_1", voice=VOICE, **more):
    return commands.Respond(id=id, history=tuple(history), voice=voice, **more)


def test_a_spoken_question_is_answered_aloud_by_an_engine_that_reads():
    async def scenario(session):
        await session.hear(said("one", "two"), PAUSE)

    session = talked(scenario, engine(), LISTEN)
    assert session.spoken_text() == "one two"
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert not session.words(events.TextDelta)


def test_a_question_without_words_has_an_answer_without_words():
    class Deaf(Ear):
        async def transcribe(self, pcm, wish):
            return await super().transcribe(b"", wish)

    async def scenario(session):
        await session.hear(said("one"), PAUSE)

    puppet = Puppet()
    session = talked(scenario, puppet, LISTEN, transcriber=Deaf())
    assert session.transcripts() == [("turn_1", "")]
    assert [word for word in session.told.words if word.id == "resp_1"] == [events.ResponseEnded("resp_1")]
    assert puppet.asks == []


def test_a_cough_does_not_silence_the_answer_to_what_was_asked_before():
    async def scenario(session):
        cough = engine_history.SpeechPart(quiet(500), RATE_HZ)
        session.send(asked(user("Are you there?"), user(cough)))
        await session.settle()

    puppet = Puppet()
    talked(scenario, puppet)
    assert [ask.history for ask in puppet.asks] == [(user("Are you there?"),)]


def test_an_answer_that_was_all_said_is_not_said_again_for_a_cough():
    async def scenario(session):
        answer = engine_history.Message("assistant", (engine_history.TextPart("Yes."),))
        session.send(asked(user("Are you there?"), answer, user(engine_history.SpeechPart(quiet(500), RATE_HZ))))
        await session.settle()
        assert session.ends() == [events.ResponseEnded("resp_1")]

    puppet = Puppet()
    talked(scenario, puppet)
    assert puppet.asks == []


def test_an_answer_to_nothing_but_instructions_is_asked_for_all_the_same():
    async def scenario(session):
        session.send(asked(instructions="Greet the caller."))
        await session.settle()

    puppet = Puppet()
    talked(scenario, puppet)
    assert len(puppet.asks) == 1


def test_sound_that_the_client_gave_whole_is_written_down_once():
    async def scenario(session):
        part = engine_history.SpeechPart(said("one", "two"), RATE_HZ)
        for number in (1, 2):
            session.send(asked(user(part), user("And?"), id=f"resp_{number}"))
            await session.until(lambda number=number: len(puppet.asks) == number)
            assert puppet.asks[-1].history == (user("one two"), user("And?"))
        assert len(session.transcriber.asked) == 1

    puppet = Puppet()
    talked(scenario, puppet)


def test_a_turn_that_nobody_could_make_out_fails_its_answer_and_no_later_one():
    async def scenario(session):
        session.transcriber.faults = [ServerError("Too much to hear.", status=503)] * 3
        await session.hear(said("one"), PAUSE)
        (broke,) = session.ends("resp_1")
        assert (broke.status, broke.message) == (503, "Too much to hear.")
        session.transcriber.faults = []
        await session.hear(said("two"), PAUSE)
        assert [turn.parts[0].text for turn in puppet.asks[-1].history] == [UNKNOWN_SPEECH_TEXT, "two"]

    puppet = Puppet()
    talked(scenario, puppet, UNREAD)


def test_a_clause_is_said_as_soon_as_it_is_written():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.say(text("Well, let me think, then"))
        await session.settle()
        assert session.spoken_text() == "Well, let me think, "
        puppet.say(text(". Yes"), events.ResponseEnded)
        await session.settle()
        assert session.spoken_text().split() == "Well, let me think, then. Yes".split()

    puppet = Puppet()
    session = talked(scenario, puppet)
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_the_first_words_are_said_at_once_and_what_follows_continues_their_sentence():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        for token in ("The", " capital", " of"):
            puppet.say(text(token))
            await session.settle()
        assert session.spoken_text() == "The capital "
        puppet.say(text(" France is Paris. Yes"), events.ResponseEnded)
        await session.settle()
        assert mouth.said == ["The capital ", "of France is Paris. ", "Yes"]
        assert mouth.contexts == [SentenceContext("", True), SentenceContext("The capital", False), SentenceContext()]

    puppet, mouth = Puppet(), Synthesizer(joins_parts=True)
    talked(scenario, puppet, synthesizer=mouth)


def test_a_voice_whose_parts_are_heard_as_such_says_phrases():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.say(text("The capital of"))
        await session.settle()
        assert session.synthesizer.said == []
        puppet.say(text(" France is in"))
        await session.settle()
        assert session.synthesizer.said == ["The capital of France "]
        puppet.say(text(" Paris."))
        await session.settle()

    puppet = Puppet()
    talked(scenario, puppet)


def test_with_enough_speech_ahead_a_sentence_is_waited_for():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.say(text("One two three four five six seven eight nine ten. And the capital of France is"))
        await session.settle()
        assert mouth.said == ["One two three four five six seven eight nine ten. "]
        # It says a word in a tenth of a second, so all of these are heard soon.
        await session.until(lambda: len(mouth.said) > 1)
        assert mouth.said[1] == "And the capital "
        puppet.say(text(" Paris."), events.ResponseEnded)
        await session.settle()

    puppet, mouth = Puppet(), Synthesizer(joins_parts=True)
    session = talked(scenario, puppet, synthesizer=mouth)
    assert session.spoken_text().split()[-3:] == ["France", "is", "Paris."]


def test_nothing_is_cut_while_something_waits_to_be_said():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        session.told.conversation.pause()
        puppet.say(text("Yes. The"))
        await session.settle()
        puppet.say(text(" capital of France is"))
        await session.settle()
        assert mouth.said == ["Yes. "]
        puppet.say(text(" Paris. "), events.ResponseEnded)
        session.told.conversation.resume()
        await session.settle()
        assert mouth.said == ["Yes. ", "The capital of France is Paris. "]

    puppet, mouth = Puppet(), Synthesizer(joins_parts=True)
    talked(scenario, puppet, synthesizer=mouth)


def test_calls_stand_behind_what_is_said_before_them_and_an_answer_may_be_nothing_else():
    async def scenario(session):
        session.send(asked(user("Weather?"), id="resp_1"))
        await session.settle()
        puppet.say(text("Let me look"), *CALL, events.ResponseEnded)
        await session.settle()
        session.send(asked(user("Weather?"), id="resp_2"))
        await session.settle()
        puppet.say(*CALL, events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet)
    kinds = {id: [type(word).__name__ for word in session.told.words if word.id == id] for id in ("resp_1", "resp_2")}
    assert kinds["resp_1"] == ["AudioTranscriptDelta", "AudioDelta"] * 3 + [
        "ToolCallStarted",
        "ToolArgumentsDelta",
        "ToolCallDone",
        "ResponseEnded",
    ]
    assert kinds["resp_2"] == ["ToolCallStarted", "ToolArgumentsDelta", "ToolCallDone", "ResponseEnded"]


CALL = (
    lambda id: events.ToolCallStarted(id, "call_1", "get_weather"),
    lambda id: events.ToolArgumentsDelta(id, "call_1", "{}"),
    lambda id: events.ToolCallDone(id, "call_1"),
)


def test_what_is_heard_and_said_is_counted():
    async def scenario(session):
        session.send(asked(user(engine_history.SpeechPart(said(*["one"] * 5), RATE_HZ)), voice=VOICE))
        await session.until(lambda: puppet.asks)
        puppet.say(text("Yes it is."), used, events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    (counted,) = talked(scenario, puppet).words(events.Usage)
    assert (counted.input_tokens, counted.input_audio_tokens) == (18, 8)
    assert (counted.output_tokens, counted.output_audio_tokens) == (11, 6)


def test_an_answer_in_writing_is_passed_on_as_it_is():
    async def scenario(session):
        session.send(asked(user("Hi"), voice=None))
        await session.settle()
        puppet.say(text("**Yes**"), used, events.ResponseEnded)

    puppet = Puppet()
    session = talked(scenario, puppet)
    assert session.told.words == [events.TextDelta("resp_1", "**Yes**"), used("resp_1"), events.ResponseEnded("resp_1")]


def test_an_answer_that_breaks_breaks_after_what_was_said():
    async def scenario(session):
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.say(text("Well. So"), lambda id: events.ResponseFailed(id=id, message="It broke."))
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet)
    assert session.spoken_text().split() == ["Well.", "So"]
    assert [type(word) for word in session.ends()] == [events.ResponseFailed]


def test_a_voice_that_breaks_off_fails_that_answer_and_says_the_next():
    async def scenario(session):
        session.synthesizer.fault = ("two", VOICE_DIED)
        await session.hear(said("one", "two", "three"), PAUSE)
        session.synthesizer.fault = None
        await session.hear(said("four"), PAUSE)

    session = talked(scenario, engine(), UNREAD)
    (broke,) = session.ends("resp_1")
    assert (broke.status, broke.message) == (503, "The voice broke off.")
    assert session.spoken_text("resp_1") == "one "
    assert session.spoken_text("resp_2").strip() == "four"
    assert session.ends("resp_2") == [events.ResponseEnded("resp_2")]


def test_an_engine_without_room_fails_that_answer_and_nothing_else():
    async def scenario(session):
        puppet.overrun = EngineOverrun("all slots are taken")
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.overrun = None
        session.send(asked(user("Hi"), id="resp_2", voice=None))
        await session.settle()
        puppet.say(text("Hi."), events.ResponseEnded)

    puppet = Puppet()
    session = talked(scenario, puppet)
    (broke,) = session.ends()
    assert (broke.status, broke.code, broke.retry_after_s) == (503, "server_is_overloaded", 1)
    assert session.ends("resp_2") == [events.ResponseEnded("resp_2")]


@pytest.mark.parametrize("steps", range(0, 12))
def test_a_cancelled_answer_ends_once_whenever_it_is_cancelled(steps):
    async def scenario(session):
        session.send(asked(user("One. Two. Three.")))
        for _ in range(steps):
            await asyncio.sleep(0)
        session.send(commands.Cancel("resp_1"), commands.Cancel("resp_1"), commands.Cancel("resp_never"))
        await session.settle()
        session.send(asked(user("Again"), id="resp_2"))
        await session.settle()

    session = talked(scenario, engine())
    assert len(session.ends()) == 1
    assert session.told.words[-1] == events.ResponseEnded("resp_2")
    count = len(session.words(events.ResponseEnded))
    assert count == 2


def test_a_cancelled_answer_stops_the_voice_and_the_engine():
    async def scenario(session):
        session.synthesizer.is_held = True
        session.send(asked(user("Hi")))
        await session.settle()
        puppet.say(text("Well, then. So"))
        await session.settle()
        session.send(commands.Cancel("resp_1"))
        await session.settle()
        assert session.synthesizer.stopped == 1
        puppet.say(text("And more. "), events.ResponseEnded)
        await session.settle()
        assert session.told.words == [events.ResponseEnded("resp_1", "cancelled")]

    puppet = Puppet()
    talked(scenario, puppet)
    assert commands.Cancel("resp_1") in puppet.told


def test_nothing_is_said_to_a_client_that_is_behind():
    async def scenario(session):
        session.told.conversation.pause()
        session.send(asked(user("One. Two. Three.")))
        await session.settle()
        assert session.told.words == []
        session.told.conversation.resume()
        await session.settle()
        assert session.ends() == [events.ResponseEnded("resp_1")]

    assert talked(scenario, engine()).spoken_text() == "One. Two. Three."


def test_leaving_in_the_middle_of_an_answer_stops_the_voice():
    async def scenario(session):
        session.synthesizer.is_held = True
        session.send(asked(user("Hello there.")))
        await session.settle()

    session = talked(scenario, engine())
    assert session.synthesizer.stopped == 1
    assert session.told.words == []


def test_a_cascade_can_do_what_its_parts_can():
    async def scenario(session):
        abilities = session.cascade.capabilities
        assert (abilities.listens, abilities.audio_out, abilities.foresees, abilities.tools) == (True, True, True, True)
        assert abilities.turn_detection == ("server_vad",)
        assert abilities.voices == Synthesizer.voices

    talked(scenario, Puppet())


def test_an_answer_that_is_much_longer_than_can_wait_is_ended():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(*[lambda id: events.ReasoningDelta(id, "hm")] * (MAX_QUEUED_ITEMS + 100), events.ResponseEnded)
        await session.until(lambda: session.ends())

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.ends() == [events.ResponseEnded("resp_1", "length")]
    assert len(session.words(events.ReasoningDelta)) == MAX_QUEUED_ITEMS
