"""
Sound as bytes: G.711 both ways, lengths and times, levels, and the header of a WAV file.

Sound is s16le mono (pulse code, 16 bits a sample, the low byte first) wherever nothing else is said.
"""

from collections.abc import Callable
from functools import cache
from operator import itemgetter
from struct import Struct, pack, unpack
from typing import NamedTuple

from antiphon.errors import ClientError

SAMPLE_BYTES = 2
POSITIVE = 0x80
"""The bit of both laws that says a sample is not negative; the codes of a sample and of its one's complement differ in it alone."""


class _Law(NamedTuple):
    """
    One of the two laws of G.711, as tables.

    Attributes:
        low: the low byte of the sample that each code stands for; likewise `high`.
        codes: the code of every sample, by its bits read as a number without a sign.
    """

    low: bytes
    high: bytes
    codes: bytes

    def decode(self, sound: bytes) -> bytes:
        pcm = bytearray(SAMPLE_BYTES * len(sound))
        pcm[::2] = sound.translate(self.low)
        pcm[1::2] = sound.translate(self.high)
        return bytes(pcm)

    def encode(self, pcm: bytes) -> bytes:
        numbers = _unpack_samples("H", pcm)
        # An itemgetter of one item gives the item, not a tuple of one.
        return bytes(itemgetter(*numbers)(self.codes)) if len(numbers) > 1 else bytes(self.codes[number] for number in numbers)


def _build_law(magnitude: Callable[[int], int], codes: bytes) -> _Law:
    """
    A law from both halves of its definition.

    Args:
        magnitude: of the sample that a code stands for.
        codes: of the samples 0 to 32,767.
    """
    decoded = pack("<256h", *(magnitude(code) if code & POSITIVE else -magnitude(code) for code in range(256)))
    return _Law(decoded[::2], decoded[1::2], codes + bytes(code ^ POSITIVE for code in reversed(codes)))


@cache
def _build_ulaw() -> _Law:
    # Eight segments of sixteen steps, each segment's steps twice as wide as those of the one before. The bias puts the first value in
    # the middle of its step, half of which lies below zero; what is louder than the last step is as loud as that.
    def magnitude(code: int) -> int:
        return ((((~code & 0x0F) << 3) + 0x84) << ((~code & 0x70) >> 4)) - 0x84

    steps = [bytes((~number & 0xFF,)) * (8 << (number >> 4)) for number in range(128)]
    return _build_law(magnitude, b"".join(steps)[4:].ljust(32_768, b"\x80"))


@cache
def _build_alaw() -> _Law:
    # The first two segments have steps of one width. Every other bit is sent inverted, so that silence has edges on the line.
    def magnitude(code: int) -> int:
        segment, step = divmod((code ^ 0x55) & 0x7F, 16)
        return ((step << 4) + (0x108 if segment else 0x08)) << max(0, segment - 1)

    steps = [bytes((number ^ 0x55 ^ POSITIVE,)) * (16 << max(0, (number >> 4) - 1)) for number in range(128)]
    return _build_law(magnitude, b"".join(steps))


def decode_ulaw(sound: bytes) -> bytes:
    """
    Sound that the telephone brought, in America and Japan.

    Args:
        sound: mu-law at 8 kHz, one byte a sample; any length, not kept.

    Returns:
        s16le, twice as many bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_ulaw().decode(sound)


def encode_ulaw(pcm: bytes) -> bytes:
    """
    Sound as the telephone carries it, in America and Japan.

    Args:
        pcm: s16le mono at 8 kHz, any length; not kept.

    Returns:
        mu-law, one byte a sample: half as many bytes.

    Raises:
        ClientError: `pcm` has an odd number of bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_ulaw().encode(pcm)


def decode_alaw(sound: bytes) -> bytes:
    """
    Sound that the telephone brought, in most of the world.

    Args:
        sound: A-law at 8 kHz, one byte a sample; any length, not kept.

    Returns:
        s16le, twice as many bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_alaw().decode(sound)


def encode_alaw(pcm: bytes) -> bytes:
    """
    Sound as the telephone carries it, in most of the world.

    Args:
        pcm: s16le mono at 8 kHz, any length; not kept.

    Returns:
        A-law, one byte a sample: half as many bytes.

    Raises:
        ClientError: `pcm` has an odd number of bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_alaw().encode(pcm)


def duration_ms(pcm_bytes: int, rate_hz: int) -> float:
    """How long so many bytes sound, in milliseconds."""
    return pcm_bytes * 1000 / (SAMPLE_BYTES * rate_hz)


def size_bytes(ms: float, rate_hz: int) -> int:
    """The bytes of so many milliseconds; whole samples, rounded down."""
    return int(ms * rate_hz / 1000) * SAMPLE_BYTES


def peak(pcm: bytes | memoryview) -> int:
    """The furthest that any of the samples is from silence, 0 to 32,768."""
    numbers = _unpack_samples("h", pcm)
    return max(max(numbers), -min(numbers)) if numbers else 0


class SampleAligner:
    """Makes whole samples of pieces of any length: half of one waits for its other half."""

    def __init__(self) -> None:
        self._half = b""

    def align(self, piece: bytes) -> bytes:
        """The samples that are whole with `piece`."""
        pcm = self._half + piece if self._half else piece
        if len(pcm) % SAMPLE_BYTES == 0:
            self._half = b""
            return pcm
        self._half = pcm[-1:]
        return pcm[:-1]


_HEADER = Struct("<4sI4s4sIHHIIHH4sI")

WAV_HEADER_BYTES = _HEADER.size
"""How long the head of a WAV file is that is made here."""


def wav_file(pcm: bytes, rate_hz: int) -> bytes:
    """
    The sound as a WAV file.

    Args:
        pcm: s16le mono.

    Source: Multimedia Programming Interface and Data Specifications 1.0 (IBM and Microsoft, 1991), "Waveform Audio File Format".
    """
    return wav_header(rate_hz, len(pcm)) + pcm


def wav_header(rate_hz: int, sound_bytes: int, channels: int = 1) -> bytes:
    """What stands before so much sound in a WAV file."""
    return _build_wav_header(rate_hz, sound_bytes + _HEADER.size - 8, sound_bytes, channels)


def streaming_wav_header(rate_hz: int) -> bytes:
    """
    What stands before the sound of a WAV file that is sent while it is made: all but how long it will be.

    Its two lengths are the largest there are, by which players know that the sound goes on to the end of the file.
    """
    return _build_wav_header(rate_hz, _UNKNOWN_SIZE, _UNKNOWN_SIZE)


_UNKNOWN_SIZE = 0xFFFF_FFFF


def _build_wav_header(rate_hz: int, file_bytes: int, sound_bytes: int, channels: int = 1) -> bytes:
    pulse_code, length_of_format, bits = 1, 16, 8 * SAMPLE_BYTES
    frame_bytes = SAMPLE_BYTES * channels
    kind = (pulse_code, channels, rate_hz, frame_bytes * rate_hz, frame_bytes, bits)
    return _HEADER.pack(b"RIFF", file_bytes, b"WAVE", b"fmt ", length_of_format, *kind, b"data", sound_bytes)


def _unpack_samples(kind: str, pcm: bytes | memoryview) -> tuple[int, ...]:
    if len(pcm) % SAMPLE_BYTES:
        raise ClientError(f"Invalid audio: expected whole samples of {SAMPLE_BYTES} bytes, but got {len(pcm)} bytes.", code="invalid_value")
    return unpack(f"<{len(pcm) // SAMPLE_BYTES}{kind}", pcm)
