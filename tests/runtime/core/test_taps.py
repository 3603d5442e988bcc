"""Metrics of a Realtime session, from its events."""

import pytest
from msgspec import UNSET

from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.session_metrics import RealtimeSessionMetrics
from antiphon.runtime.core.taps import combine
from antiphon.wire.realtime import server_events as server
from antiphon.wire.realtime.client_events import InputAudioBufferAppend, InputAudioBufferCommit
from antiphon.wire.realtime.response import InputTokenDetails, OutputTokenDetails, Response, ResponseAudio, ResponseAudioOutput, Usage
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, Format, PcmFormat, PcmuFormat, Session

SECOND_OF_PCM, SECOND_OF_ULAW = bytes(48_000), bytes(8_000)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def created(heard: Format, spoken: Format) -> server.SessionCreated:
    audio = Audio(input=AudioInput(format=heard), output=AudioOutput(format=spoken))
    return server.SessionCreated(event_id="event_1", session=Session(audio=audio))


def sound(delta: bytes) -> server.ResponseOutputAudioDelta:
    return server.ResponseOutputAudioDelta(
        event_id="event_2", response_id="resp_1", item_id="item_1", output_index=0, content_index=0, delta=delta
    )


def done(**fields: object) -> server.ResponseDone:
    return server.ResponseDone(event_id="event_3", response=Response(id="resp_1", **fields))  # type: ignore[arg-type]


def test_sound_is_counted_in_seconds_of_its_format(metrics: Metrics) -> None:
    tap = RealtimeSessionMetrics(metrics, "parrot")
    tap.on_server_event(created(PcmFormat(), PcmuFormat()))
    tap.on_client_event(InputAudioBufferAppend(audio=SECOND_OF_PCM))
    tap.on_server_event(sound(SECOND_OF_ULAW))
    tap.on_server_event(created(PcmuFormat(), PcmFormat()))
    tap.on_client_event(InputAudioBufferAppend(audio=SECOND_OF_ULAW))
    tap.on_server_event(sound(SECOND_OF_PCM))
    assert metrics.session_audio_s == {"in": 2, "out": 2}


def test_an_answer_may_have_a_format_of_its_own(metrics: Metrics) -> None:
    tap = RealtimeSessionMetrics(metrics, "parrot")
    tap.on_server_event(created(PcmFormat(), PcmFormat()))
    audio = ResponseAudio(output=ResponseAudioOutput(format=PcmuFormat()))
    tap.on_server_event(server.ResponseCreated(event_id="event_1", response=Response(id="resp_1", status="in_progress", audio=audio)))
    tap.on_server_event(sound(SECOND_OF_ULAW))
    assert metrics.session_audio_s["out"] == 1


def test_a_session_without_sound_is_as_one_with_the_default(metrics: Metrics) -> None:
    tap = RealtimeSessionMetrics(metrics, "parrot")
    tap.on_server_event(server.SessionCreated(event_id="event_1", session=Session(audio=UNSET)))
    tap.on_client_event(InputAudioBufferAppend(audio=SECOND_OF_PCM))
    assert metrics.session_audio_s["in"] == 1


def test_the_wait_for_an_answer_is_from_the_end_of_speech_to_its_first_sound(metrics: Metrics) -> None:
    clock = Clock()
    tap = RealtimeSessionMetrics(metrics, "parrot", clock=clock)
    tap.on_server_event(sound(b""))
    tap.on_server_event(server.InputAudioBufferSpeechStopped(event_id="event_1", item_id="item_1", audio_end_ms=1))
    clock.now = 0.5
    tap.on_server_event(sound(b""))
    clock.now = 9.0
    tap.on_server_event(sound(b""))
    assert (sum(metrics.time_to_first_audio["parrot"].counts), metrics.time_to_first_audio["parrot"].total) == (1, 0.5)


def test_an_answer_without_sound_is_none_that_was_waited_for(metrics: Metrics) -> None:
    tap = RealtimeSessionMetrics(metrics, "parrot", clock=Clock())
    tap.on_server_event(server.InputAudioBufferSpeechStopped(event_id="event_1", item_id="item_1", audio_end_ms=1))
    tap.on_server_event(done(status="completed"))
    tap.on_server_event(sound(b""))
    assert not metrics.time_to_first_audio


def test_tokens_are_counted_as_each_answer_ends(metrics: Metrics) -> None:
    tap = RealtimeSessionMetrics(metrics, "parrot")
    details = {"input_token_details": InputTokenDetails(audio_tokens=3), "output_token_details": OutputTokenDetails(audio_tokens=4)}
    tap.on_server_event(done(status="completed", usage=Usage(total_tokens=17, input_tokens=10, output_tokens=7, **details)))
    tap.on_server_event(done(status="cancelled", usage=Usage(total_tokens=3, input_tokens=2, output_tokens=1)))
    tap.on_server_event(done(status="failed"))
    assert metrics.tokens == {("parrot", "input"): 12, ("parrot", "output"): 8}
    assert metrics.audio_tokens == {("parrot", "input"): 3, ("parrot", "output"): 4}
    assert metrics.session_responses == {("parrot", "completed"): 1, ("parrot", "cancelled"): 1, ("parrot", "failed"): 1}
    assert (tap.responses, tap.tokens, tap.events_out) == (3, 20, 3)


def test_several_taps_hear_the_same(metrics: Metrics) -> None:
    one, other = RealtimeSessionMetrics(metrics, "parrot"), RealtimeSessionMetrics(metrics, "parrot")
    assert combine([one]) is one
    both = combine([one, other])
    both.on_client_event(InputAudioBufferCommit())
    both.on_server_event(done(status="completed"))
    assert (one.events_in, one.events_out) == (other.events_in, other.events_out) == (1, 1)
    assert metrics.session_events == {"in": 2, "out": 2}
