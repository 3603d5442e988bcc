"""
Changes the tempo of speech and keeps its pitch.

WSOLA (waveform similarity overlap-add): short frames of the sound are added up at another distance, and each frame is
taken where it best continues the one before.

Source: W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA)", ICASSP 1993.
"""

from collections.abc import Iterable, Iterator

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
    pieces = [*change_tempo_of_pieces([sound], sound.size, tempo, rate_hz)]
    return pieces[0] if len(pieces) == 1 else sound[:0]


def size_at_tempo(size: int, tempo: float) -> int:
    """How many samples become of so many."""
    return size if abs(tempo - 1) < MIN_CHANGE else round(size / tempo)


def change_tempo_of_pieces(sounds: Iterable[np.ndarray], size: int, tempo: float, rate_hz: int) -> Iterator[np.ndarray]:
    """
    A sound that comes in pieces, at another tempo: joined they are what `change_tempo` makes of the whole.

    Args:
        size: the samples of all pieces.
    """
    if abs(tempo - 1) < MIN_CHANGE:
        yield from sounds
        return
    hop, reach = round(HOP_S * rate_hz), round(SEARCH_S * rate_hz)
    frame, end = 2 * hop, hop + round(size / tempo)
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    margin = hop + reach + frame
    padded_sound = np.zeros(size + 2 * margin, np.float32)
    output = np.zeros(end + 2 * frame, np.float32)
    continuation = padded_sound[:0]
    position, target, first = margin, 0, hop  # `position` is where the next piece goes
    for sound in sounds:
        padded_sound[position : position + sound.size] = sound
        position += sound.size
        is_last = position == size + margin
        while target < end:
            # The first frame lies before the sound, so that two frames overlap at every sample of the sound.
            source = hop + frame + round(min(max(target - hop, 0) * tempo, size))
            if not is_last and source + 2 * reach + hop + frame > position:
                break
            source += _best_offset(padded_sound[source : source + frame + 2 * reach], continuation) if continuation.size else reach
            output[target : target + frame] += window * padded_sound[source : source + frame]
            continuation = padded_sound[source + hop : source + hop + frame]
            target += hop
        if (ready := min(target, end)) > first:  # the next frame begins at `target`
            yield output[first:ready]
            first = ready


def _best_offset(region: np.ndarray, frame: np.ndarray) -> int:
    """The offset in the region that is most similar to the frame, independent of loudness."""
    region = region[: max(region.size, frame.size)]
    powers = np.concatenate(([0.0], np.cumsum(np.square(region, dtype=np.float64))))
    levels = np.sqrt(powers[frame.size :] - powers[: -frame.size]) + 1e-6
    return int(np.argmax(np.correlate(region, frame, "valid") / levels))
