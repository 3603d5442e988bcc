"""Partial transcripts."""

import asyncio

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError
from antiphon.speech.base import TimedText, Transcript
from antiphon.speech.stt.partials import POLICIES_BY_DELAY, LocalAgreement, PartialsPolicy, PartialTranscriber
from support.speech.running import run
from support.speech.transcribers import OPTIONS, WordTranscriber, silence

WORDS = ("ten", "of", "clubs", "and", "seven", "of", "hearts")


def told(*rounds, agreeing=2):
    agreement = LocalAgreement(agreeing)
    return [agreement.add_hypothesis(text) for text in rounds]


def test_words_are_told_once_two_rounds_agree_on_them():
    assert told("Ten", "Ten of", "Ten of clubs", "Ten of clubs and") == ["", "Ten", " of", " clubs"]


def test_a_word_that_may_go_on_is_not_told():
    assert told("seven of heart", "seven of hearts") == ["", "seven of"]


def test_a_mark_is_told_with_the_word_behind_it():
    assert told("Ten.", "Ten.", "Ten. Of", "Ten. Of") == ["", "Ten", "", ". Of"]


def test_nothing_is_told_of_what_changes():
    assert told("Tan of", "Ten off", "Ten of", "Ten of") == ["", "", "Ten", " of"]


def test_writing_without_spaces_is_told_letter_by_letter():
    assert told("今天天", "今天天气") == ["", "今天天"]


def test_three_rounds_may_have_to_agree():
    assert told("Ten of", "Ten of clubs", "Ten of clubs", agreeing=3) == ["", "", "Ten of"]


def test_what_is_told_stays_and_the_rest_goes_on_behind_it():
    agreement = LocalAgreement()
    for text in ("Tan of clubs", "Tan of clubs"):
        agreement.add_hypothesis(text)
    assert agreement.finish("Ten of clubs, and seven.") == ", and seven."
    assert agreement.confirmed_text == "Tan of clubs, and seven."


@pytest.mark.parametrize(
    ("before", "transcript", "rest"),
    [
        ("Ten of clubs", "Ten of clubs.", "."),
        ("ten of clubs", "Ten of clubs. And", ". And"),
        ("Ten of", "Ten clubs", " clubs"),
        ("Ten clubs", "Ten of clubs and", " and"),
        ("Ten of clubs", "Ten", ""),
        ("Ten of clubs", "", ""),
        ("", "Ten of clubs", "Ten of clubs"),
    ],
)
def test_the_rest_is_what_no_word_was_told_of(before, transcript, rest):
    agreement = LocalAgreement(1)
    agreement.add_hypothesis(before)
    assert agreement.finish(transcript) == rest


text = st.lists(st.sampled_from(["ten", "of", "Of", "clubs,", "club", "and.", "7", "。", "天"]), max_size=8).map(" ".join)


@given(st.lists(text, max_size=8), text)
def test_rounds_of_any_kind_never_take_back_a_word_and_end_with_the_end(rounds, transcript):
    agreement = LocalAgreement()
    pieces = [agreement.add_hypothesis(each) for each in rounds] + [agreement.finish(transcript)]
    assert "".join(pieces) == agreement.confirmed_text
    if all(transcript.startswith(each) for each in rounds):
        assert agreement.confirmed_text == transcript


class Turn:
    """A turn in steps of 100 ms; `told` has each delta with the audio so far."""

    def __init__(self, ear, wish=OPTIONS, pace=None):
        self.told = []
        self.ear = ear
        self.partials = PartialTranscriber(ear, wish, lambda more: self.told.append((more, int(self.partials.audio_ms))), pace)

    async def hear(self, ms):
        for _ in range(ms // 100):
            self.partials.append_audio(silence(0.1))
            for _ in range(5):
                await asyncio.sleep(0)


async def while_running(turn, ms):
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(turn.partials.run())
        await turn.hear(ms)
        running.cancel()


class Marking(WordTranscriber):
    async def transcribe(self, pcm, wish):
        transcript = await super().transcribe(pcm, wish)
        return Transcript(text=", ".join(transcript.text.split()) + ".")


def test_a_hypothesis_has_the_marks_between_its_words_and_none_at_its_end():
    async def scenario():
        turn, hypotheses = Turn(Marking(WORDS)), []
        turn.partials = PartialTranscriber(turn.ear, OPTIONS, None, on_hypothesis=hypotheses.append)
        await while_running(turn, 1_300)
        assert turn.ear.asked == [500, 1_000]
        assert hypotheses == ["ten", "ten, of"]
        assert turn.partials.confirmed_text == "", "nobody read it"

    run(scenario())


def test_a_round_for_the_hypothesis_alone_is_left_out_while_others_wait_unless_a_segment_is_full():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS * 20))
        turn.partials = PartialTranscriber(turn.ear, OPTIONS, None, on_hypothesis=lambda _text: None)
        turn.ear.is_free = False
        await while_running(turn, 19_000)
        assert turn.ear.asked == []
        await while_running(turn, 2_000)
        assert turn.ear.asked

    run(scenario())


def test_words_are_told_while_the_turn_goes_on():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        await while_running(turn, 2_000)
        assert turn.ear.asked == [300, 600, 900, 1_200, 1_500, 1_800]
        assert turn.told == [("ten", 900), (" of", 1_500), (" clubs", 1_800)]
        transcript = await turn.partials.transcript()
        assert transcript.text == "ten of clubs and"
        assert turn.partials.finish(transcript.text) == " and"
        assert turn.partials.confirmed_text == transcript.text

    run(scenario())


def test_a_turn_goes_on_after_a_transcript_was_made_of_it():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        await while_running(turn, 1_000)
        assert (await turn.partials.transcript()).text == "ten of"
        await while_running(turn, 1_000)
        assert (await turn.partials.transcript()).text == "ten of clubs and"

    run(scenario())


def test_a_client_that_sends_everything_at_once_is_heard_in_one_round():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        turn.partials.append_audio(silence(3))
        await while_running(turn, 0)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(turn.partials.run())
            await asyncio.sleep(0)
            running.cancel()
        assert len(turn.ear.asked) <= 2

    run(scenario())


def test_a_long_turn_is_settled_stretch_by_stretch():
    async def scenario():
        words = [f"w{number}" for number in range(100)]
        turn = Turn(WordTranscriber(words))
        turn.partials.append_audio(silence(45))
        transcript = await turn.partials.transcript()
        assert turn.ear.asked[-1] <= 20_000
        assert sum(turn.ear.asked) == 45_000
        assert [part.start_s for part in transcript.segments] == sorted(part.start_s for part in transcript.segments)
        assert transcript.segments[-1].end_s > 44
        assert transcript.tokens == len(transcript.segments)
        turn.partials.append_audio(silence(1))
        await turn.partials.transcript()
        assert sum(turn.ear.asked[:-2]) + turn.ear.asked[-1] == 46_000

    run(scenario())


def test_an_ear_that_is_overloaded_is_left_alone_for_a_while():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        turn.ear.fault = ApiError("Too much.", status=503, retry_after_s=1)
        await while_running(turn, 2_000)
        assert turn.ear.asked == [300, 1_300, 1_600, 1_900]

    run(scenario())


def test_the_whole_transcript_fails_where_the_ear_does():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        turn.ear.fault = ApiError("Too much.", status=503)
        with pytest.raises(ApiError):
            await turn.partials.transcript()

    run(scenario())


@pytest.mark.parametrize("delay", [*POLICIES_BY_DELAY, None])
def test_a_longer_delay_lets_more_rounds_agree(delay):
    async def scenario():
        turn = Turn(WordTranscriber(WORDS), Transcription(delay=delay))
        await while_running(turn, 3_000)
        pace = POLICIES_BY_DELAY.get(delay or "low", PartialsPolicy())
        assert turn.ear.asked[0] == pace.interval_ms
        assert turn.told

    run(scenario())


def test_what_nobody_can_have_said_in_that_time_is_left_out():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        turn.partials.append_audio(silence(3))
        assert (await turn.partials.transcript(speech_s=2)).text == "ten of clubs and seven of"
        assert await turn.partials.transcript(speech_s=0.05) == Transcript(text="", tokens=6)

    run(scenario())


def test_times_count_from_the_beginning_of_the_turn():
    async def scenario():
        turn = Turn(WordTranscriber(WORDS))
        turn.partials.append_audio(silence(1))
        assert (await turn.partials.transcript()).segments == (TimedText("ten", 0, 0.5), TimedText("of", 0.5, 1))

    run(scenario())
