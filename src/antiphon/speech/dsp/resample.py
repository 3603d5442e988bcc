"""
Resamples audio, in streams and whole.

Two ways of libsoxr, both without audible loss. A *live* stream lags 10 to 15 ms where both rates are 16 kHz or more, up
to 30 ms where one is 8 kHz; it costs some 13 us for 20 ms of sound, three times that from 44.1 or 48 kHz. One that
isn't lags 37 to 115 ms and costs 5 us. What lags comes with `flush`, so for sound that is there whole, or that plays
while more is made, the cheap way is as good. No samples are lost or gained, however long the stream.
"""

import numpy as np
import numpy.typing as npt
import soxr

from antiphon.audio import SAMPLE_BYTES

_DTYPE = np.dtype("<i2")
_EMPTY = np.zeros(0, np.int16)
_FLUSH_AFTER_S = 0.2  # after so much of nothing but zeros, what is left in the filters makes no sound


class Resampler:
    """
    Resamples one stream of audio.

    Args:
        live: whether low delay matters.
    """

    def __init__(self, from_hz: int, to_hz: int, *, live: bool = False) -> None:
        self.from_hz = from_hz
        self.to_hz = to_hz
        # soxr's variable-rate filter doesn't wait until a block of a Fourier transform is full.
        self._stream = None if from_hz == to_hz else soxr.ResampleStream(from_hz, to_hz, 1, dtype="int16", quality="HQ", vr=live)
        self._input_samples = 0
        self._output_samples = 0
        self._trailing_zeros: int | None = None  # how many samples of the end were zero; None once the filters are empty

    @property
    def lag_ms(self) -> float:
        """How much of the input is still in the filters."""
        return 1000 * (self._input_samples / self.from_hz - self._output_samples / self.to_hz)

    def process(self, pcm: bytes) -> bytes:
        """
        The audio that is ready at the other rate; may be empty.

        Args:
            pcm: s16le, whole samples, any number of them.
        """
        if self._stream is None:
            return pcm
        samples = np.frombuffer(pcm, _DTYPE)
        output = self._run(self._stream, samples, is_last=False)
        return output + self._flush_if_silent(samples)

    def _flush_if_silent(self, samples: npt.NDArray[np.int16]) -> bytes:
        """
        What is left in the filters, once nothing but zeros has come for a while.

        What fades in them becomes so small that a processor takes ten times as long to reckon with it: a microphone
        that is switched off would cost more than one that is on.
        """
        if samples.any():
            self._trailing_zeros = 0
        elif self._trailing_zeros is not None:
            self._trailing_zeros += len(samples)
            # Only where what was taken is a whole number of samples at the other rate, so that none is gained or lost.
            if self._trailing_zeros > _FLUSH_AFTER_S * self.from_hz and self._input_samples * self.to_hz % self.from_hz == 0:
                size = (self._input_samples * self.to_hz // self.from_hz - self._output_samples) * SAMPLE_BYTES
                self._trailing_zeros = None
                return self.flush()[:size].ljust(size, b"\0")
        return b""

    def flush(self) -> bytes:
        """The rest of the audio; input after it begins a new stream."""
        if self._stream is None or not self._input_samples:
            return b""
        rest = self._run(self._stream, _EMPTY, is_last=True)
        self._stream.clear()
        self._input_samples = self._output_samples = 0
        return rest

    def _run(self, stream: soxr.ResampleStream, samples: npt.NDArray[np.int16], is_last: bool) -> bytes:
        output = stream.resample_chunk(samples.astype(np.int16, copy=False), is_last)
        self._input_samples += len(samples)
        self._output_samples += len(output)
        return bytes(output.astype(_DTYPE, copy=False).data)


def resample(pcm: bytes, from_hz: int, to_hz: int) -> bytes:
    """
    Resample audio that is complete.

    Args:
        pcm: s16le, whole samples.

    Returns:
        s16le of the same duration, to a sample.
    """
    if from_hz == to_hz or len(pcm) < SAMPLE_BYTES:
        return pcm
    resampler = Resampler(from_hz, to_hz)
    return resampler.process(pcm) + resampler.flush()
