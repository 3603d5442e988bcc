"""Sound as MiniCPM-o workers have it, which is in floating point, and as it is everywhere else here."""

from antiphon.audio import SAMPLE_BYTES, size_bytes
from antiphon.speech.dsp.resample import Resampler
from antiphon.wire.minicpmo.media import FLOAT_BYTES, from_floats
from antiphon.wire.upstream.minicpmo_backend import INPUT_RATE_HZ


def floats_to_pcm(audio: bytes) -> bytes:
    """
    What a worker says as s16le.

    Args:
        sound: float32; a sample that is not whole is left out. Where one is no number, all of it is as good as noise, and silence instead.
    """
    count = len(audio) // FLOAT_BYTES
    pcm = from_floats(audio[: count * FLOAT_BYTES])
    return bytes(count * SAMPLE_BYTES) if pcm is None else pcm


UNIT_BYTES = size_bytes(1000, INPUT_RATE_HZ)
"""The second of sound that the model takes at a time."""

MIN_UNIT_BYTES = size_bytes(250, INPUT_RATE_HZ)
"""What a client may send at a time; of less, a second is gathered."""


class AudioUnitChunker:
    """
    Makes pieces that a model takes of sound as it comes.

    What comes in pieces of a quarter of a second to a second goes on as it came, what is longer a second at a time, and what is shorter
    waits until there is a second of it: each piece is a step of the model, which takes as long for a short one.

    Args:
        rate_hz: samples a second of the sound that comes.
    """

    def __init__(self, rate_hz: int) -> None:
        self._resampler = Resampler(rate_hz, INPUT_RATE_HZ, live=True)
        self._min_input_bytes = size_bytes(250, rate_hz)
        self._buffer = bytearray()

    def process(self, pcm: bytes, *, is_urgent: bool = False) -> list[bytes]:
        """
        The pieces that are whole now: s16le at `TO_WORKER_HZ`.

        Args:
            at_once: whether what came can't wait, but for the quarter of a second.
        """
        self._buffer += self._resampler.process(pcm)
        least_bytes = MIN_UNIT_BYTES if is_urgent or len(pcm) >= self._min_input_bytes else UNIT_BYTES
        units = []
        while len(self._buffer) >= least_bytes:
            units.append(bytes(self._buffer[:UNIT_BYTES]))
            del self._buffer[:UNIT_BYTES]
        return units
