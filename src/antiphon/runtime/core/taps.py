"""
Taps: who listens in on a session without its knowing.

Every event that a client sent and that could be read, and every event that goes to it, passes here once, in the order in which they
happened. A tap must be quick, and raise nothing: it stands in the way of every piece of sound.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import UNSET

from antiphon.runtime.core.metrics import Metrics
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.response import Usage
from antiphon.wire.realtime.server_events import (
    InputAudioBufferSpeechStopped,
    ResponseCreated,
    ResponseDone,
    ResponseOutputAudioDelta,
    SessionCreated,
    SessionUpdated,
)
from antiphon.wire.realtime.session import Format, PcmFormat

PCM_BYTES_PER_S, G711_BYTES_PER_S = 48_000, 8_000


class Tap(Protocol):
    """Who listens in."""

    def on_client_event(self, event: Any) -> None:
        """The client said this."""

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""


class Taps:
    """Several of them, as one."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = tuple(taps)

    def on_client_event(self, event: Any) -> None:
        """The client said this."""
        for tap in self._taps:
            tap.on_client_event(event)

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""
        for tap in self._taps:
            tap.on_server_event(event)


def combine(taps: Sequence[Tap]) -> Tap:
    """All of them as one, which costs nothing where there is but one."""
    return taps[0] if len(taps) == 1 else Taps(taps)


class RealtimeSessionMetrics:
    """
    Counts a Realtime session.

    Args:
        clock: seconds from any origin.

    Attributes:
        events_in: how many the client sent.
        events_out: how many it was told.
        responses: how many came to an end.
        tokens: what they came to, as far as their engine said.
    """

    def __init__(
        self,
        metrics: Metrics,
        model: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.events_in = self.events_out = self.responses = self.tokens = 0
        self._metrics = metrics
        self._model = model
        self._clock = clock
        self._speech_end_at_s: float | None = None
        self._in_bytes_per_s = self._out_bytes_per_s = PCM_BYTES_PER_S
        self._observers: dict[type, Callable[[Any], None]] = {
            SessionCreated: self._on_session,
            SessionUpdated: self._on_session,
            InputAudioBufferSpeechStopped: self._on_speech_stopped,
            ResponseCreated: self._on_response_created,
            ResponseOutputAudioDelta: self._on_audio_delta,
            ResponseDone: self._on_response_done,
        }

    def on_client_event(self, event: Any) -> None:
        """The client said this."""
        self.events_in += 1
        self._metrics.session_events["in"] += 1
        if type(event) is InputAudioBufferAppend:
            self._metrics.session_sound_s["in"] += len(event.audio) / self._in_bytes_per_s

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""
        self.events_out += 1
        self._metrics.session_events["out"] += 1
        if (note := self._observers.get(type(event))) is not None:
            note(event)

    def _on_session(self, event: SessionCreated | SessionUpdated) -> None:
        audio = event.session.audio or None
        self._in_bytes_per_s = _bytes_per_s(audio and audio.input and audio.input.format)
        self._out_bytes_per_s = _bytes_per_s(audio and audio.output and audio.output.format)

    def _on_response_created(self, event: ResponseCreated) -> None:
        output = event.response.audio and event.response.audio.output
        if output and output.format:
            self._out_bytes_per_s = _bytes_per_s(output.format)

    def _on_speech_stopped(self, _event: InputAudioBufferSpeechStopped) -> None:
        self._speech_end_at_s = self._clock()

    def _on_audio_delta(self, event: ResponseOutputAudioDelta) -> None:
        self._metrics.session_sound_s["out"] += len(event.delta) / self._out_bytes_per_s
        if self._speech_end_at_s is not None:
            self._metrics.first_sound[self._model].observe(self._clock() - self._speech_end_at_s)
            self._speech_end_at_s = None

    def _on_response_done(self, event: ResponseDone) -> None:
        self._speech_end_at_s = None
        self.responses += 1
        self._metrics.session_responses[self._model, event.response.status] += 1
        if event.response.usage is not None:
            self._add_usage(event.response.usage)

    def _add_usage(self, usage: Usage) -> None:
        metrics, model = self._metrics, self._model
        metrics.tokens[model, "input"] += usage.input_tokens
        metrics.tokens[model, "output"] += usage.output_tokens
        if usage.input_token_details is not UNSET:
            metrics.audio_tokens[model, "input"] += usage.input_token_details.audio_tokens
        if usage.output_token_details is not UNSET:
            metrics.audio_tokens[model, "output"] += usage.output_token_details.audio_tokens
        self.tokens += usage.total_tokens


def _bytes_per_s(format: Format | Any) -> int:
    return PCM_BYTES_PER_S if not format or type(format) is PcmFormat else G711_BYTES_PER_S
