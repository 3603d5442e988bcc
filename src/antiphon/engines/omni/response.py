"""
What a MiniCPM-o worker says, in words: of a model that speaks all the time, and of one that answers.

In full duplex both implementations say `listen` when a turn of the model's is over. The C++ one also ends each step in which it spoke with
`response.done`, which is no end; and what it says aloud may come after `listen`, as it is made beside the words.
"""

from collections.abc import Callable
from typing import Any

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import Voice
from antiphon.engines.omni.audio import floats_to_pcm
from antiphon.errors import ApiError
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.upstream.minicpmo_backend import OUTPUT_RATE_HZ, BackendEvent, TokenDetails, Usage

EventList = list[events.EngineEvent]
TerminalEvent = events.ResponseEnded | events.ResponseFailed


class OmniOutputReader:
    """
    One answer's words and sound.

    Args:
        voice: None for an answer in writing.
    """

    def __init__(self, id: str, voice: Voice | None) -> None:
        self.id = id
        self._voice = voice
        self._resampler = Resampler(OUTPUT_RATE_HZ, voice.rate_hz if voice is not None else OUTPUT_RATE_HZ, live=True)

    def read_delta(self, event: BackendEvent) -> EventList:
        """What a delta says."""
        words: EventList = [events.EngineMetrics(self.id, event.metrics)] if event.metrics else []
        if event.text:
            words.append(events.TextDelta(self.id, event.text) if self._voice is None else events.AudioTranscriptDelta(self.id, event.text))
        if event.audio and self._voice is not None and (pcm := self._resampler.process(floats_to_pcm(event.audio))):
            words.append(events.AudioDelta(self.id, pcm))
        return words

    def flush(self) -> EventList:
        """The sound that has still to come."""
        pcm = self._resampler.flush()
        return [events.AudioDelta(self.id, pcm)] if pcm else []


def usage_event(id: str, usage: Usage, previous: Usage | None = None) -> events.Usage:
    """What was counted, `before` left out."""
    now, then = usage, previous or Usage()
    inputs, had = now.input_token_details or TokenDetails(), then.input_token_details or TokenDetails()
    outputs, gave = now.output_token_details or TokenDetails(), then.output_token_details or TokenDetails()
    return events.Usage(
        id=id,
        input_tokens=max(0, now.input_tokens - then.input_tokens),
        output_tokens=max(0, now.output_tokens - then.output_tokens),
        input_audio_tokens=max(0, inputs.audio_tokens - had.audio_tokens),
        input_image_tokens=max(0, inputs.vision_tokens - had.vision_tokens),
        output_audio_tokens=max(0, outputs.audio_tokens - gave.audio_tokens),
    )


class OmniDuplexReader:
    """
    The turns of a model that speaks when it wants to.

    Args:
        mint: gives a turn its id.
        usage: what had been counted when the session began.
    """

    def __init__(self, voice: Voice | None, new_id: Callable[[], str], usage: Usage | None = None) -> None:
        self._voice = voice
        self._new_id = new_id
        self._turn: OmniOutputReader | None = None
        self._worker_response_id: str | None = None  # by which the worker knows the turn
        self._is_muted = False  # since a turn was cut off, until the model listens
        self._cancelled_ids: set[str] = set()  # the worker's, of turns that were cut off
        self._usage = self._reported_usage = usage

    def mute(self) -> None:
        """The model was told to listen."""
        self._is_muted = True

    def cancel(self, id: str) -> EventList:
        """Nothing more of that turn."""
        if self._turn is None or self._turn.id != id:
            return []
        self._mark_cancelled()
        self._turn = None
        self._is_muted = True
        return [events.ResponseEnded(id, "cancelled")]

    def read(self, event: BackendEvent) -> EventList:
        """What the worker says comes to this."""
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
        """Whether it belongs to a turn that was cut off."""
        return event.response_id in self._cancelled_ids if event.response_id is not None else self._is_muted and self._turn is None

    def _on_listen(self, event: BackendEvent) -> EventList:
        turn, self._turn = self._turn, None
        if self._is_muted and turn is not None:
            self._mark_cancelled()
        self._is_muted = False
        words: EventList = [] if turn is None else turn.flush()
        if turn is not None and self._usage is not None:
            words.append(usage_event(turn.id, self._usage, self._reported_usage))
            self._reported_usage = self._usage
        if turn is not None:
            words.append(events.ResponseEnded(turn.id))
        if event.metrics:
            words.append(events.EngineMetrics("", event.metrics))
        return [*words, events.Listening()]

    def _mark_cancelled(self) -> None:
        if self._worker_response_id is not None:
            self._cancelled_ids.add(self._worker_response_id)

    def end_turn(self) -> EventList:
        """Another session begins."""
        return self.cancel(self._turn.id) if self._turn is not None else []

    def end(self, error: ApiError) -> EventList:
        """The session is over before its time."""
        turn, self._turn = self._turn, None
        return [events.ResponseFailed.from_error(turn.id, error)] if turn is not None else []


LENGTH_REASONS = frozenset({"length", "max_tokens", "max_new_tokens"})
"""Reasons for which an answer ends before it is whole."""


class OmniResponseReader:
    """
    An answer to a question.

    Attributes:
        is_over: whether its last word was said.
    """

    def __init__(self, request: commands.Respond) -> None:
        self.id = request.id
        self.is_over = False
        self._max_tokens = request.sampling.max_tokens
        self._output = OmniOutputReader(request.id, request.voice)
        self._has_text = False

    def read(self, event: BackendEvent) -> EventList:
        """What the worker says comes to this."""
        if self.is_over or event.kind == "listen":
            return []
        if event.type == "response.done":
            return self._on_done(event)
        self._has_text = self._has_text or bool(event.text)
        return self._output.read_delta(event)

    def _on_done(self, event: BackendEvent) -> EventList:
        self.is_over = True
        # All of it once more, where it came in pieces before.
        whole = BackendEvent("", text=None if self._has_text else event.text, audio=event.audio, metrics=event.metrics)
        count = event.usage if event.usage is not None else _usage_from_metrics(event.metrics or {})
        tokens = [usage_event(self.id, count)] if count is not None else []
        is_cut = event.reason in LENGTH_REASONS or (
            self._max_tokens is not None and count is not None and count.output_tokens >= self._max_tokens
        )
        return [
            *self._output.read_delta(whole),
            *self._output.flush(),
            *tokens,
            events.ResponseEnded(self.id, "length" if is_cut else "stop"),
        ]

    def end(self, final_event: TerminalEvent) -> EventList:
        """It ends so, if it hasn't ended before."""
        was_over, self.is_over = self.is_over, True
        return [] if was_over else [final_event]


def _usage_from_metrics(metrics: dict[str, Any]) -> Usage | None:
    """The tokens that can be told from what was measured: all that the model holds at the end, and those of them that it made."""
    held, made = metrics.get("kv_cache_length"), metrics.get("n_tokens")
    if not isinstance(held, int) or not isinstance(made, int) or made > held:
        return None
    return Usage(input_tokens=held - made, output_tokens=made)
