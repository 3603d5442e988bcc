"""The taps that count sessions: events, seconds of audio, responses and tokens."""

import time
from collections.abc import Callable

from msgspec import UNSET

from antiphon.protocols.dispatch import on, table
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.sessions import LiveSession
from antiphon.runtime.statistics.usage import UsageMeter
from antiphon.wire.codec.types import Opt
from antiphon.wire.minicpmo import server_events as minicpmo
from antiphon.wire.minicpmo.client_events import DuplexAppend
from antiphon.wire.minicpmo.media import FLOAT_BYTES, RATE_IN_HZ, RATE_OUT_HZ
from antiphon.wire.realtime import server_events as realtime
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.response import Usage
from antiphon.wire.realtime.session import PcmFormat

# s16le at 24 kHz; one byte a sample at 8 kHz (RFC 3551, table 4).
PCM_BYTES_PER_S, G711_BYTES_PER_S = 48_000, 8_000

MINICPMO_IN_BYTES_PER_S, MINICPMO_OUT_BYTES_PER_S = 2 * RATE_IN_HZ, FLOAT_BYTES * RATE_OUT_HZ
"""Input is counted as decoded (s16le), output as sent (float32)."""


class SessionMetrics:
    """
    What is counted of a session of either protocol; the base of one class for each.

    Attributes:
        events_in: events from the client.
        events_out: events to the client.
        responses: responses that ended.
        tokens: their tokens, as far as the engine reports them.
        usage: the same for the key that the session was opened with.
        live: the session as operators see it; None where they don't.

    Args:
        protocol: as usage is counted by.
    """

    def __init__(self, metrics: Metrics, model: str, protocol: str, key_id: str | None = None) -> None:
        self.usage = UsageMeter(key_id, model, protocol)
        self.live: LiveSession | None = None
        self.events_in = self.events_out = self.responses = self.tokens = 0
        self._metrics = metrics
        self._model = model

    def _begin(self, session_id: str | None) -> None:
        if self.live is not None and self.live.session_id is None and session_id is not None:
            self.live.session_id = session_id
            self.live.ends_at = time.time() + self.live.limit_s

    def _add_output_audio(self, seconds: float) -> None:
        self._metrics.session_audio_s["out"] += seconds
        self.usage.output_audio_s += seconds

    def _add_tokens(self, direction: str, tokens: int, audio_tokens: int) -> None:
        self._metrics.tokens[self._model, direction] += tokens
        self._metrics.audio_tokens[self._model, direction] += audio_tokens
        if direction == "input":
            self.usage.input_tokens += tokens
        else:
            self.usage.output_tokens += tokens


class RealtimeSessionMetrics(SessionMetrics):
    """
    Counts a Realtime session.

    Args:
        clock: seconds from any origin.
    """

    def __init__(self, metrics: Metrics, model: str, key_id: str | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(metrics, model, "realtime", key_id)
        self._clock = clock
        self._speech_end_at_s: float | None = None
        self._in_bytes_per_s = self._out_bytes_per_s = PCM_BYTES_PER_S

    def on_client_event(self, event: object) -> None:
        self.events_in += 1
        metrics = self._metrics
        metrics.session_events["in"] += 1
        if type(event) is InputAudioBufferAppend:  # of each session fifty a second, so without a further call
            seconds = len(event.audio) / self._in_bytes_per_s
            metrics.session_audio_s["in"] += seconds
            self.usage.input_audio_s += seconds

    def on_server_event(self, event: object) -> None:
        self.events_out += 1
        self._metrics.session_events["out"] += 1
        if (observe := _REALTIME_OBSERVERS.get(type(event))) is not None:
            observe(self, event)

    def _on_session(self, event: realtime.SessionCreated | realtime.SessionUpdated) -> None:
        self._begin(event.session.id or None)
        audio = event.session.audio or None
        self._in_bytes_per_s = _bytes_per_s(audio and audio.input and audio.input.format)
        self._out_bytes_per_s = _bytes_per_s(audio and audio.output and audio.output.format)

    def _on_response_created(self, event: realtime.ResponseCreated) -> None:
        output = event.response.audio and event.response.audio.output
        if output and output.format:
            self._out_bytes_per_s = _bytes_per_s(output.format)

    def _on_speech_stopped(self, _event: realtime.InputAudioBufferSpeechStopped) -> None:
        self._speech_end_at_s = self._clock()

    def _on_audio_delta(self, event: realtime.ResponseOutputAudioDelta) -> None:
        self._add_output_audio(len(event.delta) / self._out_bytes_per_s)
        if self._speech_end_at_s is not None:
            self._metrics.time_to_first_audio[self._model].observe(self._clock() - self._speech_end_at_s)
            self._speech_end_at_s = None

    def _on_response_done(self, event: realtime.ResponseDone) -> None:
        self._speech_end_at_s = None
        self.responses += 1
        self.usage.requests += 1
        has_failed = event.response.status == "failed"
        self.usage.errors += has_failed
        self._metrics.recent.observe(self._model, has_failed=has_failed)
        self._metrics.session_responses[self._model, event.response.status] += 1
        if event.response.usage is not None:
            self._add_usage(event.response.usage)

    def _add_usage(self, usage: Usage) -> None:
        input_details, output_details = usage.input_token_details, usage.output_token_details
        self._add_tokens("input", usage.input_tokens, 0 if input_details is UNSET else input_details.audio_tokens)
        self._add_tokens("output", usage.output_tokens, 0 if output_details is UNSET else output_details.audio_tokens)
        self.usage.input_cached_tokens += 0 if input_details is UNSET else input_details.cached_tokens
        self.tokens += usage.total_tokens


_REALTIME_OBSERVERS = table(
    on(realtime.SessionCreated, RealtimeSessionMetrics._on_session),
    on(realtime.SessionUpdated, RealtimeSessionMetrics._on_session),
    on(realtime.InputAudioBufferSpeechStopped, RealtimeSessionMetrics._on_speech_stopped),
    on(realtime.ResponseCreated, RealtimeSessionMetrics._on_response_created),
    on(realtime.ResponseOutputAudioDelta, RealtimeSessionMetrics._on_audio_delta),
    on(realtime.ResponseDone, RealtimeSessionMetrics._on_response_done),
)


class MinicpmoSessionMetrics(SessionMetrics):
    """
    Counts a MiniCPM-o session.

    Args:
        count_tokens: takes the tokens of each response.
    """

    def __init__(
        self, metrics: Metrics, model: str, count_tokens: Callable[[int], None] = lambda _tokens: None, key_id: str | None = None
    ) -> None:
        super().__init__(metrics, model, "minicpmo", key_id)
        self._count_tokens = count_tokens
        self._input_tokens = self._output_tokens = self._audio_in_tokens = self._audio_out_tokens = 0
        self._last_usage: Opt[minicpmo.Usage] = UNSET

    def on_client_event(self, event: object) -> None:
        self.events_in += 1
        metrics = self._metrics
        metrics.session_events["in"] += 1
        if type(event) is DuplexAppend:
            seconds = len(event.pcm) / MINICPMO_IN_BYTES_PER_S
            metrics.session_audio_s["in"] += seconds
            self.usage.input_audio_s += seconds

    def on_server_event(self, event: object) -> None:
        self.events_out += 1
        self._metrics.session_events["out"] += 1
        if (observe := _MINICPMO_OBSERVERS.get(type(event))) is not None:
            observe(self, event)

    def _on_delta(self, event: minicpmo.OutputDelta) -> None:
        if event.audio:
            self._add_output_audio(len(event.audio) / MINICPMO_OUT_BYTES_PER_S)
        if event.end_of_turn:
            self._count_response()
        self._add_usage(event.usage)

    def _on_response_done(self, event: minicpmo.ResponseDone) -> None:
        self._count_response()
        self._add_usage(event.usage)

    def _count_response(self) -> None:
        self.responses += 1
        self.usage.requests += 1
        self._metrics.recent.observe(self._model, has_failed=False)

    def _add_usage(self, usage: Opt[minicpmo.Usage]) -> None:
        """Count what is new: each event carries the totals of the session so far, as one object until they grow."""
        if usage is self._last_usage or usage is UNSET:
            return
        self._last_usage = usage
        audio_in, audio_out = usage.input_token_details.audio_tokens, usage.output_token_details.audio_tokens
        self._add_tokens("input", usage.input_tokens - self._input_tokens, audio_in - self._audio_in_tokens)
        self._add_tokens("output", usage.output_tokens - self._output_tokens, audio_out - self._audio_out_tokens)
        self._input_tokens, self._output_tokens = usage.input_tokens, usage.output_tokens
        self._audio_in_tokens, self._audio_out_tokens = audio_in, audio_out
        new_tokens, self.tokens = usage.total_tokens - self.tokens, usage.total_tokens
        if new_tokens > 0:
            self._count_tokens(new_tokens)


_MINICPMO_OBSERVERS = table(
    on(minicpmo.SessionCreated, lambda metrics, event: metrics._begin(event.session_id)),
    on(minicpmo.OutputDelta, MinicpmoSessionMetrics._on_delta),
    on(minicpmo.ResponseDone, MinicpmoSessionMetrics._on_response_done),
    on(minicpmo.SessionClosed, lambda metrics, event: metrics._add_usage(event.usage)),
)


def _bytes_per_s(format: object) -> int:
    """By a session's audio format; one that is unset or None is PCM."""
    return PCM_BYTES_PER_S if not format or type(format) is PcmFormat else G711_BYTES_PER_S
