"""
What a MiniCPM-o worker says, in words: of a model that speaks all the time, and of one that answers.

In full duplex both implementations say `listen` when a turn of the model's is over. The C++ one also ends each step in which it spoke with
`response.done`, which is no end; and what it says aloud may come after `listen`, as it is made beside the words.
"""

from collections.abc import Callable
from typing import Any

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.options import Voice
from antiphon.engines.omni.audio import samples
from antiphon.errors import Fault
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.upstream.minicpmo_backend import FROM_WORKER_HZ, Details, Said, Usage

Words = list[talk_events.FromEngine]
Ends = talk_events.Ended | talk_events.Broke


class Spoken:
    """
    One answer's words and sound.

    Args:
        voice: None for an answer in writing.
    """

    def __init__(self, id: str, voice: Voice | None) -> None:
        self.id = id
        self._voice = voice
        self._resampler = Resampler(FROM_WORKER_HZ, voice.rate_hz if voice is not None else FROM_WORKER_HZ, live=True)

    def of(self, said: Said) -> Words:
        """What a delta says."""
        words: Words = [talk_events.Measured(self.id, said.metrics)] if said.metrics else []
        if said.text:
            words.append(talk_events.Text(self.id, said.text) if self._voice is None else talk_events.Spoken(self.id, said.text))
        if said.audio and self._voice is not None and (pcm := self._resampler.take(samples(said.audio))):
            words.append(talk_events.Sound(self.id, pcm))
        return words

    def rest(self) -> Words:
        """The sound that has still to come."""
        pcm = self._resampler.flush()
        return [talk_events.Sound(self.id, pcm)] if pcm else []


def used(id: str, usage: Usage, before: Usage | None = None) -> talk_events.Used:
    """What was counted, `before` left out."""
    now, then = usage, before or Usage()
    inputs, had = now.input_token_details or Details(), then.input_token_details or Details()
    outputs, gave = now.output_token_details or Details(), then.output_token_details or Details()
    return talk_events.Used(
        id=id,
        input_tokens=max(0, now.input_tokens - then.input_tokens),
        output_tokens=max(0, now.output_tokens - then.output_tokens),
        input_audio_tokens=max(0, inputs.audio_tokens - had.audio_tokens),
        input_image_tokens=max(0, inputs.vision_tokens - had.vision_tokens),
        output_audio_tokens=max(0, outputs.audio_tokens - gave.audio_tokens),
    )


class Duplex:
    """
    The turns of a model that speaks when it wants to.

    Args:
        mint: gives a turn its id.
        usage: what had been counted when the session began.
    """

    def __init__(self, voice: Voice | None, mint: Callable[[], str], usage: Usage | None = None) -> None:
        self._voice = voice
        self._mint = mint
        self._turn: Spoken | None = None
        self._worker_id: str | None = None  # by which the worker knows the turn
        self._is_hushed = False  # since a turn was cut off, until the model listens
        self._cut_ids: set[str] = set()  # the worker's, of turns that were cut off
        self._usage = self._told = usage

    def hush(self) -> None:
        """The model was told to listen."""
        self._is_hushed = True

    def cancel(self, id: str) -> Words:
        """Nothing more of that turn."""
        if self._turn is None or self._turn.id != id:
            return []
        self._cut()
        self._turn = None
        self._is_hushed = True
        return [talk_events.Ended(id, "cancelled")]

    def hear(self, said: Said) -> Words:
        """What the worker says comes to this."""
        self._usage = said.usage or self._usage
        if said.type == "response.done":
            return [talk_events.Measured(self._turn.id, said.metrics)] if said.metrics and self._turn is not None else []
        if said.kind == "listen":
            return self._listen(said)
        if (not said.text and not said.audio) or self._is_stale(said):
            return []
        if self._turn is None:
            self._turn = Spoken(self._mint(), self._voice)
        self._worker_id = said.response_id
        return self._turn.of(said)

    def _is_stale(self, said: Said) -> bool:
        """Whether it belongs to a turn that was cut off."""
        return said.response_id in self._cut_ids if said.response_id is not None else self._is_hushed and self._turn is None

    def _listen(self, said: Said) -> Words:
        turn, self._turn = self._turn, None
        if self._is_hushed and turn is not None:
            self._cut()
        self._is_hushed = False
        words: Words = [] if turn is None else turn.rest()
        if turn is not None and self._usage is not None:
            words.append(used(turn.id, self._usage, self._told))
            self._told = self._usage
        if turn is not None:
            words.append(talk_events.Ended(turn.id))
        if said.metrics:
            words.append(talk_events.Measured("", said.metrics))
        return [*words, talk_events.Listening()]

    def _cut(self) -> None:
        if self._worker_id is not None:
            self._cut_ids.add(self._worker_id)

    def end_turn(self) -> Words:
        """Another session begins."""
        return self.cancel(self._turn.id) if self._turn is not None else []

    def end(self, fault: Fault) -> Words:
        """The session is over before its time."""
        turn, self._turn = self._turn, None
        return [talk_events.Broke.by(turn.id, fault)] if turn is not None else []


LENGTH = frozenset({"length", "max_tokens", "max_new_tokens"})
"""Reasons for which an answer ends before it is whole."""


class Answer:
    """
    An answer to a question.

    Attributes:
        is_over: whether its last word was said.
    """

    def __init__(self, ask: commands.Respond) -> None:
        self.id = ask.id
        self.is_over = False
        self._most_tokens = ask.sampling.max_tokens
        self._spoken = Spoken(ask.id, ask.voice)
        self._said_any = False

    def hear(self, said: Said) -> Words:
        """What the worker says comes to this."""
        if self.is_over or said.kind == "listen":
            return []
        if said.type == "response.done":
            return self._done(said)
        self._said_any = self._said_any or bool(said.text)
        return self._spoken.of(said)

    def _done(self, said: Said) -> Words:
        self.is_over = True
        # All of it once more, where it came in pieces before.
        whole = Said("", text=None if self._said_any else said.text, audio=said.audio, metrics=said.metrics)
        count = said.usage if said.usage is not None else _counted(said.metrics or {})
        tokens = [used(self.id, count)] if count is not None else []
        is_cut = said.reason in LENGTH or (self._most_tokens is not None and count is not None and count.output_tokens >= self._most_tokens)
        return [*self._spoken.of(whole), *self._spoken.rest(), *tokens, talk_events.Ended(self.id, "length" if is_cut else "stop")]

    def end(self, last: Ends) -> Words:
        """It ends so, if it hasn't ended before."""
        was_over, self.is_over = self.is_over, True
        return [] if was_over else [last]


def _counted(metrics: dict[str, Any]) -> Usage | None:
    """The tokens that can be told from what was measured: all that the model holds at the end, and those of them that it made."""
    held, made = metrics.get("kv_cache_length"), metrics.get("n_tokens")
    if not isinstance(held, int) or not isinstance(made, int) or made > held:
        return None
    return Usage(input_tokens=held - made, output_tokens=made)
