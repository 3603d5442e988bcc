"""
The transcript of a pause's first moments, to which an answer is begun before the pause has lasted for the whole one.

Nothing of that answer is told until the whole one says the same words.
"""

import pytest
from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.cascade.input import EARLY_BACKOFF, EARLY_TAIL_MS, TRANSCRIBED_TAIL_MS
from antiphon.engines.cascade.turn import has_same_words
from antiphon.errors import ServerError
from antiphon.speech.base import Transcript
from support.engines.cascades import BY_HAND, FRAME_MS, LISTEN, UNREAD, Puppet, quiet, said, talked, text, used

EARLY = quiet(EARLY_TAIL_MS + FRAME_MS)
"""Long enough for an early transcript, and too short for a whole one."""

BETWEEN = quiet(100)
"""From there to the whole one, and no further than the next frame."""

END = quiet(800)


def silence_of(ms):
    return structs.replace(UNREAD, turn_detection=TurnDetection(silence_duration_ms=ms))


def texts(puppet):
    return [ask.history[-1].parts[0].text for ask in puppet.asks]


def test_an_answer_is_begun_in_the_first_moments_of_a_pause_and_held_until_the_words_are_certain():
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        assert texts(puppet) == ["one"]
        assert session.transcriber.asked == [160 + EARLY_TAIL_MS]
        puppet.say(text("Yes."), used, events.ResponseEnded)
        await session.hear(END)
        assert session.transcriber.asked == [160 + EARLY_TAIL_MS, 160 + TRANSCRIBED_TAIL_MS]

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert len(puppet.asks) == 1
    assert session.spoken_text().split() == ["Yes."]
    assert session.counted == ["begun", "used"]


def test_words_that_the_whole_transcript_has_not_are_answered_to_nobody():
    async def scenario(session):
        session.transcriber.mishears = True
        await session.hear(said("one"), EARLY)
        puppet.say(text("You said zero."), events.ResponseEnded)
        await session.hear(BETWEEN)
        assert texts(puppet) == ["zero", "one"]
        assert commands.Cancel(puppet.asks[0].id) in puppet.told
        puppet.say(text("You said one."), events.ResponseEnded)
        await session.hear(END)

    puppet = Puppet()
    session = talked(scenario, puppet, LISTEN)
    assert session.spoken_text().split() == "You said one.".split()
    assert session.transcripts() == [("turn_1", "one")]
    assert session.counted == ["begun", "dropped", "begun", "used"]


@pytest.mark.parametrize(("silence_ms", "asked"), [(0, [160]), (32, [192]), (96, [160 + EARLY_TAIL_MS, 256])])
def test_a_turn_that_ends_before_the_whole_tail_is_answered_when_all_of_it_is_certain(silence_ms, asked):
    async def scenario(session):
        await session.hear(said("one"), quiet(EARLY_TAIL_MS))
        await session.hear(END)
        assert texts(puppet) == ["one"]
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, silence_of(silence_ms))
    assert session.transcriber.asked == asked
    assert session.spoken_text().split() == ["Yes."]
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_an_answer_that_is_requested_before_its_words_are_certain_waits_for_them():
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()
        session.transcriber.is_held = True
        await session.hear(END)
        assert session.words(events.SpeechStopped) and session.asked == 1
        assert session.spoken_text() == "" and not session.ends()
        session.transcriber.let_go()
        await session.settle()
        assert session.spoken_text().split() == ["Yes."]

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert session.counted == ["begun", "used"]


def test_an_answer_that_is_requested_and_whose_words_were_others_is_made_anew():
    async def scenario(session):
        session.transcriber.mishears = True
        await session.hear(said("one"), EARLY)
        puppet.say(text("You said zero."), events.ResponseEnded)
        session.transcriber.is_held = True
        await session.hear(END)
        session.transcriber.let_go()
        await session.settle()
        assert texts(puppet) == ["zero", "one"]
        puppet.say(text("You said one."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.spoken_text().split() == "You said one.".split()
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert session.counted == ["begun", "dropped"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_answer_that_is_cancelled_before_its_words_are_certain_ends_once_and_says_nothing(is_whole):
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        puppet.say(text("Yes. "), *([events.ResponseEnded] if is_whole else []))
        session.transcriber.is_held = True
        await session.hear(END)
        session.send(commands.Cancel("resp_1"), commands.Cancel("resp_1"))
        session.transcriber.let_go()
        await session.settle()
        puppet.say(text("More."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.spoken_text() == ""
    assert session.ends() == [events.ResponseEnded("resp_1", "cancelled")]
    assert session.transcripts() == [("turn_1", "one")]
    assert session.counted == ["begun", "dropped"]


def test_an_answer_that_broke_before_its_words_were_certain_is_made_again():
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        session.transcriber.is_held = True
        await session.hear(END)
        puppet.say(lambda id: events.ResponseFailed(id=id, message="It broke."))
        await session.settle()
        session.transcriber.let_go()
        await session.settle()
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.spoken_text().split() == ["Yes."]
    assert session.ends() == [events.ResponseEnded("resp_1")]


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize(
    "word", [commands.CommitAudio("turn_1"), commands.ClearAudio(), structs.replace(UNREAD, turn_detection=None), BY_HAND]
)
def test_what_takes_the_turn_away_between_the_transcripts_takes_the_answer_with_it(word, delay):
    async def scenario(session):
        session.transcriber.is_held = delay
        await session.hear(said("one"), EARLY)
        if not delay:
            puppet.say(text("Yes."), events.ResponseEnded)
        session.send(word)
        session.transcriber.let_go()
        await session.hear(BETWEEN)
        assert not session.words(events.ResponseEnded, events.AudioTranscriptDelta)

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert session.transcripts() == ([("turn_1", "one")] if isinstance(word, commands.CommitAudio) else [])


def test_an_open_turn_that_is_committed_between_the_transcripts_is_answered_by_all_of_it():
    async def scenario(session):
        session.transcriber.mishears = True
        await session.hear(said("one"), EARLY)
        session.send(commands.AppendAudio(said("two")), commands.CommitAudio("turn_1"), session.ask("turn_1", said("one")))
        await session.settle()
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet)[-1] == "one two"
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_speech_that_goes_on_between_the_transcripts_throws_the_answer_away():
    async def scenario(session):
        await session.hear(said("one"), EARLY, said("two"), END)
        puppet.say(text("You said both."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, LISTEN)
    assert texts(puppet) == ["one", "one two"]
    assert session.spoken_text().split() == "You said both.".split()
    assert session.counted == ["begun", "dropped", "begun", "used"]


def test_other_settings_between_the_transcripts_leave_the_answer_as_it_is():
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        session.send(structs.replace(silence_of(200), transcription=LISTEN.transcription))
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet) == ["one"]
    assert session.counted == ["begun", "used"]


def test_what_is_foreseen_otherwise_between_the_transcripts_is_begun_anew_and_checked_too():
    async def scenario(session):
        session.transcriber.mishears = True
        await session.hear(said("one"), EARLY)
        session.history = (history.Message("system", (history.TextPart("Be brief."),)),)
        session.send(commands.Prepare(session.ask("turn_1", b"")))
        await session.settle()
        assert [len(ask.history) for ask in puppet.asks] == [1, 2]
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet) == ["zero", "zero", "one"]
    assert session.counted == ["begun", "dropped"] * 2 + ["begun", "used"]


@pytest.mark.parametrize("is_held", [False, True])
def test_leaving_between_the_transcripts_stops_both(is_held):
    async def scenario(session):
        session.transcriber.is_held = is_held
        await session.hear(said("one"), EARLY)
        session.transcriber.is_held = True
        await session.hear(BETWEEN)

    session = talked(scenario, Puppet(), UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert session.transcriber.stopped == 1


def test_leaving_while_an_answer_waits_for_its_words_throws_it_away():
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        session.transcriber.is_held = True
        await session.hear(END)

    session = talked(scenario, Puppet(), UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert not session.ends()


def test_what_nobody_requested_is_not_begun_again_when_its_words_turn_out_to_be_others():
    async def scenario(session):
        session.transcriber.mishears = True
        await session.hear(said("one"), EARLY)
        session.answers = False
        session.transcriber.is_held = True
        await session.hear(END)
        session.transcriber.let_go()
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet) == ["zero"]
    assert session.counted == ["begun", "dropped"]


# The transcriber's time


def test_a_transcriber_never_has_two_transcripts_of_a_turn_to_make_at_once():
    async def scenario(session):
        session.transcriber.is_held = True
        await session.hear(said("one"), EARLY, BETWEEN)
        assert len(session.transcriber.asked) == 1
        session.transcriber.let_go()
        await session.settle()
        assert len(session.transcriber.asked) == 2
        await session.hear(END)

    session = talked(scenario, Puppet(), UNREAD)
    assert session.counted == ["begun", "used"]


def test_a_slow_transcriber_makes_no_early_transcripts_for_a_while():
    async def scenario(session):
        session.transcriber.is_held = True
        await session.hear(said("one"), quiet(352))
        assert session.transcriber.stopped == 1, "it was not ready in time"
        assert session.transcriber.asked == [160 + EARLY_TAIL_MS, 160 + TRANSCRIBED_TAIL_MS]
        session.transcriber.let_go()
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        for count in range(1, EARLY_BACKOFF + 2):
            del session.transcriber.asked[:]
            await session.hear(said("two"), END)
            assert len(session.transcriber.asked) == (1 if count <= EARLY_BACKOFF else 2)

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet)[0] == "one"
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert session.counted[:3] == ["begun", "dropped", "begun"]


def test_a_transcriber_that_others_wait_for_makes_no_early_transcripts():
    async def scenario(session):
        session.transcriber.is_free = False
        await session.hear(said("one"), EARLY)
        assert session.transcriber.asked == []
        await session.hear(END)
        assert session.transcriber.asked == [160 + TRANSCRIBED_TAIL_MS]

    assert talked(scenario, Puppet(), UNREAD).counted == ["begun", "used"]


@pytest.mark.parametrize(("options", "configure"), [({"speculates": False}, UNREAD), ({"answers": False}, UNREAD), ({}, BY_HAND)])
def test_there_is_none_where_no_answer_would_be_begun(options, configure):
    async def scenario(session):
        await session.hear(said("one"), EARLY)
        assert session.transcriber.asked == []

    assert talked(scenario, Puppet(), configure, **options).counted == []


def test_an_early_transcript_that_fails_is_made_up_for_by_the_whole_one():
    async def scenario(session):
        session.transcriber.faults = [ServerError("Deaf.")]
        await session.hear(said("one"), EARLY, BETWEEN, END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert texts(puppet) == ["one"]
    assert session.ends() == [events.ResponseEnded("resp_1")]


# The same words


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Had he married?", "had he married,", True),
        ("Go forward 10 metres", "Go forward 10 meters", False),
        ("Ten-of clubs", "ten of clubs.", True),
        ("It's", "its", True),
        ("天気。", "天気", True),
        ("ÉTÉ", "été", True),
        ("", "...", True),
        ("", "For,", False),
        ("4", "four", False),
    ],
)
def test_words_are_the_same_by_their_letters_and_digits(one, other, is_same):
    assert has_same_words(Transcript(text=one), Transcript(text=other)) is is_same
    assert has_same_words(Transcript(text=other), Transcript(text=one)) is is_same


def test_a_transcript_that_failed_has_the_words_of_no_other():
    error = ServerError("Deaf.")
    assert not has_same_words(error, error)
    assert not has_same_words(Transcript(text=""), error)
