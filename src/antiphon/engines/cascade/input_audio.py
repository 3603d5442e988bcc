"""
A client's sound as ears take it: mono at 16 kHz, with less noise where that is asked for, and the end of it kept.

Its clock is the client's: milliseconds of all the sound that came.
"""

from antiphon.audio import duration_ms, size_bytes
from antiphon.engine_api.options import NoiseReduction
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.noise import NoiseReducer
from antiphon.speech.dsp.resample import Resampler

_SLACK_BYTES = 128 << 10  # is kept longer than it must be, so that little is moved often


class ConversationAudio:
    """The sound of one conversation."""

    def __init__(self) -> None:
        self._resampler = Resampler(24_000, INPUT_RATE_HZ, live=True)
        self._reduction: NoiseReduction | None = None
        self._reducer: NoiseReducer | None = None
        self._buffer = bytearray()
        self._total_bytes = 0

    @property
    def end_ms(self) -> float:
        """The end of it."""
        return duration_ms(self._total_bytes, INPUT_RATE_HZ)

    @property
    def start_ms(self) -> float:
        """Where what is kept begins."""
        return duration_ms(self._total_bytes - len(self._buffer), INPUT_RATE_HZ)

    def configure(self, rate_hz: int, reduction: NoiseReduction | None) -> bytes:
        """
        What comes from here on is at that rate, and is to have less of that noise.

        Returns:
            What was still on its way.
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
        """More of it, as it came; gives it as ears take it, as far as that is ready."""
        return self._append(self._resampler.process(pcm))

    def _append(self, pcm: bytes) -> bytes:
        pcm = self._reducer.process(pcm) if self._reducer is not None else pcm
        self._buffer += pcm
        self._total_bytes += len(pcm)
        return pcm

    def between(self, start_ms: float, end_ms: float) -> bytes:
        """The sound between two times, as far as it is kept."""
        first, last = (size_bytes(max(0.0, at_ms - self.start_ms), INPUT_RATE_HZ) for at_ms in (start_ms, end_ms))
        return bytes(self._buffer[first:last])

    def discard_before(self, until_ms: float) -> None:
        """What came before then is of no more use."""
        count = size_bytes(max(0.0, until_ms - self.start_ms), INPUT_RATE_HZ)
        if count > _SLACK_BYTES:
            del self._buffer[:count]

    def clear(self) -> None:
        """Nothing that came is of any more use."""
        self._buffer.clear()
