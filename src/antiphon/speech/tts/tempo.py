"""
Changes the tempo of speech and keeps its pitch.

WSOLA (waveform similarity overlap-add): short frames of the sound are added up at another distance, and each frame is
taken where it best continues the one before.

Source: W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA)", ICASSP 1993.
"""

import numpy as np

HOP_S = 0.012
"""The distance of frames in the output. A frame is twice as long: at least two periods of a low voice."""

SEARCH_S = 0.008
"""How far from its exact position a frame may be taken: a little more than half a period, so that there is a match."""

MIN_CHANGE = 0.01
"""A smaller change is inaudible and is not made."""


def change_tempo(sound: np.ndarray, tempo: float, rate_hz: int) -> np.ndarray:
    """
    The sound at another tempo.

    Args:
        sound: samples from -1 to 1, of shape (n,).
        tempo: 2 makes it half as long.

    Returns:
        `n / tempo` samples, exactly; the sound itself if the change is below `MIN_CHANGE`.
    """
    if abs(tempo - 1) < MIN_CHANGE or not sound.size:
        return sound
    hop, reach = round(HOP_S * rate_hz), round(SEARCH_S * rate_hz)
    frame, length = 2 * hop, round(sound.size / tempo)
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    padded_sound = np.pad(sound.astype(np.float32), hop + reach + frame)
    output = np.zeros(length + 2 * frame, np.float32)
    continuation = padded_sound[:0]
    for target in range(0, length + hop, hop):
        # The first frame lies before the sound, so that two frames overlap at every sample of the sound.
        source = hop + frame + round(min(max(target - hop, 0) * tempo, sound.size))
        source += _best_offset(padded_sound[source : source + frame + 2 * reach], continuation) if continuation.size else reach
        output[target : target + frame] += window * padded_sound[source : source + frame]
        continuation = padded_sound[source + hop : source + hop + frame]
    return output[hop : hop + length]


def _best_offset(region: np.ndarray, frame: np.ndarray) -> int:
    """The offset in the region that is most similar to the frame, independent of loudness."""
    region = region[: max(region.size, frame.size)]
    powers = np.concatenate(([0.0], np.cumsum(np.square(region, dtype=np.float64))))
    levels = np.sqrt(powers[frame.size :] - powers[: -frame.size]) + 1e-6
    return int(np.argmax(np.correlate(region, frame, "valid") / levels))
