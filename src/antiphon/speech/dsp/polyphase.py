"""
Resamples to 16 kHz without state: any part of a sound, with a little of what is around it, gives what the whole gives.

So audio can be kept as it came and resampled where it is wanted, in batches of several sessions. That takes 1 to 3 us
for 32 ms, where a stream of libsoxr that may not lag takes 20 (docs/decisions/0047). The filter is a windowed sinc: a
block of samples, with a context on both sides of it, times a matrix is the block at 16 kHz.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from antiphon.audio import SAMPLE_BYTES
from antiphon.speech.base import INPUT_RATE_HZ

FloatSamples = npt.NDArray[np.float32]

_CUTOFF = 0.95
"""Where the filter has half its gain, as a part of the lower rate's band."""
_FULL_SCALE = 32_768
_ROWS = 8  # blocks in one product: a large one would be spread over threads, which wait for the next by spinning
_BATCH_BLOCKS = 4096  # 16 s: what is resampled at once, for the memory it takes


class Quality(NamedTuple):
    """
    How good a filter is.

    Attributes:
        stopband_db: by how much it attenuates what the lower rate can't carry.
        context_ms: how much of the sound on each side of a sample it needs, where neither rate is below 16 kHz; twice
            as much at 8 kHz.
    """

    stopband_db: float
    context_ms: int


DETECTION = Quality(stopband_db=80, context_ms=2)
"""Passes what is below 7 kHz (3.5 kHz of a telephone's sound): for those who search for speech."""
TRANSCRIPTION = Quality(stopband_db=100, context_ms=4)
"""Passes what is below 7.2 kHz (3.6 kHz): for those who transcribe it."""

RATES_HZ = (8_000, 24_000)
"""The rates that are resampled here: those of the Realtime API."""


class PolyphaseFilter:
    """
    A filter from one rate to `INPUT_RATE_HZ`; `polyphase_filter` has it.

    Attributes:
        context: how many samples it needs before the first sample and after the last.
        block: it takes whole blocks of so many samples.
        output_block: how many samples each of them becomes.
    """

    def __init__(self, from_hz: int, quality: Quality) -> None:
        context_ms = quality.context_ms * (2 if from_hz < INPUT_RATE_HZ else 1)
        self.block = self.context = context_ms * from_hz // 1000
        self.output_block = context_ms * INPUT_RATE_HZ // 1000
        self._kernel = _kernel(from_hz, self.context, self.block, self.output_block, quality.stopband_db)

    def process(self, samples: FloatSamples) -> FloatSamples:
        """
        Resample parts of equal length, each by itself.

        Args:
            samples: by part; contiguous, a multiple of eight blocks, with the context on both sides.

        Returns:
            By part, its samples without the context.
        """
        parts, size = samples.shape
        blocks = size // self.block - 2
        window = (parts, blocks, len(self._kernel))
        windows = np.lib.stride_tricks.as_strided(samples, window, (samples.strides[0], self.block * samples.itemsize, samples.itemsize))
        groups = np.ascontiguousarray(windows).reshape(-1, _ROWS, len(self._kernel))
        output: FloatSamples = np.matmul(groups, self._kernel)
        return output.reshape(parts, blocks * self.output_block)


def _kernel(from_hz: int, context: int, block: int, output_block: int, stopband_db: float) -> FloatSamples:
    """By input sample of a block with its context, its share in each output sample. Kaiser's formula for the window."""
    times_s = np.arange(output_block) / INPUT_RATE_HZ - (np.arange(-context, block + context) / from_hz)[:, np.newaxis]
    within = np.clip(1 - (times_s * from_hz / context) ** 2, 0, None)
    window = np.i0(0.1102 * (stopband_db - 8.7) * np.sqrt(within)) * (within > 0)
    kernel = np.sinc(times_s * _CUTOFF * min(from_hz, INPUT_RATE_HZ)) * window
    return np.asarray(kernel / kernel.sum(axis=0), np.float32)


@cache
def polyphase_filter(from_hz: int, quality: Quality) -> PolyphaseFilter:
    """The filter from that rate, which is one of `RATES_HZ`."""
    return PolyphaseFilter(from_hz, quality)


def resample_part(sound: bytes | bytearray, from_hz: int, first: int, last: int) -> bytes:
    """
    A part of a sound at `INPUT_RATE_HZ`, as good as a transcriber wants it.

    Args:
        sound: s16le, whole samples; silence is before and after it.
        from_hz: its rate, one of `RATES_HZ`.
        first: index of the part's first sample, counted at `INPUT_RATE_HZ` from the beginning of the sound.
        last: index of the sample after its last one.

    Returns:
        s16le.
    """
    filter = polyphase_filter(from_hz, TRANSCRIPTION)
    parts = []
    begin = first // filter.output_block
    while begin * filter.output_block < last:
        end = min(-(-last // filter.output_block), begin + _BATCH_BLOCKS)
        parts.append(_resample_blocks(filter, sound, begin, end))
        begin = end
    lead_bytes = first % filter.output_block * SAMPLE_BYTES
    return b"".join(parts)[lead_bytes : lead_bytes + max(0, last - first) * SAMPLE_BYTES]


def _resample_blocks(filter: PolyphaseFilter, sound: bytes | bytearray, begin: int, end: int) -> bytes:
    # `process` takes multiples of eight blocks; beyond the sound is silence.
    end += (begin - end) % _ROWS
    start, stop = begin * filter.block - filter.context, end * filter.block + filter.context
    samples = np.zeros(stop - start, np.float32)
    samples_there = np.frombuffer(memoryview(sound)[max(0, start) * SAMPLE_BYTES : stop * SAMPLE_BYTES], "<i2")
    lead = max(0, -start)
    samples[lead : lead + len(samples_there)] = samples_there
    rows = filter.process(samples[np.newaxis])
    return bytes(np.clip(np.rint(rows), -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2").data)
