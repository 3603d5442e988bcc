"""
Answers that a cascade begins before a turn is over: sooner where it is, and nowhere to be seen where it isn't.

The law: whatever is said and done, what comes of it with answers begun early is what comes of it without.
"""

import asyncio
import contextlib
from struct import pack

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings, TurnDetection
from antiphon.engines.cascade.engine import MAX_FOLLOWED_TURNS
from antiphon.engines.cascade.history import UNKNOWN_SPEECH_TEXT
from antiphon.engines.cascade.output import MAX_SPECULATIVE_AUDIO_MS
from antiphon.errors import ServerError
from support.engines.cascades import LISTEN, UNREAD, VOICE, Puppet, Session, Synthesizer, quiet, said, talked, text, used
from support.engines.hearings import engine

PAUSE = quiet(320)
"""Long enough that an answer is begun, and too short to end a turn."""

END = quiet(800)

RUSTLE = pack("<hh", 1000, 2000) * 1600
"""Sound that is taken for speech, and has no word in it."""


def test_an_answer_is_begun_in_the_pause_and_held_until_it_is_asked_for():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        (ask,) = puppet.asks
        assert [turn.parts for turn in ask.history] == [(history.TextPart("one"),)]
        puppet.say(text("Well, hello. Yes."), used, events.ResponseEnded)
        await session.settle()
        assert session.synthesizer.said, "it is spoken already"
        assert not session.words(events.AudioTranscriptDelta, events.AudioDelta, events.Usage, events.ResponseEnded, events.SpeechStopped)
        await session.hear(END)

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert len(puppet.asks) == 1
    assert session.spoken_text().split() == "Well, hello. Yes.".split()
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert session.words(events.Usage)[0].input_audio_tokens == 10
    assert session.counted == ["begun", "used"]


class Seer(Puppet):
    """A puppet that gets `Prepare`."""

    capabilities = Capabilities(foresees=True)

    @property
    def foreseen(self):
        return [[turn.parts[0].text for turn in word.request.history] for word in self.told if isinstance(word, commands.Prepare)]


def test_an_engine_that_foresees_knows_the_history_and_the_words_as_they_are_said():
    async def scenario(session):
        await session.hear(said("one"), END)
        puppet.say(text("Yes. "), events.ResponseEnded)
        await session.settle()
        del puppet.told[:]
        await session.hear(said("two", "three"))
        await session.settle()
        assert puppet.foreseen[0] == ["one", ""], "the turn that is open is not heard yet"
        await session.hear(*[said("four", "five")] * 8)
        await session.settle()
        assert puppet.foreseen[-1][1].startswith("two three four")
        assert not puppet.asks

    puppet = Seer()
    talked(scenario, puppet, LISTEN)


def test_an_engine_that_foresees_reads_along_where_no_client_does():
    async def scenario(session):
        await session.hear(*[said("one", "two", "three", "four")] * 3)
        assert puppet.foreseen[-1][0].startswith("one two three four one")
        rounds = len(puppet.foreseen)
        assert len({tuple(texts) for texts in puppet.foreseen}) == rounds, "it is told nothing twice"
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Seer()
    session = talked(scenario, puppet, UNREAD)
    assert not session.words(events.InputTranscriptDelta)
    assert session.transcripts() == [("turn_1", " ".join(["one two three four"] * 3))]


def test_a_client_that_begins_to_read_in_the_middle_of_a_turn_gets_all_its_words():
    async def scenario(session):
        await session.hear(*[said("one", "two", "three", "four")] * 3)
        session.send(LISTEN)
        await session.hear(END)

    session = talked(scenario, Seer(), UNREAD)
    assert "".join(word.text for word in session.words(events.InputTranscriptDelta)) == " ".join(["one two three four"] * 3)


@pytest.mark.parametrize(
    ("puppet", "options"), [(Puppet(), {}), (Seer(), {"speculates": False}), (Seer(), {"answers": False})], ids=["blind", "off", "unasked"]
)
def test_nobody_listens_along_for_an_engine_that_could_do_nothing_with_it(puppet, options):
    async def scenario(session):
        await session.hear(*[said("one", "two", "three", "four")] * 3)
        assert session.transcriber.asked == []

    talked(scenario, puppet, UNREAD, **options)


def test_nobody_listens_along_for_the_model_alone_while_others_need_the_transcriber():
    async def scenario(session):
        session.transcriber.is_free = False
        await session.hear(*[said("one", "two", "three", "four")] * 3)
        assert session.transcriber.asked == []
        session.transcriber.is_free = True
        await session.hear(said("five", "six"))
        assert session.transcriber.asked

    talked(scenario, Seer(), UNREAD)


def test_few_turns_are_followed_at_once_for_the_model_alone_and_others_when_they_are_over():
    async def scenario():
        sessions = [Session(Seer()) for _ in range(MAX_FOLLOWED_TURNS + 1)]
        last, shared = sessions[-1], sessions[0].cascade
        async with contextlib.AsyncExitStack() as ends:
            for session in sessions:
                opened = shared.open(ConversationSettings(model="parrot"), session)
                session.told.conversation = await ends.enter_async_context(opened)
                session.send(UNREAD)
                await session.hear(said("one", "two", "three", "four"))
            asked = sessions[0].transcriber.asked
            before = len(asked)
            await last.hear(said("five", "six", "seven"))
            assert len(asked) == before
            sessions[0].send(commands.ClearAudio())
            await last.hear(said("five", "six", "seven"))
            assert len(asked) > before

    asyncio.run(scenario())


def test_a_turn_in_which_nothing_was_said_leaves_what_was_said_before_it_known():
    async def scenario(session):
        await session.hear(said("one"), END)
        session.history += (history.Message("assistant", (history.TextPart("Yes. "),)),)
        await session.hear(RUSTLE, END)
        del puppet.told[:]
        await session.hear(said("two"))
        assert puppet.foreseen[0] == ["one", "Yes. ", ""]

    puppet = Seer()
    talked(scenario, puppet, LISTEN)


def test_a_turn_that_nobody_could_make_out_keeps_nothing_from_being_foreseen():
    async def scenario(session):
        await session.hear(said("one"), END)
        puppet.say(text("Yes. "), events.ResponseEnded)
        session.transcriber.faults += [ServerError("Deaf.")] * 99
        await session.hear(said("two"), END)
        session.transcriber.faults.clear()
        del puppet.told[:]
        await session.hear(said("three"))
        assert puppet.foreseen[0] == ["one", UNKNOWN_SPEECH_TEXT, ""]

    puppet = Seer()
    talked(scenario, puppet, LISTEN)


def test_an_engine_with_no_room_for_what_it_could_foresee_is_asked_all_the_same():
    class Full(Seer):
        def send(self, word):
            if isinstance(word, commands.Prepare):
                raise EngineOverrun("its worker is behind with reading")
            super().send(word)

    async def scenario(session):
        await session.hear(said("one"), END)
        puppet.say(text("Yes. "), events.ResponseEnded)
        await session.settle()

    puppet = Full()
    assert talked(scenario, puppet, LISTEN).ends() == [events.ResponseEnded("resp_1")]


def test_an_engine_that_does_not_foresee_is_told_nothing_of_the_kind():
    async def scenario(session):
        await session.hear(said("one"), END)

    puppet = Puppet()
    talked(scenario, puppet, LISTEN)
    assert not [word for word in puppet.told if isinstance(word, commands.Prepare)]


def test_what_was_begun_is_thrown_away_where_the_person_goes_on():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("You said one. "), *CALL, used, events.ResponseEnded)
        await session.hear(said("two"), END)
        puppet.say(text("You said both."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, LISTEN)
    assert [turn.parts[0].text for turn in puppet.asks[-1].history] == ["one two"]
    assert session.spoken_text().split() == "You said both.".split()
    assert not session.words(events.ToolCallStarted, events.Usage)
    assert session.counted == ["begun", "dropped", "begun", "used"]
    assert commands.Cancel(puppet.asks[0].id) in puppet.told


CALL = (lambda id: events.ToolCallStarted(id, "call_1", "get_weather"), lambda id: events.ToolArgumentsDelta(id, "call_1", "{}"))


def test_answers_in_writing_are_begun_early_too():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("Yes"), events.ResponseEnded)
        await session.settle()
        assert not session.words(events.TextDelta)
        await session.hear(END)

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD, voice=None)
    assert [word for word in session.told.words if word.id == "resp_1"] == [
        events.TextDelta("resp_1", "Yes"),
        events.ResponseEnded("resp_1"),
    ]


def test_no_more_than_some_seconds_are_spoken_before_they_are_asked_for():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("la " * 500), events.ResponseEnded)
        for _ in range(20):
            await session.settle()
        assert MAX_SPECULATIVE_AUDIO_MS < 100 * session.synthesizer.told < MAX_SPECULATIVE_AUDIO_MS + 500
        await session.hear(END)
        for _ in range(40):
            await session.settle()
        assert session.spoken_text().split() == ["la"] * 500

    puppet = Puppet()
    talked(scenario, puppet, UNREAD)


def test_what_is_spoken_before_it_is_asked_for_is_ahead_until_then():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("One two three four five six seven eight. And the"))
        await session.settle()
        puppet.say(text(" capital of France is"))
        await session.settle()
        assert mouth.said == ["One two three four five six seven eight. "]
        await session.hear(END)
        puppet.say(text(" Paris."), events.ResponseEnded)
        await session.settle()
        assert mouth.said[1:] == ["And the capital of France is Paris."]

    puppet, mouth = Puppet(), Synthesizer(joins_parts=True)
    talked(scenario, puppet, UNREAD, synthesizer=mouth)


def test_what_broke_before_it_was_asked_for_is_tried_again():
    async def scenario(session):
        puppet.overrun = EngineOverrun("all slots are taken")
        await session.hear(said("one"), PAUSE)
        puppet.overrun = None
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert session.counted == ["begun", "dropped"]


def test_a_voice_that_breaks_off_early_is_asked_again():
    async def scenario(session):
        session.synthesizer.fault = ("one", ServerError("The voice broke off."))
        await session.hear(said("one"), PAUSE)
        session.synthesizer.fault = None
        await session.hear(END)

    session = talked(scenario, engine(), UNREAD)
    assert session.spoken_text().strip() == "one"
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_what_is_asked_otherwise_than_it_was_foreseen_is_begun_anew():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.history = (history.Message("system", (history.TextPart("Be brief."),)),)
        await session.hear(END)
        puppet.say(text("Yes."), events.ResponseEnded)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert len(puppet.asks) == 2
    assert len(puppet.asks[-1].history) == 2
    assert session.counted == ["begun", "dropped"]


def test_what_is_foreseen_otherwise_in_the_pause_is_begun_anew_at_once():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.history = (history.Message("system", (history.TextPart("Be brief."),)),)
        session.send(commands.Prepare(session.ask("turn_1", b"")))
        await session.settle()
        assert [len(ask.history) for ask in puppet.asks] == [1, 2]
        await session.hear(END)

    puppet = Puppet()
    assert talked(scenario, puppet, UNREAD).counted == ["begun", "dropped", "begun", "used"]


def test_what_nobody_asks_for_is_thrown_away_when_the_turn_is_over():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.answers = False
        await session.hear(END)
        assert commands.Cancel(puppet.asks[0].id) in puppet.told

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert not session.words(events.ResponseEnded)


def test_what_is_asked_beside_the_conversation_leaves_it_alone():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.send(commands.Respond(id="aside_1", history=(history.Message("user", (history.TextPart("Hm?"),)),), out_of_band=True))
        await session.hear(END)

    session = talked(scenario, engine(), UNREAD)
    assert session.counted == ["begun", "used"]
    assert session.ends("aside_1") == [events.ResponseEnded("aside_1")]


@pytest.mark.parametrize("word", [commands.CommitAudio("turn_1"), commands.ClearAudio(), structs.replace(UNREAD, turn_detection=None)])
def test_what_was_begun_is_thrown_away_with_the_turn(word):
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("Yes."), events.ResponseEnded)
        session.send(word)
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert not session.words(events.ResponseEnded, events.AudioTranscriptDelta)


def test_an_open_turn_that_is_committed_and_asked_about_is_answered_whole():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.send(commands.CommitAudio("turn_1"), session.ask("turn_1", said("one")))
        await session.settle()

    session = talked(scenario, engine(), UNREAD)
    assert session.spoken_text().strip() == "one"
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_an_answer_that_is_cancelled_as_soon_as_it_is_asked_for_ends_once():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.synthesizer.is_held = True
        puppet.say(text("Well. Yes."), events.ResponseEnded)
        session.answers = False
        await session.hear(END[: len(PAUSE) // 2])
        session.send(session.ask("turn_1", b""), commands.Cancel("resp_1"))
        await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert len(session.ends()) == 1


def test_an_answer_that_was_whole_when_it_was_asked_for_is_forgotten_then():
    async def scenario(session):
        for word in ("one", "two", "three"):
            await session.hear(said(word), PAUSE)
            puppet.say(text("Yes."), events.ResponseEnded)
            await session.hear(END)
            puppet.say(text("more"), events.ResponseEnded)  # nobody listens any more
            await session.settle()

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.counted == ["begun", "used"] * 3
    assert len(session.words(events.ResponseEnded)) == 3


def test_nothing_is_begun_where_that_is_switched_off():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        assert puppet.asks == []
        await session.hear(END)
        assert len(puppet.asks) == 1

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD, speculates=False)
    assert not session.cascade.capabilities.foresees
    assert session.counted == []


def test_what_is_held_back_is_dropped_with_the_conversation():
    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        puppet.say(text("Yes. No."), events.ResponseEnded)

    puppet = Puppet()
    session = talked(scenario, puppet, UNREAD)
    assert session.counted == ["begun", "dropped"]
    assert not session.words(events.ResponseEnded)


# The law

speaking = st.builds(lambda word: commands.AppendAudio(said(word)), st.sampled_from(["one", "two", "three"]))
silence = st.sampled_from([64, 96, 160, 320, 480, 800]).map(lambda ms: commands.AppendAudio(quiet(ms)))
otherwise = st.sampled_from(
    [
        LISTEN,
        structs.replace(LISTEN, turn_detection=None),
        structs.replace(LISTEN, turn_detection=TurnDetection(silence_duration_ms=320)),
        structs.replace(LISTEN, turn_detection=TurnDetection(silence_duration_ms=100)),
        commands.ClearAudio(),
        "commit",
        "cancel",
        "hold",
        "let_go",
        "truncate",
        "pause",
        "resume",
        "text",
    ]
)


@given(st.lists(speaking | silence | otherwise, max_size=24), st.booleans(), st.booleans())
def test_nothing_that_was_begun_early_is_seen(script, is_aloud, mishears):
    options = {"voice": VOICE if is_aloud else None}
    played = [talked(playing(script, mishears), engine(), LISTEN, speculates=early, **options) for early in (True, False)]
    early, late = ({id: said_of(session, id) for id in sorted(ids(session))} for session in played)
    if "pause" in script:  # of what is cancelled then, an answer that was begun early may be complete already
        cancelled = [id for id, (_, words) in late.items() if words and getattr(words[-1], "reason", None) == "cancelled"]
        assert early.keys() == late.keys()
        early, late = ({id: said for id, said in each.items() if id not in cancelled} for each in (early, late))
    assert early == late
    begun = played[0].counted
    assert begun.count("begun") == begun.count("used") + begun.count("dropped")
    assert all(len(session.ends(id)) == 1 for session in played for id in ids(session) if id.startswith("resp_"))


def ids(session):
    return {word.id for word in session.told.words}


def said_of(session, id):
    """All events of an answer or a turn; consecutive deltas count as one."""
    words = [word for word in session.told.words if word.id == id]
    heard = "".join(word.text for word in words if isinstance(word, events.InputTranscriptDelta))
    return heard, [word for word in words if not isinstance(word, events.InputTranscriptDelta)]


def playing(script, mishears):
    async def scenario(session):
        session.transcriber.mishears = mishears
        for step in script:
            await perform(session, step)
        session.transcriber.let_go()
        session.told.conversation.resume()
        session.send(LISTEN)
        await session.hear(END, END)

    return scenario


async def perform(session, step):
    match step:
        case commands.AppendAudio(pcm):
            await session.hear(pcm)
        case "commit":
            open_ids = [word.id for word in session.words(events.SpeechStarted)]
            over = [word.id for word in session.words(events.SpeechStopped)]
            session.committed = getattr(session, "committed", 0) + 1
            id = next((id for id in open_ids[-1:] if id not in over), f"hand_{session.committed}")
            if id not in [word.id for word in session.words(events.InputTranscriptDone)]:
                session.send(commands.CommitAudio(id))
        case "cancel":
            session.send(commands.Cancel(f"resp_{session.asked}"))
        case "hold" | "let_go":
            getattr(session.transcriber, step)()
        case "truncate":
            session.history = session.history[:-1]
        case "pause":
            session.told.conversation.pause()
        case "resume":
            session.told.conversation.resume()
        case "text":
            session.history = (*session.history, history.Message("user", (history.TextPart("and so"),)))
        case _:
            session.send(step)
    await session.settle()
