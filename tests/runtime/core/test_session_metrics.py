"""Metrics of a MiniCPM-o session."""

from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.session_metrics import MinicpmoSessionMetrics
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.client_events import DuplexAppend, SessionInit


def usage(text_in, audio_in, text_out, audio_out):
    return events.Usage(
        total_tokens=text_in + audio_in + text_out + audio_out,
        input_tokens=text_in + audio_in,
        output_tokens=text_out + audio_out,
        input_token_details=events.InputTokens(text_tokens=text_in, audio_tokens=audio_in, vision_tokens=0),
        output_token_details=events.OutputTokens(text_tokens=text_out, audio_tokens=audio_out),
    )


def delta(kind, **fields):
    return events.OutputDelta(kind=kind, session_id="s", response_id="r", metrics={}, **fields)


def test_events_and_sound_are_counted_both_ways():
    metrics = Metrics()
    counted = MinicpmoSessionMetrics(metrics, "m")
    counted.on_client_event(SessionInit())
    counted.on_client_event(DuplexAppend(pcm=bytes(48_000)))
    counted.on_server_event(delta("audio", audio=bytes(96_000)))
    assert metrics.session_events == {"in": 2, "out": 1} and (counted.events_in, counted.events_out) == (2, 1)
    assert metrics.session_audio_s == {"in": 1.5, "out": 1.0}


def test_tokens_are_told_of_the_whole_session_and_counted_once():
    metrics, spent = Metrics(), []
    counted = MinicpmoSessionMetrics(metrics, "m", spent.append)
    counted.on_server_event(delta("audio", audio=b"", usage=usage(1, 2, 3, 4)))
    counted.on_server_event(delta("listen", text="", usage=usage(1, 2, 3, 4)))
    counted.on_server_event(events.SessionClosed(session_id="s", reason="user_stop", usage=usage(2, 4, 6, 8)))
    assert spent == [10, 10] and counted.tokens == 20
    assert metrics.tokens == {("m", "input"): 6, ("m", "output"): 14}
    assert metrics.audio_tokens == {("m", "input"): 4, ("m", "output"): 8}


def test_an_answer_ends_with_its_turn_or_when_it_is_done():
    counted = MinicpmoSessionMetrics(Metrics(), "m")
    counted.on_server_event(delta("listen", text=""))
    counted.on_server_event(delta("listen", text="", end_of_turn=True))
    counted.on_server_event(
        events.ResponseDone(session_id="s", response_id="r", input_id="i", text="", audio=None, reason="turn_end", metrics={})
    )
    assert counted.responses == 2
