"""Recordings of any length, written down in stretches."""

from antiphon.speech.base import join_text
from antiphon.speech.stt.long_form import MAX_TIMED_SEGMENT_S, transcribe_long
from antiphon.speech.stt.segmenting import MAX_SEGMENT_S
from support.speech.running import run
from support.speech.transcribers import OPTIONS, WordTranscriber, silence

WORDS = [f"word{number}" for number in range(400)]


def passages(ear, *seconds):
    async def sound():
        for each in seconds:
            yield silence(each)

    async def scenario():
        return [passage async for passage in transcribe_long(ear, sound(), OPTIONS)]

    return run(scenario())


def test_a_short_recording_is_one_stretch():
    (passage,) = passages(WordTranscriber(WORDS), 1, 1)
    assert (passage.start_s, passage.end_s, join_text([passage])) == (0, 2, "word0 word1 word2 word3")


def test_of_a_long_one_no_stretch_is_longer_than_the_ear_hears_well():
    for has_times, longest_s in ((True, MAX_TIMED_SEGMENT_S), (False, MAX_SEGMENT_S)):
        ear = WordTranscriber(WORDS)
        ear.has_times = has_times
        told = passages(ear, *[7] * 15)
        assert sum(ear.asked) == 105_000
        assert max(ear.asked) <= longest_s * 1000
        assert [each.end_s for each in told[:-1]] == [each.start_s for each in told[1:]]


def test_how_a_recording_comes_makes_no_difference():
    ears = [WordTranscriber(WORDS), WordTranscriber(WORDS)]
    assert passages(ears[0], 90) == passages(ears[1], *[0.5] * 180)


def test_times_are_those_in_the_recording():
    told = passages(WordTranscriber(WORDS), 40)
    assert len(told) == 2
    second = next(told[1].segments)
    assert (second.start_s, second.end_s) == (told[1].start_s, told[1].start_s + 0.5)


def test_an_ear_that_tells_no_times_has_one_segment_a_stretch():
    class Timeless(WordTranscriber):
        has_times = False
        is_free = True

        async def transcribe(self, pcm, wish):
            heard = await super().transcribe(pcm, wish)
            return type(heard)(text=heard.text)

    (passage,) = passages(Timeless(WORDS), 2)
    assert [(each.text, each.start_s, each.end_s) for each in passage.segments] == [("word0 word1 word2 word3", 0, 2)]
    assert list(passage.words) == []


def test_what_comes_is_not_held_longer_than_a_stretch():
    ear = WordTranscriber(WORDS)
    given = []

    async def sound():
        for _ in range(10):
            given.append(len(ear.asked))
            yield silence(20)

    async def scenario():
        return [passage async for passage in transcribe_long(ear, sound(), OPTIONS)]

    run(scenario())
    assert given[-1] >= 6
