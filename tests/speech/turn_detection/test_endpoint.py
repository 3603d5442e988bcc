"""The turns that probabilities make."""

import itertools

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.options import TurnDetection
from antiphon.speech.turn_detection.endpoint import (
    FRAME_MS,
    TRANSITIONS,
    WAITS_MS,
    DurationReached,
    EndpointDetector,
    EndpointState,
    FrameLevel,
    TurnCheckRequested,
    TurnEnded,
    TurnPaused,
    TurnResumed,
    TurnStarted,
)

SPEECH, SILENCE = 0.9, 0.0
SEMANTIC = TurnDetection(kind="semantic_vad")


class Listener:
    """An endpoint, and what happened."""

    def __init__(self, asked=None):
        self.endpoint = EndpointDetector(asked or TurnDetection())
        self.now_ms = 0

    def hear(self, probability, ms):
        happened = []
        for _ in range(ms // FRAME_MS):
            happened += self.endpoint.process_frame(self.now_ms, probability)
            self.now_ms += FRAME_MS
        return happened


def test_a_turn_starts_with_its_padding_and_stops_after_its_silence():
    listener = Listener()
    assert listener.hear(SILENCE, 640) == []
    assert listener.hear(SPEECH, 640) == [TurnStarted(640 - 300)]
    assert listener.hear(SILENCE, 480) == [TurnPaused(1280)]
    assert listener.hear(SILENCE, 32) == [TurnEnded(1280 + 500)]


@pytest.mark.parametrize("silence_ms", [0, 32, 200, 511, 512, 513, 2000])
def test_the_silence_is_honoured_to_the_frame(silence_ms):
    listener = Listener(TurnDetection(silence_duration_ms=silence_ms))
    listener.hear(SPEECH, 320)
    while listener.endpoint.is_speaking:
        happened = listener.hear(SILENCE, FRAME_MS)
    assert happened[-1] == TurnEnded(320 + silence_ms)
    assert silence_ms <= listener.now_ms - 320 < max(silence_ms, 1) + FRAME_MS


@pytest.mark.parametrize("padding_ms", [0, 100, 640, 10_000])
def test_padding_never_reaches_before_the_beginning(padding_ms):
    listener = Listener(TurnDetection(prefix_padding_ms=padding_ms))
    listener.hear(SILENCE, 640)
    assert listener.hear(SPEECH, 640) == [TurnStarted(max(640 - padding_ms, 0))]


def test_padding_never_reaches_into_the_turn_before():
    listener = Listener(TurnDetection(silence_duration_ms=100))
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 128)
    assert listener.hear(SPEECH, 320)[0] == TurnStarted(420)


def test_padding_never_reaches_into_what_was_forgotten():
    listener = Listener()
    listener.hear(SILENCE, 640)
    listener.endpoint.reset(600)
    assert listener.hear(SPEECH, 320)[0] == TurnStarted(600)


def test_a_turn_that_is_forgotten_stops_without_a_word_and_what_goes_on_is_another():
    listener = Listener()
    listener.hear(SPEECH, 640)
    listener.endpoint.reset(640)
    assert not listener.endpoint.is_speaking
    assert listener.hear(SPEECH, 320) == [TurnStarted(640)]


def test_a_click_is_no_turn():
    listener = Listener()
    listener.hear(SILENCE, 320)
    assert listener.hear(SPEECH, 32) + listener.hear(SILENCE, 640) == []
    assert listener.hear(SPEECH, 64) == [TurnStarted(992 - 300)]


def test_speech_that_fades_goes_on_until_it_is_well_below_the_threshold():
    listener = Listener(TurnDetection(threshold=0.6))
    assert listener.hear(0.59, 640) == []
    listener.hear(0.6, 64)
    assert listener.hear(0.46, 640) == []
    assert listener.hear(0.44, 32) == [TurnPaused(1344)]
    assert listener.hear(0.59, 32) == []
    assert listener.hear(0.6, 32) == [TurnResumed(1408)]


@pytest.mark.parametrize("threshold", [0.0, 0.05, 1.0])
def test_any_threshold_can_be_entered_and_left(threshold):
    listener = Listener(TurnDetection(threshold=threshold))
    assert listener.hear(1.0, 64) == [TurnStarted(0)]
    left = listener.hear(0.0, 640)
    assert left == [] if threshold == 0 else isinstance(left[-1], TurnEnded)


def test_a_pause_that_ends_in_speech_is_counted_anew():
    listener = Listener()
    listener.hear(SPEECH, 320)
    assert listener.hear(SILENCE, 480) == [TurnPaused(320)]
    assert listener.hear(SPEECH, 32) == [TurnResumed(800)]
    assert listener.hear(SILENCE, 480) == [TurnPaused(832)]
    assert listener.hear(SILENCE, 32) == [TurnEnded(832 + 500)]


def test_settings_may_change_while_someone_speaks():
    listener = Listener()
    listener.hear(SPEECH, 320)
    listener.endpoint.configure(TurnDetection(silence_duration_ms=100))
    assert listener.hear(SILENCE, 128) == [TurnPaused(320), TurnEnded(420)]


def test_how_complete_a_turn_sounds_is_asked_once_a_pause():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    assert listener.hear(SILENCE, 192) == [TurnPaused(320)]
    assert listener.hear(SILENCE, 320) == [TurnCheckRequested(320)]
    listener.hear(SPEECH, 320)
    assert listener.hear(SILENCE, 320) == [TurnPaused(1152), TurnCheckRequested(1152)]


@pytest.mark.parametrize("eagerness", WAITS_MS)
@pytest.mark.parametrize(("likelihood", "doubt"), [(0.98, 0), (0.5, 0.5), (0.02, 1)])
def test_doubt_costs_time_up_to_what_the_eagerness_allows(eagerness, likelihood, doubt):
    listener = Listener(TurnDetection(kind="semantic_vad", eagerness=eagerness))
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 224)
    assert listener.endpoint.judge(320, likelihood) == ()
    short_ms, long_ms = WAITS_MS[eagerness]
    assert listener.hear(SILENCE, 9_000) == [TurnEnded(320 + round(short_ms + doubt * (long_ms - short_ms)))]


@pytest.mark.parametrize("eagerness", WAITS_MS)
def test_a_turn_is_not_kept_open_for_a_judgement_that_comes_late(eagerness):
    listener = Listener(TurnDetection(kind="semantic_vad", eagerness=eagerness))
    listener.hear(SPEECH, 320)
    assert listener.hear(SILENCE, 832)[-1] == TurnEnded(320 + 800)
    assert listener.endpoint.judge(320, 0.02) == ()
    assert listener.hear(SPEECH, 320) == [TurnStarted(1152 - 32)]


def test_a_judgement_that_comes_at_the_last_moment_keeps_the_turn_open():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 768)
    assert listener.endpoint.judge(320, 0.02) == ()
    assert listener.hear(SILENCE, 4_000) == [TurnEnded(320 + 4_000)]


def test_a_turn_that_can_not_be_judged_ends_after_a_pause_of_middle_length():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 320)
    listener.endpoint.judge(320, None)
    assert listener.hear(SILENCE, 640) == [TurnEnded(320 + 800)]


def test_a_judgement_that_comes_when_the_pause_has_lasted_ends_the_turn_at_once():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 640)
    assert listener.endpoint.judge(320, 0.99) == (TurnEnded(720),)


def test_a_judgement_of_a_pause_that_is_over_changes_nothing():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 320)
    listener.hear(SPEECH, 320)
    assert listener.endpoint.judge(320, 0.99) == ()
    assert listener.hear(SILENCE, 640) == [TurnPaused(960), TurnCheckRequested(960)]
    assert listener.endpoint.judge(320, 0.99) == ()


def test_words_that_go_on_make_the_wait_longer_and_never_shorter():
    for likelihood, after_ms in ((0.99, 2_200), (0.02, 4_000), (None, 2_200)):
        listener = Listener(SEMANTIC)
        listener.hear(SPEECH, 320)
        listener.hear(SILENCE, 224)
        assert listener.endpoint.limit(320, 0.5) == () == listener.endpoint.judge(320, likelihood)
        assert listener.hear(SILENCE, 4_800)[-1] == TurnEnded(320 + after_ms)


def test_words_that_are_complete_after_all_end_the_turn_at_once():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 224)
    assert listener.endpoint.limit(320, 0.5) == () == listener.endpoint.judge(320, 0.99)
    assert listener.hear(SILENCE, 640) == []
    assert listener.endpoint.limit(320, 1.0) == (TurnEnded(720),)


def test_words_of_a_pause_that_is_over_change_nothing():
    listener = Listener(SEMANTIC)
    listener.hear(SPEECH, 320)
    listener.hear(SILENCE, 320)
    assert listener.endpoint.limit(320, 0.5) == ()
    listener.hear(SPEECH, 320)
    assert listener.endpoint.limit(320, 0.5) == ()
    listener.hear(SILENCE, 320)
    assert listener.endpoint.limit(320, 0.5) == () == listener.endpoint.judge(960, 0.99)
    assert listener.hear(SILENCE, 640)[-1] == TurnEnded(960 + 400)


def test_the_table_says_what_every_level_does_in_every_state():
    assert {(state, level) for state, level in itertools.product(EndpointState, FrameLevel)} <= TRANSITIONS.keys()
    assert {key for key in TRANSITIONS if isinstance(key[1], DurationReached)} == {
        (EndpointState.RISING, DurationReached.SPEECH),
        (EndpointState.PAUSED, DurationReached.SILENCE),
    }


FRAMES = st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.9, 1.0]), st.integers(1, 20)), max_size=40)
SETTINGS = st.builds(
    TurnDetection,
    kind=st.sampled_from(["server_vad", "semantic_vad"]),
    threshold=st.floats(0, 1),
    prefix_padding_ms=st.integers(0, 2_000),
    silence_duration_ms=st.integers(0, 2_000),
    eagerness=st.sampled_from(["low", "medium", "high", "auto"]),
)
FOLLOWS = {
    None: {TurnStarted},
    TurnStarted: {TurnPaused},
    TurnPaused: {TurnCheckRequested, TurnResumed, TurnEnded},
    TurnCheckRequested: {TurnResumed, TurnEnded},
    TurnResumed: {TurnPaused},
    TurnEnded: {TurnStarted},
}


@given(runs=FRAMES, asked=SETTINGS, answers=st.lists(st.none() | st.floats(0, 1), max_size=20), forgets=st.sets(st.integers(0, 39)))
def test_turns_alternate_and_time_never_goes_back(runs, asked, answers, forgets):
    listener, last, floor_ms, at_ms = Listener(asked), None, 0, 0
    for number, (probability, frames) in enumerate(runs):
        if number in forgets:
            listener.endpoint.reset(listener.now_ms)
            last, floor_ms, at_ms = None, listener.now_ms, listener.now_ms
        for _ in range(frames):
            happened = listener.hear(probability, FRAME_MS)
            if happened and isinstance(happened[-1], TurnCheckRequested) and answers:
                happened += listener.endpoint.judge(happened[-1].at_ms, answers.pop())
            for event in happened:
                assert type(event) in FOLLOWS[last]
                assert event.at_ms <= listener.now_ms
                if isinstance(event, TurnStarted):
                    assert event.at_ms >= floor_ms
                    assert event.at_ms >= listener.now_ms - 2 * FRAME_MS - asked.prefix_padding_ms
                elif not isinstance(event, TurnCheckRequested):
                    assert event.at_ms >= at_ms
                last, at_ms = type(event), max(at_ms, event.at_ms)
                floor_ms = event.at_ms if isinstance(event, TurnEnded) else floor_ms
            assert listener.endpoint.is_speaking == (last not in (None, TurnEnded))
