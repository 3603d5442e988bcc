"""What a cascade hears: turns, their partial and final transcripts, and what is withdrawn."""

import asyncio

import pytest
from msgspec import structs

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import Transcription, TurnDetection
from antiphon.engines.cascade.input import MAX_VAD_BACKLOG_MS
from antiphon.errors import ServerError
from support.engines.cascades import BY_HAND, FRAME_MS, LISTEN, RATE_HZ, UNREAD, WORD_MS, Ear, Puppet, quiet, said, talked

PAUSE = quiet(800)


def heard(scenario, *first, **options):
    return talked(scenario, Puppet(), *first, answers=False, **options)


def test_a_turn_is_told_and_then_its_words():
    async def scenario(session):
        await session.hear(quiet(1024), said("one", "two"), PAUSE)

    session = heard(scenario, LISTEN)
    (started, stopped) = session.words(events.SpeechStarted, events.SpeechStopped)
    assert (started.at_ms, stopped.at_ms) == (1024 - 300, 1024 + 2 * WORD_MS + 480)
    assert session.transcripts() == [("turn_1", "one two")]
    assert "".join(word.text for word in session.words(events.InputTranscriptDelta)) == "one two"


def test_words_are_told_while_they_are_said_and_never_taken_back():
    async def scenario(session):
        await session.hear(said("one", "two", "three", "four", "five"))
        assert "".join(word.text for word in session.words(events.InputTranscriptDelta)).startswith("one two")
        assert not session.words(events.InputTranscriptDone)
        await session.hear(said("six"), PAUSE)

    session = heard(scenario, LISTEN)
    assert len(session.words(events.InputTranscriptDelta)) > 1
    assert "".join(word.text for word in session.words(events.InputTranscriptDelta)) == "one two three four five six"
    assert session.transcripts() == [("turn_1", "one two three four five six")]


def test_nobody_writes_down_what_is_being_said_where_nobody_reads_along():
    async def scenario(session):
        await session.hear(said(*["one", "two"] * 10))
        assert session.transcriber.asked == []
        await session.hear(PAUSE)
        assert len(session.transcriber.asked) == 1

    session = heard(scenario, UNREAD)
    assert not session.words(events.InputTranscriptDelta, events.InputTranscriptDone)


def test_words_that_the_answer_needs_are_told_though_nobody_asked_for_them():
    async def scenario(session):
        await session.hear(said("one", "two"), PAUSE)

    session = heard(scenario, UNREAD)
    assert session.transcripts() == [("turn_1", "one two")] and not session.words(events.InputTranscriptDelta)


def test_a_turn_without_end_is_settled_while_it_is_said_so_that_little_is_left_for_the_end():
    async def scenario(session):
        await session.hear(said(*["one", "two"] * 150))
        assert session.transcriber.asked, "48 s are more than is written down at once"
        await session.hear(PAUSE)
        assert max(session.transcriber.asked) <= 20_000

    heard(scenario, UNREAD)


def test_the_times_of_segments_are_told_where_the_ear_knows_them():
    async def scenario(session):
        await session.hear(said("one", "two"), PAUSE)

    session = heard(scenario, LISTEN, transcriber=Ear(has_times=True))
    assert [(word.text, word.start_s) for word in session.words(events.InputTranscriptSegment)] == [("one", 0.0), ("two", 0.1)]
    assert isinstance(session.told.words[-1], events.InputTranscriptDone)


def test_turns_of_a_minute_that_came_at_once_are_all_heard():
    async def scenario(session):
        session.send(commands.AppendAudio((said("one", "two") + PAUSE + quiet(10_000)) * 6))
        await session.told.until(lambda: len(session.transcripts()) == 6)

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [(f"turn_{number}", "one two") for number in range(1, 7)]


def test_transcripts_come_in_the_order_of_their_turns_however_long_one_takes():
    async def scenario(session):
        session.transcriber.is_held = True
        await session.hear(said("one"), PAUSE)
        session.transcriber.is_held = False
        await session.hear(said("two"), PAUSE)
        assert session.transcripts() == []
        session.transcriber.let_go()
        await session.settle()

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_1", "one"), ("turn_2", "two")]


def test_an_ear_that_fails_fails_that_turn_and_hears_the_next():
    async def scenario(session):
        session.transcriber.faults = [ServerError("Too much to hear.", code="server_is_overloaded")] * 2  # in the pause, and at the end
        await session.hear(said("one"), PAUSE)
        await session.hear(said("two"), PAUSE)

    session = heard(scenario, structs.replace(LISTEN, transcription=Transcription(delay="xhigh")))
    (failed,) = session.words(events.InputTranscriptFailed)
    assert (failed.id, failed.code) == ("turn_1", "server_is_overloaded")
    assert session.transcripts() == [("turn_2", "two")]


def test_what_failed_in_the_pause_is_tried_again_at_the_end():
    async def scenario(session):
        session.transcriber.faults = [ServerError("Too much to hear.")]
        await session.hear(said("one"), PAUSE)

    assert heard(scenario, UNREAD).transcriber.asked != []
    assert heard(scenario, structs.replace(LISTEN, transcription=Transcription(delay="xhigh"))).transcripts() == [("turn_1", "one")]


def test_speech_that_goes_on_after_a_pause_is_one_turn():
    async def scenario(session):
        await session.hear(said("one"), quiet(320), said("two"), PAUSE)

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_1", "one two")]


def test_a_click_makes_no_words():
    async def scenario(session):
        await session.hear(quiet(320), said("one")[: FRAME_MS * 2 * RATE_HZ // 1000 * 2], PAUSE)

    session = heard(scenario, LISTEN)
    assert session.transcripts() in ([], [("turn_1", "")])


def test_turns_committed_by_hand_have_the_words_of_their_own_sound():
    async def scenario(session):
        for number, word in enumerate(("one", "two", "three")):
            await session.hear(said(word), quiet(100))
            session.send(commands.CommitAudio(f"hand_{number}"))
        await session.settle()

    session = heard(scenario, BY_HAND)
    assert session.transcripts() == [("hand_0", "one"), ("hand_1", "two"), ("hand_2", "three")]


def test_a_turn_that_is_committed_while_it_is_open_has_all_that_was_said():
    async def scenario(session):
        await session.hear(said("one", "two"))
        session.send(commands.AppendAudio(said("three")))
        session.send(commands.CommitAudio("turn_1"))
        await session.hear(quiet(2000), said("four"), PAUSE)

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_1", "one two three"), ("turn_2", "four")]
    assert [word.id for word in session.words(events.SpeechStopped)] == ["turn_2"]


@pytest.mark.parametrize("frames", range(0, 40))
def test_whatever_is_committed_before_it_is_told_is_one_turn_with_all_its_words(frames):
    """The session commits its audio, while the detector has found a turn in it, or its end, and not reported it yet."""

    async def scenario(session):
        session.send(commands.AppendAudio(said("one", "two") + quiet(640) + said("three")))
        for _ in range(frames):
            await asyncio.sleep(0)
        open_ids = [word.id for word in session.words(events.SpeechStarted)]
        closed_ids = [word.id for word in session.words(events.SpeechStopped)]
        now_open = [id for id in open_ids if id not in closed_ids]
        session.send(commands.CommitAudio(now_open[-1] if now_open else "hand"))
        await session.hear(quiet(1000), said("four"), PAUSE)

    session = heard(scenario, LISTEN)
    words = " ".join(transcript for _, transcript in session.transcripts())
    assert words.split() == ["one", "two", "three", "four"]
    begun = [word.id for word in session.words(events.SpeechStarted)]
    over = [id for id, _ in session.transcripts()]
    assert set(begun) <= set(over), "no turn that was told stays open"
    assert len(set(over)) == len(over)


@pytest.mark.parametrize("frames", range(0, 40))
def test_nothing_is_told_of_a_turn_that_was_forgotten_before_it_was_told(frames):
    async def scenario(session):
        session.send(commands.AppendAudio(said("one", "two") + quiet(640)))
        for _ in range(frames):
            await asyncio.sleep(0)
        told = len(session.told.words)
        is_over = bool(session.words(events.SpeechStopped))
        session.send(commands.ClearAudio())
        await session.settle()
        if not is_over:
            assert session.told.words[told:] == []
        await session.hear(quiet(1000), said("four"), PAUSE)
        if not is_over:
            assert [text for _, text in session.transcripts()] == ["four"]

    heard(scenario, LISTEN)


def test_a_turn_is_none_when_turn_detection_is_switched_off():
    async def scenario(session):
        await session.hear(said("one"))
        session.send(structs.replace(LISTEN, turn_detection=None))
        await session.hear(said("two"), PAUSE)
        assert not session.words(events.SpeechStopped, events.InputTranscriptDone)
        session.send(LISTEN)
        await session.hear(said("three"), PAUSE)

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_2", "three")]


def test_other_settings_in_the_middle_of_a_turn_leave_it_open():
    async def scenario(session):
        await session.hear(said("one"))
        session.send(structs.replace(LISTEN, turn_detection=TurnDetection(silence_duration_ms=200)))
        await session.hear(said("two"), quiet(300))

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_1", "one two")]


def test_the_clock_goes_on_when_the_rate_changes():
    async def scenario(session):
        await session.hear(quiet(1000))
        session.send(structs.replace(LISTEN, rate_hz=8000))
        await session.hear(quiet(500))  # a second at that rate
        session.send(LISTEN)
        await session.hear(quiet(64), said("one"), PAUSE)

    (started,) = heard(scenario, LISTEN).words(events.SpeechStarted)
    assert started.at_ms == pytest.approx(2064 - 300, abs=64)


def test_much_more_sound_than_can_be_listened_to_is_passed_over_and_said_so():
    async def scenario(session):
        session.send(commands.AppendAudio(quiet(MAX_VAD_BACKLOG_MS + 1000)))
        await session.settle()
        assert [word.code for word in session.words(events.EngineError)] == ["audio_too_fast"]
        await session.hear(quiet(320), said("one"), PAUSE)

    session = heard(scenario, LISTEN)
    assert session.transcripts() == [("turn_1", "one")]
    assert session.words(events.SpeechStarted)[0].at_ms > MAX_VAD_BACKLOG_MS


def test_leaving_while_the_ear_is_at_work_stops_it():
    async def scenario(session):
        session.transcriber.is_held = True
        await session.hear(said("one"), PAUSE, said("two"))

    session = heard(scenario, UNREAD)
    assert session.transcriber.stopped == len(session.transcriber.asked) > 0
