"""An answer in full duplex: the pace at which it is sent, and its part in the history."""

from hypothesis import given, strategies as st

from antiphon.audio import duration_ms
from antiphon.engine_api import events, history
from antiphon.engines.duplex.playback import PacedAnswer

RATE_HZ = 24_000
ID = "duplex_1"


def sound(ms):
    return events.AudioDelta(ID, bytes(2 * int(ms * RATE_HZ / 1000)))


def sent_ms(words):
    return duration_ms(sum(len(word.pcm) for word in words if isinstance(word, events.AudioDelta)), RATE_HZ)


STEPS = st.lists(
    st.one_of(
        st.builds(lambda ms: ("sound", ms), st.integers(0, 3000)),
        st.builds(lambda text: ("words", text), st.sampled_from(("one ", "two ", "three "))),
        st.builds(lambda ms: ("hear", ms), st.floats(0, 3000)),
        st.builds(lambda ms: ("lead", ms), st.floats(0, 2000)),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_more_is_on_its_way_than_the_lead_and_all_of_it_comes_in_order(steps):
    answer, made, told, lead_ms = PacedAnswer(ID, RATE_HZ), [], [], 1500.0

    def say_due():
        before_ms = answer.unplayed_ms
        words = list(answer.pop_due(lead_ms))
        told.extend(words)
        assert answer.unplayed_ms <= max(lead_ms, before_ms) + 0.1
        assert 0 <= answer.unplayed_ms <= sent_ms(told)

    for kind, value in steps:
        if kind == "hear":
            answer.advance(value)
        elif kind == "lead":
            lead_ms = value
        else:
            word = sound(value) if kind == "sound" else events.AudioTranscriptDelta(ID, value)
            made.append(word)
            assert answer.append([word])
        say_due()
    made.append(events.ResponseEnded(ID))
    answer.append(made[-1:])
    lead_ms = 1500.0
    for _ in range(200):
        answer.advance(1000)
        say_due()
    assert told.count(events.ResponseEnded(ID)) == (told != [])
    assert told[-1:] in ([events.ResponseEnded(ID)], [])
    assert sent_ms(told) == sent_ms(made)
    assert [word.text for word in told if isinstance(word, events.AudioTranscriptDelta)] == [
        word.text for word in made if isinstance(word, events.AudioTranscriptDelta)
    ]


@given(st.lists(st.tuples(st.integers(20, 2000), st.sampled_from(("one ", "two ", "three "))), min_size=1), st.floats(0, 30_000))
def test_of_an_answer_that_is_cut_those_words_are_remembered_whose_sound_had_begun(said, heard_ms):
    answer = PacedAnswer(ID, RATE_HZ)
    for ms, text in said:
        answer.append([events.AudioTranscriptDelta(ID, text), sound(ms)])
    list(answer.pop_due(60_000))
    answer.advance(heard_ms)
    starts = [sum(ms for ms, _ in said[:at]) for at in range(len(said))]
    words = "".join(text for (_, text), start in zip(said, starts, strict=True) if start < heard_ms)
    whole_ms = sum(ms for ms, _ in said)
    wanted = history.Message("assistant", (history.TextPart(words),), played_ms=round(min(heard_ms, whole_ms))) if words else None
    if whole_ms < 60_000:
        assert answer.message() == wanted


def test_the_first_sound_leaves_the_moment_it_is_made():
    answer = PacedAnswer(ID, RATE_HZ)
    answer.append([events.AudioTranscriptDelta(ID, "Hello"), sound(20)])
    assert list(answer.pop_due(1000)) == [events.AudioTranscriptDelta(ID, "Hello"), sound(20)]


def test_words_wait_for_the_sound_that_they_are_heard_in():
    answer = PacedAnswer(ID, RATE_HZ)
    answer.append([events.AudioTranscriptDelta(ID, "One"), sound(1000), events.AudioTranscriptDelta(ID, "two"), sound(500)])
    assert list(answer.pop_due(1000)) == [events.AudioTranscriptDelta(ID, "One"), sound(1000)]
    answer.advance(100)
    assert list(answer.pop_due(1000)) == [events.AudioTranscriptDelta(ID, "two"), sound(100)]


def test_a_player_that_ran_dry_is_not_ahead():
    answer = PacedAnswer(ID, RATE_HZ)
    answer.append([sound(200)])
    list(answer.pop_due(1000))
    answer.advance(5000)
    answer.append([sound(3000)])
    assert sent_ms(answer.pop_due(1000)) == 1000


def test_what_is_no_word_of_an_answer_is_left_out():
    answer = PacedAnswer(ID, RATE_HZ)
    answer.append(
        [events.ReasoningDelta(ID, "Hm."), events.ToolCallStarted(ID, "call_1", "f"), events.TextDelta(ID, "Yes"), events.ResponseEnded(ID)]
    )
    assert list(answer.pop_due(1000)) == [events.TextDelta(ID, "Yes"), events.ResponseEnded(ID)]
    assert answer.message() == history.Message("assistant", (history.TextPart("Yes"),))
