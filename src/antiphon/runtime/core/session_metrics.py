"""The tap that counts a MiniCPM-o session."""

from collections.abc import Callable
from typing import Any

from antiphon.runtime.core.metrics import Metrics
from antiphon.wire.minicpmo.client_events import DuplexAppend
from antiphon.wire.minicpmo.media import FLOAT_BYTES, RATE_IN_HZ, RATE_OUT_HZ
from antiphon.wire.minicpmo.server_events import OutputDelta, ResponseDone, SessionClosed, Usage

IN_BYTES_PER_S, OUT_BYTES_PER_S = 2 * RATE_IN_HZ, FLOAT_BYTES * RATE_OUT_HZ


class MinicpmoSessionMetrics:
    """
    Counts a session.

    Args:
        spend: takes the tokens of each answer.

    Attributes:
        events_in: how many the client sent.
        events_out: how many it was told.
        responses: how many came to an end.
        tokens: what they came to.
    """

    def __init__(self, metrics: Metrics, model: str, count_tokens: Callable[[int], None] = lambda _tokens: None) -> None:
        self.events_in = self.events_out = self.responses = self.tokens = 0
        self._metrics = metrics
        self._model = model
        self._count_tokens = count_tokens
        self._input_tokens = self._output_tokens = self._audio_in_tokens = self._audio_out_tokens = 0

    def on_client_event(self, event: Any) -> None:
        """The client said this."""
        self.events_in += 1
        self._metrics.session_events["in"] += 1
        if type(event) is DuplexAppend:
            self._metrics.session_sound_s["in"] += len(event.pcm) / IN_BYTES_PER_S

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""
        self.events_out += 1
        self._metrics.session_events["out"] += 1
        if type(event) is OutputDelta:
            self._on_output_delta(event)
        elif type(event) is ResponseDone:
            self._count_response()
        if type(event) in (OutputDelta, ResponseDone, SessionClosed) and event.usage:
            self._add_usage(event.usage)

    def _on_output_delta(self, event: OutputDelta) -> None:
        if event.audio:
            self._metrics.session_sound_s["out"] += len(event.audio) / OUT_BYTES_PER_S
        if event.end_of_turn:
            self._count_response()

    def _count_response(self) -> None:
        self.responses += 1

    def _add_usage(self, usage: Usage) -> None:
        """What the session has come to so far: each event says it of the whole of it."""
        metrics, model = self._metrics, self._model
        metrics.tokens[model, "input"] += usage.input_tokens - self._input_tokens
        metrics.tokens[model, "output"] += usage.output_tokens - self._output_tokens
        metrics.audio_tokens[model, "input"] += usage.input_token_details.audio_tokens - self._audio_in_tokens
        metrics.audio_tokens[model, "output"] += usage.output_token_details.audio_tokens - self._audio_out_tokens
        self._input_tokens, self._output_tokens = usage.input_tokens, usage.output_tokens
        self._audio_in_tokens, self._audio_out_tokens = usage.input_token_details.audio_tokens, usage.output_token_details.audio_tokens
        spent = usage.total_tokens - self.tokens
        self.tokens = usage.total_tokens
        if spent > 0:
            self._count_tokens(spent)
