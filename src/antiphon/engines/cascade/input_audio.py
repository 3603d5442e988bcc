"""
A client's sound as ears take it: mono at 16 kHz, with less noise where that is asked for, and the end of it kept.

Its clock is the client's: milliseconds of all the sound that came.
"""

from antiphon.audio import bytes_of, ms_of
from antiphon.engine_api.options import NoiseReduction
from antiphon.speech.base import HEARING_RATE_HZ
from antiphon.speech.dsp.noise import NoiseReducer
from antiphon.speech.dsp.resample import Resampler

_SLACK_BYTES = 128 << 10  # is kept longer than it must be, so that little is moved often


class Sound:
    """The sound of one conversation."""

    def __init__(self) -> None:
        self._resampler = Resampler(24_000, HEARING_RATE_HZ, live=True)
        self._reduction: NoiseReduction | None = None
        self._reducer: NoiseReducer | None = None
        self._kept = bytearray()
        self._came_bytes = 0

    @property
    def now_ms(self) -> float:
        """The end of it."""
        return ms_of(self._came_bytes, HEARING_RATE_HZ)

    @property
    def from_ms(self) -> float:
        """Where what is kept begins."""
        return ms_of(self._came_bytes - len(self._kept), HEARING_RATE_HZ)

    def configure(self, rate_hz: int, reduction: NoiseReduction | None) -> bytes:
        """
        What comes from here on is at that rate, and is to have less of that noise.

        Returns:
            What was still on its way.
        """
        rest = b""
        if rate_hz != self._resampler.from_hz:
            rest = self._keep(self._resampler.flush())
            self._resampler = Resampler(rate_hz, HEARING_RATE_HZ, live=True)
        if reduction != self._reduction:
            self._reduction = reduction
            self._reducer = NoiseReducer(reduction) if reduction else None
        return rest

    def take(self, pcm: bytes) -> bytes:
        """More of it, as it came; gives it as ears take it, as far as that is ready."""
        return self._keep(self._resampler.take(pcm))

    def _keep(self, pcm: bytes) -> bytes:
        pcm = self._reducer.take(pcm) if self._reducer is not None else pcm
        self._kept += pcm
        self._came_bytes += len(pcm)
        return pcm

    def between(self, start_ms: float, end_ms: float) -> bytes:
        """The sound between two times, as far as it is kept."""
        first, last = (bytes_of(max(0.0, at_ms - self.from_ms), HEARING_RATE_HZ) for at_ms in (start_ms, end_ms))
        return bytes(self._kept[first:last])

    def let_go(self, until_ms: float) -> None:
        """What came before then is of no more use."""
        count = bytes_of(max(0.0, until_ms - self.from_ms), HEARING_RATE_HZ)
        if count > _SLACK_BYTES:
            del self._kept[:count]

    def clear(self) -> None:
        """Nothing that came is of any more use."""
        self._kept.clear()
