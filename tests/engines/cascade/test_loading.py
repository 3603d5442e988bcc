"""A conversation that begins before the speech models are loaded: what needs none of them doesn't wait, and nothing said is lost."""

import asyncio

import pytest

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engines.cascade import loading
from antiphon.errors import ServerError
from support.engines.cascades import BY_HAND, LISTEN, RATE_HZ, VOICE, Puppet, quiet, said, talked, text
from support.engines.hearings import engine

PAUSE = quiet(800)
DAMAGED = ServerError("The voice is damaged.", code="weights_unavailable")


class Loader:
    """
    Loads when it is let, or fails.

    Attributes:
        faults: raised, one each time.
        asked: how often it was asked to.
    """

    def __init__(self, *faults):
        self.faults = list(faults)
        self.asked = 0
        self.is_loaded = False
        self._signal = asyncio.Event()

    def let_go(self):
        self._signal.set()

    async def load(self):
        self.asked += 1
        await self._signal.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.is_loaded = True


def asked(*parts, id="resp_1", voice=VOICE):
    said_parts = tuple(engine_history.TextPart(part) if isinstance(part, str) else part for part in parts)
    return commands.Respond(id=id, history=(engine_history.Message("user", said_parts),), voice=voice)


def test_what_is_said_while_the_models_are_loaded_is_heard_as_if_they_had_been_there():
    def play(loader):
        async def scenario(session):
            await session.hear(said("one", "two"), PAUSE, said("three"))
            if loader is not None:
                assert not session.told.words
                loader.let_go()
            await session.hear(said("four"), PAUSE)

        session = talked(scenario, engine(), LISTEN, loader=loader)
        return [*session.told.words]

    heard_late, heard_at_once = play(Loader()), play(None)
    assert [word for word in heard_late if isinstance(word, events.SpeechStarted | events.SpeechStopped)] == [
        word for word in heard_at_once if isinstance(word, events.SpeechStarted | events.SpeechStopped)
    ]
    transcripts = [
        [word.transcript for word in heard if isinstance(word, events.InputTranscriptDone)] for heard in (heard_late, heard_at_once)
    ]
    assert transcripts == [["one two", "three four"]] * 2


def test_turns_that_are_committed_meanwhile_are_transcribed_and_answered():
    loader = Loader()

    async def scenario(session):
        session.send(
            commands.AppendAudio(said("five")), commands.ClearAudio(), commands.AppendAudio(said("six")), commands.CommitAudio("turn_1")
        )
        session.send(asked(engine_history.SpeechPart(said("six"), RATE_HZ, "turn_1")))
        await session.settle()
        assert not session.told.words
        loader.let_go()
        await session.settle()

    session = talked(scenario, engine(), BY_HAND, loader=loader)
    assert session.transcripts() == [("turn_1", "six")]
    assert session.spoken_text() == "six"
    assert session.transcriber.asked == [160], "the words of the turn are asked for once"


def test_an_answer_in_writing_waits_for_no_model():
    async def scenario(session):
        session.send(asked("Hello", voice=None))
        await session.settle()

    session = talked(scenario, engine(), LISTEN, loader=Loader())
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_an_answer_aloud_is_thought_of_while_the_voice_is_loaded():
    loader, puppet = Loader(), Puppet()

    async def scenario(session):
        session.send(asked("Hello"))
        await session.settle()
        puppet.say(text("Good day."), events.ResponseEnded)
        await session.settle()
        assert not session.told.words
        loader.let_go()
        await session.settle()

    session = talked(scenario, puppet, LISTEN, loader=loader)
    assert session.spoken_text() == "Good day."
    assert session.ends() == [events.ResponseEnded("resp_1")]


def test_a_client_that_leaves_meanwhile_leaves_nothing_behind():
    loader = Loader()

    async def scenario(session):
        session.send(asked("Hello"))
        await session.hear(said("one"))

    session = talked(scenario, Puppet(), LISTEN, loader=loader)
    assert session.told.words == []


def test_models_that_can_not_be_loaded_fail_what_needs_them_and_are_loaded_anew():
    loader = Loader(DAMAGED)
    loader.let_go()

    async def scenario(session):
        await session.hear(said("one"), PAUSE)
        session.send(commands.CommitAudio("turn_0"))
        assert session.words(events.EngineError) == [events.EngineError(message="The voice is damaged.", code="weights_unavailable")]
        assert [word.id for word in session.words(events.InputTranscriptFailed)] == ["turn_0"]
        assert loader.asked == 1, "not with every packet"
        session.send(asked("Hello"))
        await session.settle()
        assert loader.asked == 2
        await session.hear(said("two"), PAUSE)

    session = talked(scenario, engine(), LISTEN, loader=loader, answers=False)
    assert session.ends() == [events.ResponseEnded("resp_1")]
    assert [word.transcript for word in session.words(events.InputTranscriptDone)] == ["two"]
    started = session.words(events.SpeechStarted)
    assert [word.at_ms for word in started] == [660], "what was dropped counts as time that has passed"


def test_a_response_fails_with_the_reason_where_its_voice_can_not_be_loaded():
    loader, puppet = Loader(DAMAGED, DAMAGED), Puppet()
    loader.let_go()

    async def scenario(session):
        session.send(asked("Hello"))
        await session.settle()

    session = talked(scenario, puppet, LISTEN, loader=loader)
    (failure,) = session.ends()
    assert (failure.code, failure.message) == ("weights_unavailable", "The voice is damaged.")
    assert commands.Cancel("resp_1") in puppet.told


def test_what_waits_has_a_limit():
    async def scenario(session):
        minute = quiet(60_000)
        for _ in range(22):  # 15 minutes at 24 kHz are 22.5 at 16 kHz
            session.send(commands.AppendAudio(minute))
        with pytest.raises(EngineOverrun):
            session.send(commands.AppendAudio(minute))
        for _ in range(loading.MAX_WAITING_COMMANDS - 23):
            session.send(commands.ClearAudio())
        with pytest.raises(EngineOverrun):
            session.send(commands.ClearAudio())

    talked(scenario, engine(), LISTEN, loader=Loader())
