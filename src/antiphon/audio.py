"""
Audio as bytes: G.711 both ways, durations, levels, tokens, and WAV headers.

Audio is s16le mono (PCM, 16 bits a sample, low byte first) unless a docstring says otherwise.
"""

from collections import deque
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from struct import Struct, pack, unpack
from typing import NamedTuple

from antiphon.errors import ClientError

SAMPLE_BYTES = 2
INPUT_MS_PER_TOKEN, OUTPUT_MS_PER_TOKEN = 100, 50
"""Audio that counts as one token, of the user and of the assistant (Realtime API, guide "Managing costs")."""

POSITIVE = 0x80
"""
The bit of both laws for samples that are not negative; the codes of a sample and of its one's complement differ only in
it.
"""


class _Law(NamedTuple):
    """
    One of the two laws of G.711, as tables.

    Attributes:
        low: the low byte of the sample for each code; `high` is the high byte.
        codes: the code of every sample, by its bits read as an unsigned number.
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
        # An itemgetter of one item returns the item, not a tuple of one.
        return bytes(itemgetter(*numbers)(self.codes)) if len(numbers) > 1 else bytes(self.codes[number] for number in numbers)


def _build_law(magnitude: Callable[[int], int], codes: bytes) -> _Law:
    """
    A law from the two halves of its definition.

    Args:
        magnitude: the magnitude of the sample for a code.
        codes: the codes of the samples 0 to 32,767.
    """
    samples = pack("<256h", *(magnitude(code) if code & POSITIVE else -magnitude(code) for code in range(256)))
    return _Law(samples[::2], samples[1::2], codes + bytes(code ^ POSITIVE for code in reversed(codes)))


@cache
def _build_ulaw() -> _Law:
    # Eight segments of sixteen steps; a segment's steps are twice as wide as those of the one before. The bias of 0x84
    # puts the first value in the middle of its step, half of which lies below zero. Louder samples are clipped to the
    # last step.
    def magnitude(code: int) -> int:
        return ((((~code & 0x0F) << 3) + 0x84) << ((~code & 0x70) >> 4)) - 0x84

    steps = [bytes((~number & 0xFF,)) * (8 << (number >> 4)) for number in range(128)]
    return _build_law(magnitude, b"".join(steps)[4:].ljust(32_768, b"\x80"))


@cache
def _build_alaw() -> _Law:
    # The first two segments have steps of the same width. Every other bit is inverted, so that silence has edges on the
    # line.
    def magnitude(code: int) -> int:
        segment, step = divmod((code ^ 0x55) & 0x7F, 16)
        return ((step << 4) + (0x108 if segment else 0x08)) << max(0, segment - 1)

    steps = [bytes((number ^ 0x55 ^ POSITIVE,)) * (16 << max(0, (number >> 4) - 1)) for number in range(128)]
    return _build_law(magnitude, b"".join(steps))


def decode_ulaw(sound: bytes) -> bytes:
    """
    Decode mu-law, the telephone's encoding in America and Japan.

    Args:
        sound: mu-law at 8 kHz, one byte a sample, any length.

    Returns:
        s16le, twice as many bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_ulaw().decode(sound)


def encode_ulaw(pcm: bytes) -> bytes:
    """
    Encode as mu-law, the telephone's encoding in America and Japan.

    Args:
        pcm: s16le mono at 8 kHz, any length.

    Returns:
        mu-law, one byte a sample: half as many bytes.

    Raises:
        ClientError: `pcm` has an odd number of bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_ulaw().encode(pcm)


def decode_alaw(sound: bytes) -> bytes:
    """
    Decode A-law, the telephone's encoding in most of the world.

    Args:
        sound: A-law at 8 kHz, one byte a sample, any length.

    Returns:
        s16le, twice as many bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_alaw().decode(sound)


def encode_alaw(pcm: bytes) -> bytes:
    """
    Encode as A-law, the telephone's encoding in most of the world.

    Args:
        pcm: s16le mono at 8 kHz, any length.

    Returns:
        A-law, one byte a sample: half as many bytes.

    Raises:
        ClientError: `pcm` has an odd number of bytes.

    Source: ITU-T Recommendation G.711.
    """
    return _build_alaw().encode(pcm)


def duration_ms(pcm_bytes: int, rate_hz: int) -> float:
    """The duration of that many bytes, in milliseconds."""
    return pcm_bytes * 1000 / (SAMPLE_BYTES * rate_hz)


def size_bytes(ms: float, rate_hz: int) -> int:
    """The bytes of that many milliseconds: whole samples, rounded down."""
    return int(ms * rate_hz / 1000) * SAMPLE_BYTES


def audio_tokens(ms: float, ms_per_token: int) -> int:
    """The tokens that so much audio counts as, rounded up."""
    return -int(-ms // ms_per_token)


def peak(pcm: bytes | memoryview) -> int:
    """The largest magnitude of any sample, 0 to 32,768."""
    numbers = _unpack_samples("h", pcm)
    return max(max(numbers), -min(numbers)) if numbers else 0


class SampleAligner:
    """Cuts chunks of any length at whole samples: half a sample waits for its other half."""

    def __init__(self) -> None:
        self._half = b""

    def align(self, chunk: bytes) -> bytes:
        """The samples that `chunk` completes."""
        pcm = self._half + chunk if self._half else chunk
        if len(pcm) % SAMPLE_BYTES == 0:
            self._half = b""
            return pcm
        self._half = pcm[-1:]
        return pcm[:-1]


_SHORT_CHUNK_BYTES = 320  # 10 ms at 16 kHz


class ChunkBuffer:
    """
    The end of a stream, in the chunks that it came in.

    Appending and dropping copy nothing, so that all who keep the same chunks share them. Short chunks become one, as
    each has a cost of its own.

    Attributes:
        size_bytes: of all that is kept; only to be read.
    """

    __slots__ = ("_chunks", "_dropped_bytes", "size_bytes")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._dropped_bytes = 0  # of the first chunk
        self.size_bytes = 0

    def append(self, chunk: bytes) -> None:
        """Add a chunk at the end."""
        self.size_bytes += len(chunk)
        if len(chunk) < _SHORT_CHUNK_BYTES and self._chunks and len(self._chunks[-1]) < _SHORT_CHUNK_BYTES:
            self._chunks[-1] += chunk
        else:
            self._chunks.append(chunk)

    def drop(self, count: int) -> None:
        """Drop so many bytes from the front, as far as there are any."""
        count = min(count, self.size_bytes)
        self.size_bytes -= count
        count += self._dropped_bytes
        chunks = self._chunks
        while chunks and count >= len(chunks[0]):
            count -= len(chunks.popleft())
        self._dropped_bytes = count

    def clear(self) -> None:
        """Drop everything."""
        self._chunks.clear()
        self._dropped_bytes = self.size_bytes = 0

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, counted from the front, which stay; as far as there are any."""
        stop = min(stop, self.size_bytes)
        if start >= stop:
            return b""
        parts = deque[bytes]()
        if self.size_bytes - start < stop:  # the part is nearer to the end
            end = self.size_bytes
            for chunk in reversed(self._chunks):
                begin = end - len(chunk)
                if begin < stop:
                    parts.appendleft(chunk[max(0, start - begin) : stop - begin])
                if begin <= start:
                    break
                end = begin
        else:
            begin = -self._dropped_bytes
            for chunk in self._chunks:
                end = begin + len(chunk)
                if end > start:
                    parts.append(chunk[max(0, start - begin) : stop - begin])
                if end >= stop:
                    break
                begin = end
        return b"".join(parts)


_HEADER = Struct("<4sI4s4sIHHIIHH4sI")

WAV_HEADER_BYTES = _HEADER.size
"""The size of the headers made here."""


def wav_file(pcm: bytes, rate_hz: int) -> bytes:
    """
    The audio as a WAV file.

    Args:
        pcm: s16le mono.

    Source: Multimedia Programming Interface and Data Specifications 1.0 (IBM and Microsoft, 1991), "Waveform Audio File
    Format".
    """
    return wav_header(rate_hz, len(pcm)) + pcm


def wav_header(rate_hz: int, sound_bytes: int, channels: int = 1) -> bytes:
    """
    The header of a WAV file with that many bytes of audio.

    Its lengths have 32 bits: of 4 GiB and more, a day at 24 kHz, they are those of a file whose length is not known.
    """
    file_bytes = min(sound_bytes + _HEADER.size - 8, _UNKNOWN_SIZE)
    return _build_wav_header(rate_hz, file_bytes, min(sound_bytes, _UNKNOWN_SIZE), channels)


def streaming_wav_header(rate_hz: int) -> bytes:
    """
    The header of a WAV file whose length is not known yet, because it is sent while it is made.

    Both of its lengths are the largest possible: players take that as "up to the end of the file".
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
