"""
The events of a MiniCPM-o worker as engine events: in full duplex, and for one question at a time.

In full duplex both servers send `listen` when a turn of the model is over. The C++ server also sends `response.done`
after each step of speech, which is not an end; and its audio may come after `listen`, because it is made beside the
text.
"""

from collections.abc import Callable
from typing import Any

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api import commands, events
from antiphon.engine_api.options import Voice
from antiphon.errors import ApiError
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.minicpmo.media import FLOAT_BYTES, from_floats
from antiphon.wire.upstream.minicpmo_backend import OUTPUT_RATE_HZ, BackendEvent, TokenDetails, Usage

EventList = list[events.EngineEvent]


class OmniOutputReader:
    """
    Reads the text and the audio of one response.

    Args:
        voice: None for a response in text only.
    """

    def __init__(self, id: str, voice: Voice | None) -> None:
        self.id = id
        self._voice = voice
        self._resampler = Resampler(OUTPUT_RATE_HZ, voice.rate_hz if voice is not None else OUTPUT_RATE_HZ, live=True)

    def read_delta(self, event: BackendEvent) -> EventList:
        """The events of a `response.output.delta`."""
        batch: EventList = [events.EngineMetrics(self.id, event.metrics)] if event.metrics else []
        if event.text:
            batch.append(events.TextDelta(self.id, event.text) if self._voice is None else events.AudioTranscriptDelta(self.id, event.text))
        if event.audio and self._voice is not None and (pcm := self._resampler.process(floats_to_pcm(event.audio))):
            batch.append(events.AudioDelta(self.id, pcm))
        return batch

    def flush(self) -> EventList:
        """The audio that is left in the resampler."""
        pcm = self._resampler.flush()
        return [events.AudioDelta(self.id, pcm)] if pcm else []


def usage_event(id: str, usage: Usage, previous: Usage | None = None) -> events.Usage:
    """
    The tokens of a response; the worker's counts are totals of the session, so those of `previous` are subtracted.
    """
    before = previous or Usage()
    inputs, inputs_before = usage.input_token_details or TokenDetails(), before.input_token_details or TokenDetails()
    outputs, outputs_before = usage.output_token_details or TokenDetails(), before.output_token_details or TokenDetails()
    return events.Usage(
        id=id,
        input_tokens=max(0, usage.input_tokens - before.input_tokens),
        output_tokens=max(0, usage.output_tokens - before.output_tokens),
        input_audio_tokens=max(0, inputs.audio_tokens - inputs_before.audio_tokens),
        input_image_tokens=max(0, inputs.vision_tokens - inputs_before.vision_tokens),
        output_audio_tokens=max(0, outputs.audio_tokens - outputs_before.audio_tokens),
    )


class OmniDuplexReader:
    """
    The turns of a model in full duplex.

    Args:
        new_id: makes the id of a turn.
        usage: the counts when the session began.
    """

    def __init__(self, voice: Voice | None, new_id: Callable[[], str], usage: Usage | None = None) -> None:
        self._voice = voice
        self._new_id = new_id
        self._turn: OmniOutputReader | None = None
        self._worker_response_id: str | None = None  # the worker's id of the turn
        self._is_muted = False  # from a cancelled turn until the next `listen`
        self._cancelled_ids: set[str] = set()  # the worker's ids of cancelled turns
        self._usage = self._reported_usage = usage

    def mute(self) -> None:
        """The model was told to listen; what still comes of its turn is discarded."""
        self._is_muted = True

    def cancel(self, id: str) -> EventList:
        """Cancel that turn; no events if it is not the current one."""
        if self._turn is None or self._turn.id != id:
            return []
        self._mark_cancelled()
        self._turn = None
        self._is_muted = True
        return [events.ResponseEnded(id, "cancelled")]

    def cut(self) -> EventList:
        """End the current turn, which is as long as it may get; what still comes of it is discarded."""
        if self._turn is None:
            return []
        id = self._turn.id
        self.cancel(id)
        return [events.ResponseEnded(id, "length")]

    def read(self, event: BackendEvent) -> EventList:
        """The engine events of a worker's event."""
        self._usage = event.usage or self._usage
        if event.type == "response.done":
            return [events.EngineMetrics(self._turn.id, event.metrics)] if event.metrics and self._turn is not None else []
        if event.kind == "listen":
            return self._on_listen(event)
        if (not event.text and not event.audio) or self._is_stale(event):
            return []
        if self._turn is None:
            self._turn = OmniOutputReader(self._new_id(), self._voice)
        self._worker_response_id = event.response_id
        return self._turn.read_delta(event)

    def _is_stale(self, event: BackendEvent) -> bool:
        """Whether it belongs to a cancelled turn."""
        return event.response_id in self._cancelled_ids if event.response_id is not None else self._is_muted and self._turn is None

    def _on_listen(self, event: BackendEvent) -> EventList:
        turn, self._turn = self._turn, None
        if self._is_muted and turn is not None:
            self._mark_cancelled()
        self._is_muted = False
        batch: EventList = [] if turn is None else turn.flush()
        if turn is not None and self._usage is not None:
            batch.append(usage_event(turn.id, self._usage, self._reported_usage))
            self._reported_usage = self._usage
        if turn is not None:
            batch.append(events.ResponseEnded(turn.id))
        if event.metrics:
            batch.append(events.EngineMetrics("", event.metrics))
        return [*batch, events.Listening()]

    def _mark_cancelled(self) -> None:
        if self._worker_response_id is not None:
            self._cancelled_ids.add(self._worker_response_id)

    def end_turn(self) -> EventList:
        """End the current turn, because another session begins."""
        return self.cancel(self._turn.id) if self._turn is not None else []

    def end(self, error: ApiError) -> EventList:
        """The session failed."""
        turn, self._turn = self._turn, None
        return [events.ResponseFailed.from_error(turn.id, error)] if turn is not None else []


LENGTH_REASONS = frozenset({"length", "max_tokens", "max_new_tokens"})
"""The worker's reasons for a response that was cut at the token limit."""


class OmniResponseReader:
    """
    The response to one question.

    Attributes:
        is_over: whether its last event was read.
    """

    def __init__(self, request: commands.Respond) -> None:
        self.id = request.id
        self.is_over = False
        self._max_tokens = request.sampling.max_tokens
        self._output = OmniOutputReader(request.id, request.voice)
        self._has_text = False

    def read(self, event: BackendEvent) -> EventList:
        """The engine events of a worker's event."""
        if self.is_over or event.kind == "listen":
            return []
        if event.type == "response.done":
            return self._on_done(event)
        self._has_text = self._has_text or bool(event.text)
        return self._output.read_delta(event)

    def _on_done(self, event: BackendEvent) -> EventList:
        self.is_over = True
        # `response.done` repeats the text of the deltas.
        last_delta = BackendEvent("", text=None if self._has_text else event.text, audio=event.audio, metrics=event.metrics)
        usage = event.usage if event.usage is not None else _usage_from_metrics(event.metrics or {})
        usage_events = [usage_event(self.id, usage)] if usage is not None else []
        is_truncated = event.reason in LENGTH_REASONS or (
            self._max_tokens is not None and usage is not None and usage.output_tokens >= self._max_tokens
        )
        return [
            *self._output.read_delta(last_delta),
            *self._output.flush(),
            *usage_events,
            events.ResponseEnded(self.id, "length" if is_truncated else "stop"),
        ]

    def end(self, final_event: events.TerminalEvent) -> EventList:
        """End with this event, unless it is over already."""
        was_over, self.is_over = self.is_over, True
        return [] if was_over else [final_event]


def _usage_from_metrics(metrics: dict[str, Any]) -> Usage | None:
    """The usage by a worker's metrics: the tokens in its KV cache at the end, of which `n_tokens` are output."""
    total_tokens, output_tokens = metrics.get("kv_cache_length"), metrics.get("n_tokens")
    if not isinstance(total_tokens, int) or not isinstance(output_tokens, int) or output_tokens > total_tokens:
        return None
    return Usage(input_tokens=total_tokens - output_tokens, output_tokens=output_tokens)


def floats_to_pcm(audio: bytes) -> bytes:
    """
    A worker's audio as s16le.

    Args:
        audio: float32; an incomplete last sample is dropped. Audio with a NaN or an infinity becomes silence: the rest
            of it is noise too.
    """
    count = len(audio) // FLOAT_BYTES
    pcm = from_floats(audio[: count * FLOAT_BYTES])
    return bytes(count * SAMPLE_BYTES) if pcm is None else pcm
