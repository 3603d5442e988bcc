"""
Sound in numbers: whether anything can have been said in it, and where it can be cut.

A long sound is cut where it is quietest. Where its first stretch ends depends on nothing behind it, so that sound which is still coming is
cut as it will be when it is there whole.
"""

import math

import numpy as np
import numpy.typing as npt

from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.stt.hallucination import Evidence

FloatSamples = npt.NDArray[np.float32]

MAX_SEGMENT_S = 20.0
"""Of a stretch; models that write down what is said do it worse, or not at all, from longer ones."""

MIN_DBFS = -120.0
"""How loud nothing is."""

_FRAME_SAMPLES = INPUT_RATE_HZ // 50
_PAUSE_FRAMES = 10
_LOUD_FRAMES = 5


def float_samples(pcm: bytes) -> FloatSamples:
    """Samples from -1 to 1 of s16le."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32_768)


def collect_evidence(samples: FloatSamples, no_speech_probability: float = 0.0) -> Evidence:
    """What its samples tell of the sound; `no_speech` what a model does."""
    powers = _frame_powers(samples)
    # What is loud for 20 ms, and quiet around them, is a click.
    lasting = np.median(_sliding_windows(powers, _LOUD_FRAMES), axis=1)
    loudest, quiet = float(lasting.max(initial=0)), float(np.quantile(lasting, 0.1)) if len(lasting) else 0.0
    return Evidence(
        duration_s=len(samples) / INPUT_RATE_HZ,
        level_dbfs=_to_db(loudest),
        range_db=_to_db(loudest) - _to_db(quiet),
        no_speech_probability=no_speech_probability,
    )


def cut_at_silence(samples: FloatSamples, max_segment_s: float = MAX_SEGMENT_S) -> int:
    """
    How many samples the first stretch has: all, or where there are too many, those up to the middle of the quietest fifth of a second in
    the second half of the longest stretch there may be.
    """
    longest = int(max_segment_s * INPUT_RATE_HZ)
    if len(samples) <= longest:
        return len(samples)
    half = longest // 2
    quietest = int(np.mean(_sliding_windows(_frame_powers(samples[half:longest]), _PAUSE_FRAMES), axis=1).argmin())
    return half + (quietest + _PAUSE_FRAMES // 2) * _FRAME_SAMPLES


def split_at_silences(samples: FloatSamples, max_segment_s: float = MAX_SEGMENT_S) -> list[FloatSamples]:
    """The sound, cut."""
    cut: list[FloatSamples] = []
    while len(samples):
        size = cut_at_silence(samples, max_segment_s)
        cut.append(samples[:size])
        samples = samples[size:]
    return cut


def _frame_powers(samples: FloatSamples) -> FloatSamples:
    """The power of every frame; what is left behind the last whole one counts as silent from there on."""
    frames = -(-len(samples) // _FRAME_SAMPLES)
    padded = np.zeros((frames, _FRAME_SAMPLES), np.float32)
    padded.ravel()[: len(samples)] = samples
    powers: FloatSamples = np.mean(np.square(padded), axis=1)
    return powers


def _sliding_windows(powers: FloatSamples, frames: int) -> FloatSamples:
    """So many frames in a row, from each one on; all of them where there are fewer."""
    return np.lib.stride_tricks.sliding_window_view(powers, min(frames, len(powers))) if len(powers) else powers.reshape(0, 1)


def _to_db(power: float) -> float:
    return max(MIN_DBFS, 10 * math.log10(power)) if power > 0 else MIN_DBFS
