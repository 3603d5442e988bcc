"""
A client's audio as transcribers take it: mono at 16 kHz, with noise reduction if configured; the most recent part is
kept.

Times are milliseconds of all the audio that arrived.
"""

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api.options import NoiseReduction
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.noise import NoiseReducer
from antiphon.speech.dsp.resample import Resampler

_SLACK_BYTES = 128 << 10  # kept longer than needed: deleting from the front moves the rest, so do it rarely


class ConversationAudio:
    """The input audio of one conversation."""

    def __init__(self) -> None:
        self._resampler = Resampler(24_000, INPUT_RATE_HZ, live=True)
        self._reduction: NoiseReduction | None = None
        self._reducer: NoiseReducer | None = None
        self._buffer = bytearray()
        self._total_bytes = 0

    @property
    def end_ms(self) -> float:
        """Where the audio so far ends."""
        return duration_ms(self._total_bytes, INPUT_RATE_HZ)

    @property
    def start_ms(self) -> float:
        """Where the part that is kept begins."""
        return duration_ms(self._total_bytes - len(self._buffer), INPUT_RATE_HZ)

    def configure(self, rate_hz: int, reduction: NoiseReduction | None) -> bytes:
        """
        Set the rate and noise reduction of what follows.

        Returns:
            What was left in the resampler, at `INPUT_RATE_HZ`.
        """
        rest = b""
        if rate_hz != self._resampler.from_hz:
            rest = self._append(self._resampler.flush())
            self._resampler = Resampler(rate_hz, INPUT_RATE_HZ, live=True)
        if reduction != self._reduction:
            self._reduction = reduction
            self._reducer = NoiseReducer(reduction) if reduction else None
        return rest

    def process(self, pcm: bytes) -> bytes:
        """Append the client's audio; the part that is ready, at `INPUT_RATE_HZ`."""
        return self._append(self._resampler.process(pcm))

    def _append(self, pcm: bytes) -> bytes:
        pcm = self._reducer.process(pcm) if self._reducer is not None else pcm
        self._buffer += pcm
        self._total_bytes += len(pcm)
        return pcm

    def between(self, start_ms: float, end_ms: float) -> bytes:
        """The audio between two times, as far as it is kept."""
        first, last = (size_bytes(max(0.0, at_ms - self.start_ms), INPUT_RATE_HZ) for at_ms in (start_ms, end_ms))
        return bytes(self._buffer[first:last])

    def discard_before(self, until_ms: float) -> None:
        """Drop what came before a time."""
        count = size_bytes(max(0.0, until_ms - self.start_ms), INPUT_RATE_HZ)
        if count > _SLACK_BYTES:
            del self._buffer[:count]

    def clear(self) -> None:
        """Drop all audio; the clock goes on."""
        self._buffer.clear()
