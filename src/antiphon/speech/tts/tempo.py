"""
Speech made faster or slower, its pitch kept.

By overlap and add of the most alike (WSOLA): short frames of the sound are laid over each other at another distance, each one taken where
it goes on best with what is there.

Source: W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA)", ICASSP 1993.
"""

import numpy as np

HOP_S = 0.012
"""Between frames as they are laid; each is twice as long, two periods and more of a low voice."""

SEARCH_S = 0.008
"""How far from where it should be taken a frame may be looked for: so that it finds its match, somewhat more than half a period."""

MIN_CHANGE = 0.01
"""What nobody hears."""


def change_tempo(sound: np.ndarray, tempo: float, rate_hz: int) -> np.ndarray:
    """
    The sound, so many times as fast.

    Args:
        sound: samples from -1 to 1, of shape (n,).
        tempo: 2 makes it half as long.

    Returns:
        As many samples as that comes to, to the sample; the same sound where the change is too little to be heard.
    """
    if abs(tempo - 1) < MIN_CHANGE or not sound.size:
        return sound
    hop, reach = round(HOP_S * rate_hz), round(SEARCH_S * rate_hz)
    frame, length = 2 * hop, round(sound.size / tempo)
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    padded = np.pad(sound.astype(np.float32), hop + reach + frame)
    laid = np.zeros(length + 2 * frame, np.float32)
    goes_on = padded[:0]
    for to in range(0, length + hop, hop):
        # The first frame stands before the sound, so that all of that is under two of them.
        at = hop + frame + round(min(max(to - hop, 0) * tempo, sound.size))
        at += _best_offset(padded[at : at + frame + 2 * reach], goes_on) if goes_on.size else reach
        laid[to : to + frame] += window * padded[at : at + frame]
        goes_on = padded[at + hop : at + hop + frame]
    return laid[hop : hop + length]


def _best_offset(region: np.ndarray, frame: np.ndarray) -> int:
    """Where in the region it is most like the frame, whatever the loudness."""
    region = region[: max(region.size, frame.size)]
    powers = np.concatenate(([0.0], np.cumsum(np.square(region, dtype=np.float64))))
    levels = np.sqrt(powers[frame.size :] - powers[: -frame.size]) + 1e-6
    return int(np.argmax(np.correlate(region, frame, "valid") / levels))
