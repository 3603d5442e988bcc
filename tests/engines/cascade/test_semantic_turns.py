"""When a turn ends that is detected by how complete it sounds, and by its words."""

import asyncio

import pytest
from msgspec import structs

from antiphon.engine_api import events
from antiphon.engine_api.options import TurnDetection
from antiphon.errors import ServerError
from support.engines.cascades import LISTEN, UNREAD, WORD_MS, Ear, Puppet, quiet, said, talked

SEMANTIC = structs.replace(UNREAD, turn_detection=TurnDetection(kind="semantic_vad"))
AFTER_MS = {"complete": 400, "unknown": 800, "mark": 1120, "word": 2200}


class Ending(Ear):
    """Writes something behind each transcript, the one after the other, and the last for all that follow."""

    def __init__(self, *ends):
        super().__init__()
        self.ends = list(ends)

    async def transcribe(self, pcm, options):
        transcript = await super().transcribe(pcm, options)
        return structs.replace(transcript, text=transcript.text + (self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]))


class Judge:
    """
    Says how complete a turn sounds.

    Attributes:
        is_held: whether it takes until the test is over.
    """

    def __init__(self, likelihood=0.99, *, is_held=False):
        self.likelihood_of_all = likelihood
        self.is_held = is_held

    async def start(self):
        pass

    async def stop(self):
        pass

    async def likelihood(self, pcm):
        if self.is_held:
            await asyncio.Event().wait()
        return self.likelihood_of_all


def silence_ms(*ends, configure=SEMANTIC, transcriber=None, judge=None, **options):
    """How long it was quiet until the turn ended; its end is heard a frame at a time."""

    async def scenario(session):
        await session.hear(said("one", "two"))
        while not session.words(events.SpeechStopped):
            await session.hear(quiet(32))

    transcriber = transcriber or Ending(*ends)
    session = talked(scenario, Puppet(), configure, transcriber=transcriber, smart_turn=judge or Judge(), **options)
    (stopped,) = session.words(events.SpeechStopped)
    return stopped.at_ms - 2 * WORD_MS


@pytest.mark.parametrize(
    ("end", "after"),
    [(".", "complete"), ("?", "complete"), (",", "mark"), ("...", "mark"), (" and", "word"), (" of.", "word"), (", a more?", "word")],
)
@pytest.mark.parametrize("speculates", [True, False])
def test_a_turn_whose_words_go_on_waits_longer_though_it_sounds_complete(end, after, speculates):
    assert silence_ms(end, speculates=speculates) == AFTER_MS[after]


def test_words_that_are_complete_end_no_turn_that_does_not_sound_so():
    assert silence_ms(".", judge=Judge(0.1)) == 4_000


def test_a_mark_is_missed_once_the_transcriber_has_set_one():
    assert silence_ms("") == AFTER_MS["complete"]
    assert silence_ms(".", "") == AFTER_MS["mark"]


def test_the_whole_transcript_counts_and_not_the_early_one():
    assert silence_ms(",", ".") == AFTER_MS["complete"]
    assert silence_ms(".", " and") == AFTER_MS["word"]


@pytest.mark.parametrize(("end", "after"), [(".", "unknown"), (",", "mark"), (" and", "word")])
@pytest.mark.parametrize("judge", [Judge(is_held=True), Judge(None)], ids=["late", "busy"])
def test_a_turn_that_nobody_judged_in_time_ends_after_a_middle_time(judge, end, after):
    assert silence_ms(end, judge=judge) == AFTER_MS[after]


def test_words_change_nothing_where_only_the_silence_counts():
    assert silence_ms(" and", configure=UNREAD) == UNREAD.turn_detection.silence_duration_ms


def test_a_transcript_that_fails_or_comes_too_late_changes_nothing():
    deaf, slow = Ending(","), Ending(",")
    deaf.faults = [ServerError("Deaf.")] * 9
    slow.is_held = True
    assert silence_ms(transcriber=deaf) == AFTER_MS["complete"]
    assert silence_ms(transcriber=slow) == AFTER_MS["complete"]


def test_speech_that_goes_on_after_a_comma_is_one_turn():
    async def scenario(session):
        await session.hear(said("one"))
        for _ in range(30):
            await session.hear(quiet(32))
        await session.hear(said("two"))
        for _ in range(40):
            await session.hear(quiet(32))

    configure = structs.replace(LISTEN, turn_detection=SEMANTIC.turn_detection)
    session = talked(scenario, Puppet(), configure, transcriber=Ending(","), smart_turn=Judge())
    assert session.transcripts() == [("turn_1", "one two,")]
