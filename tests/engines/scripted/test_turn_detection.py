"""Turn detection by level and by schedule: where speech starts and where it is over."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.script import ScheduledSpeech
from antiphon.engines.scripted.turn_detection import LevelVad, ScheduledVad, SpeechEdge
from support.engines.hearings import RATE_HZ, noise, quiet


def ms(edges, rate_hz=RATE_HZ):
    return [("starts" if edge.is_start else "stops", edge.at_sample * 1000 // rate_hz) for edge in edges]


def level_gate(rate_hz=RATE_HZ, **detection):
    gate = LevelVad()
    gate.configure(rate_hz, TurnDetection(**detection))
    return gate


def heard(gate, *sounds, at=0):
    edges = []
    for sound in sounds:
        edges += gate.feed(sound, at)
        at += len(sound) // 2
    return edges


def test_speech_starts_before_it_is_loud_and_stops_after_the_silence():
    gate = level_gate(prefix_padding_ms=300, silence_duration_ms=500)
    assert ms(heard(gate, quiet(1000), noise(400), quiet(600))) == [("starts", 700), ("stops", 1900)]


def test_a_click_is_no_speech_and_a_gap_does_not_end_it():
    gate = level_gate()
    assert heard(gate, quiet(100), noise(20), quiet(100)) == []
    assert ms(heard(gate, quiet(1000), noise(100), quiet(490), noise(10), quiet(490))) == [("starts", 700)]


@pytest.mark.parametrize(("threshold", "just_not", "just"), [(0.0, 32, 33), (0.5, 327, 328), (1.0, 3276, 3277)])
def test_the_threshold_is_a_level(threshold, just_not, just):
    assert heard(level_gate(threshold=threshold), quiet(500), noise(100, just_not)) == []
    assert ms(heard(level_gate(threshold=threshold), quiet(500), noise(100, just))) == [("starts", 200)]


@pytest.mark.parametrize(("eagerness", "silence_ms"), [("high", 500), ("medium", 800), ("auto", 800), ("low", 1200)])
def test_semantic_detection_waits_by_eagerness(eagerness, silence_ms):
    gate = level_gate(kind="semantic_vad", eagerness=eagerness, silence_duration_ms=1)
    assert ms(heard(gate, noise(1000), quiet(2000)))[1:] == [("stops", 1000 + silence_ms)]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100])
def test_times_are_the_same_at_every_rate(rate_hz):
    edges = heard(level_gate(rate_hz), quiet(1000, rate_hz), noise(400, rate_hz=rate_hz), quiet(600, rate_hz))
    assert ms(edges, rate_hz) == [("starts", 700), ("stops", 1900)]


def test_the_shortest_silence_ends_speech():
    assert ms(heard(level_gate(silence_duration_ms=0), noise(100), quiet(50)))[1:] == [("stops", 110)]


def test_new_settings_hold_for_what_follows():
    gate = level_gate(silence_duration_ms=500)
    assert len(heard(gate, noise(100), quiet(300))) == 1
    gate.configure(RATE_HZ, TurnDetection(silence_duration_ms=350))
    assert ms(heard(gate, quiet(60), at=400 * 24)) == [("stops", 450)]


def test_a_new_rate_begins_a_new_frame():
    gate = level_gate()
    assert gate.feed(noise(5), 0) == []
    gate.configure(8_000, TurnDetection(prefix_padding_ms=0))
    assert ms(heard(gate, quiet(95, 8_000), noise(100, rate_hz=8_000), at=5 * 8), 8_000) == [("starts", 95)]


def test_what_was_dropped_is_not_gone_on_with():
    gate = level_gate()
    heard(gate, noise(25))
    gate.reset()
    assert heard(gate, noise(25), at=600) == []


TURNS = b"".join((quiet(330), noise(155), quiet(700), noise(40), quiet(507), noise(33), quiet(900)))


@given(st.lists(st.integers(1, len(TURNS) // 2 - 1), max_size=12))
def test_how_the_sound_is_cut_makes_no_difference(cuts):
    places = [0, *sorted(2 * cut for cut in cuts), len(TURNS)]
    pieces = [TURNS[start:end] for start, end in pairwise(places)]
    whole = heard(level_gate(), TURNS)
    assert len(whole) == 6
    assert heard(level_gate(), *pieces) == whole


def scheduled(*stretches):
    gate = ScheduledVad([ScheduledSpeech(*stretch) for stretch in stretches])
    gate.configure(1000, TurnDetection())
    return gate


def silence(samples):
    return bytes(2 * samples)


def test_a_schedule_is_kept_to_whatever_the_sound():
    gate = scheduled((0, 100), (150, 1150))
    assert gate.feed(silence(99), 0) == [SpeechEdge(True, 0)]
    assert gate.feed(silence(500), 99) == [SpeechEdge(False, 100), SpeechEdge(True, 150)]
    assert gate.feed(silence(551), 599) == [SpeechEdge(False, 1150)]
    assert gate.feed(silence(5000), 1150) == []


def test_speech_that_was_dropped_or_began_unheard_is_left_out():
    gate = scheduled((0, 100), (200, 300), (400, 500))
    assert gate.feed(silence(50), 0) == [SpeechEdge(True, 0)]
    gate.reset()
    gate.reset()
    assert gate.feed(silence(100), 50) == []
    assert gate.feed(silence(500), 250) == [SpeechEdge(True, 400), SpeechEdge(False, 500)]
