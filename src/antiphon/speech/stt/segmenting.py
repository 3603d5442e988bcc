"""
Measures audio, and cuts it into segments.

Long audio is cut where it is quietest. The end of a segment doesn't depend on anything after it, so audio that still
arrives is cut in the same places as when it is complete.
"""

import math

import numpy as np
import numpy.typing as npt

from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.stt.hallucination import Evidence

FloatSamples = npt.NDArray[np.float32]

MAX_SEGMENT_S = 20.0
"""Speech models transcribe longer segments worse, or not at all."""

MIN_DBFS = -120.0
"""The level of digital silence."""

_FRAME_SAMPLES = INPUT_RATE_HZ // 50
_PAUSE_FRAMES = 10
_LOUD_FRAMES = 5


def float_samples(pcm: bytes) -> FloatSamples:
    """Samples from -1 to 1 of s16le."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32_768)


def collect_evidence(samples: FloatSamples, no_speech_probability: float = 0.0) -> Evidence:
    """Measure audio; `no_speech_probability` comes from a speech model."""
    powers = _frame_powers(samples)
    # Loud for only 20 ms is a click: the median removes it.
    smooth_powers = np.median(_sliding_windows(powers, _LOUD_FRAMES), axis=1)
    loudest, quiet = float(smooth_powers.max(initial=0)), float(np.quantile(smooth_powers, 0.1)) if len(smooth_powers) else 0.0
    return Evidence(
        duration_s=len(samples) / INPUT_RATE_HZ,
        level_dbfs=_to_db(loudest),
        range_db=_to_db(loudest) - _to_db(quiet),
        no_speech_probability=no_speech_probability,
    )


def cut_at_silence(samples: FloatSamples, max_segment_s: float = MAX_SEGMENT_S) -> int:
    """
    The number of samples in the first segment.

    All of them, or if they are too many, those up to the middle of the quietest fifth of a second in the second half of
    the longest segment allowed.
    """
    max_samples = int(max_segment_s * INPUT_RATE_HZ)
    if len(samples) <= max_samples:
        return len(samples)
    half = max_samples // 2
    quietest = int(np.mean(_sliding_windows(_frame_powers(samples[half:max_samples]), _PAUSE_FRAMES), axis=1).argmin())
    return half + (quietest + _PAUSE_FRAMES // 2) * _FRAME_SAMPLES


def split_at_silences(samples: FloatSamples, max_segment_s: float = MAX_SEGMENT_S) -> list[FloatSamples]:
    """The segments of the audio."""
    segments: list[FloatSamples] = []
    while len(samples):
        size = cut_at_silence(samples, max_segment_s)
        segments.append(samples[:size])
        samples = samples[size:]
    return segments


def _frame_powers(samples: FloatSamples) -> FloatSamples:
    """The power of every frame; an incomplete last frame is padded with silence."""
    frames = -(-len(samples) // _FRAME_SAMPLES)
    buffer = np.zeros((frames, _FRAME_SAMPLES), np.float32)
    buffer.ravel()[: len(samples)] = samples
    powers: FloatSamples = np.mean(np.square(buffer), axis=1)
    return powers


def _sliding_windows(powers: FloatSamples, frames: int) -> FloatSamples:
    """All runs of so many frames; one run of all if there are fewer."""
    return np.lib.stride_tricks.sliding_window_view(powers, min(frames, len(powers))) if len(powers) else powers.reshape(0, 1)


def _to_db(power: float) -> float:
    return max(MIN_DBFS, 10 * math.log10(power)) if power > 0 else MIN_DBFS
