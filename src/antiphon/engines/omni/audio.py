"""Sound as MiniCPM-o workers have it, which is in floating point, and as it is everywhere else here."""

from antiphon.audio import SAMPLE_BYTES, bytes_of
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.minicpmo.media import FLOAT_BYTES, from_floats
from antiphon.wire.upstream.minicpmo_backend import TO_WORKER_HZ


def samples(sound: bytes) -> bytes:
    """
    What a worker says as s16le.

    Args:
        sound: float32; a sample that is not whole is left out. Where one is no number, all of it is as good as noise, and silence instead.
    """
    count = len(sound) // FLOAT_BYTES
    pcm = from_floats(sound[: count * FLOAT_BYTES])
    return bytes(count * SAMPLE_BYTES) if pcm is None else pcm


UNIT_BYTES = bytes_of(1000, TO_WORKER_HZ)
"""The second of sound that the model takes at a time."""

LEAST_BYTES = bytes_of(250, TO_WORKER_HZ)
"""What a client may send at a time; of less, a second is gathered."""


class Units:
    """
    Makes pieces that a model takes of sound as it comes.

    What comes in pieces of a quarter of a second to a second goes on as it came, what is longer a second at a time, and what is shorter
    waits until there is a second of it: each piece is a step of the model, which takes as long for a short one.

    Args:
        rate_hz: samples a second of the sound that comes.
    """

    def __init__(self, rate_hz: int) -> None:
        self._resampler = Resampler(rate_hz, TO_WORKER_HZ, live=True)
        self._least_bytes = bytes_of(250, rate_hz)
        self._held = bytearray()

    def take(self, pcm: bytes, *, at_once: bool = False) -> list[bytes]:
        """
        The pieces that are whole now: s16le at `TO_WORKER_HZ`.

        Args:
            at_once: whether what came can't wait, but for the quarter of a second.
        """
        self._held += self._resampler.take(pcm)
        least_bytes = LEAST_BYTES if at_once or len(pcm) >= self._least_bytes else UNIT_BYTES
        units = []
        while len(self._held) >= least_bytes:
            units.append(bytes(self._held[:UNIT_BYTES]))
            del self._held[:UNIT_BYTES]
        return units
