"""
The input audio buffer: audio that a client has sent and that is no item yet.

The law: every byte that came in is committed, cleared or still buffered. The clock of the conversation is the length of
all audio that came in, in milliseconds; the buffer always holds the end of it.
"""

from collections.abc import Callable
from typing import NamedTuple

from antiphon.audio import ChunkBuffer, SampleAligner, decode_alaw, decode_ulaw, duration_ms, size_bytes
from antiphon.engine_api.options import LOOKBACK_MS
from antiphon.errors import ClientError

MIN_COMMIT_MS = 100
"""The shortest audio that a client can commit (the original's limit, and its error message)."""

BUFFER_LIMIT_BYTES = 64 << 20
"""How much audio the buffer holds: some 23 minutes at 24 kHz."""


class AudioCodec(NamedTuple):
    """
    How audio is coded on the wire.

    Attributes:
        decode: to s16le; None if it is s16le already.
    """

    rate_hz: int
    decode: Callable[[bytes], bytes] | None = None


# Realtime reference: PCM at 24 kHz and no other rate. G.711 has 8 kHz (RFC 3551, table 4).
PCM_CODEC = AudioCodec(24_000)
AUDIO_CODECS: dict[str, AudioCodec] = {
    "audio/pcm": PCM_CODEC,
    "audio/pcmu": AudioCodec(8_000, decode_ulaw),
    "audio/pcma": AudioCodec(8_000, decode_alaw),
}


class InputBuffer:
    """
    The buffer, as s16le mono.

    Attributes:
        received_bytes: all audio that came in; `committed_bytes` and `cleared_bytes` are what of it left again.
        rate_hz: the sample rate of the buffered audio.
    """

    def __init__(self, codec: AudioCodec = PCM_CODEC) -> None:
        self.received_bytes = 0
        self.committed_bytes = 0
        self.cleared_bytes = 0
        self.rate_hz = codec.rate_hz
        self._lookback_bytes = size_bytes(LOOKBACK_MS, codec.rate_hz)
        self._decode = codec.decode
        self._buffer = ChunkBuffer()
        self._samples = SampleAligner()
        # The length of audio at earlier rates, and where in `received_bytes` the current rate began.
        self._earlier_rates_ms = 0.0
        self._rate_start_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """How much audio is buffered, in whole samples."""
        return self._buffer.size_bytes

    @property
    def now_ms(self) -> int:
        """The conversation's clock: the length of all audio that came in."""
        return int(self._earlier_rates_ms + duration_ms(self.received_bytes - self._rate_start_bytes, self.rate_hz))

    @property
    def buffer_start_ms(self) -> int:
        """The time on the clock at which the buffered audio starts."""
        start_bytes = self.received_bytes - self._rate_start_bytes - self._buffer.size_bytes
        return int(self._earlier_rates_ms + duration_ms(start_bytes, self.rate_hz))

    def append(self, audio: bytes) -> bytes:
        """
        Buffer audio as it came on the wire.

        Returns:
            The audio as s16le, whole samples.

        Raises:
            ClientError: the buffer is full; none of it was added.
        """
        if self._buffer.size_bytes + len(audio) > BUFFER_LIMIT_BYTES:
            raise ClientError(
                f"The input audio buffer is full: it holds {duration_ms(self._buffer.size_bytes, self.rate_hz):.0f}ms of audio. "
                "Commit or clear it.",
                code="input_audio_buffer_full",
            )
        pcm = self._samples.align(audio) if self._decode is None else self._decode(audio)
        if pcm:
            self._buffer.append(pcm)
        self.received_bytes += len(pcm)
        return pcm

    def trim(self) -> None:
        """Clear all but the last `LOOKBACK_MS`: silence that no turn can start in any more."""
        if self._buffer.size_bytes > 2 * self._lookback_bytes:
            self._clear(self._buffer.size_bytes - self._lookback_bytes)

    def clear(self) -> None:
        """Clear the buffer."""
        self._samples = SampleAligner()
        self._clear(self._buffer.size_bytes)

    def commit(self) -> bytes:
        """
        Commit the whole buffer.

        Raises:
            ClientError: it is too short; it stays buffered.
        """
        buffered_ms = duration_ms(self._buffer.size_bytes, self.rate_hz)
        if buffered_ms < MIN_COMMIT_MS:
            raise ClientError(
                f"Error committing input audio buffer: buffer too small. Expected at least {MIN_COMMIT_MS}ms of audio, "
                f"but buffer only has {buffered_ms:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        return self._commit(self._buffer.size_bytes)

    def commit_turn(self, start_ms: int, end_ms: int) -> bytes:
        """
        Commit the audio between two times of the clock, as far as it is buffered. What comes before it is cleared, the
        rest stays.
        """
        buffer_start_ms = self.buffer_start_ms
        # The clock counts received audio, not time of day, so audio that comes faster than it was spoken has the same
        # turns.
        self._clear(min(self._buffer.size_bytes, size_bytes(max(0, start_ms - buffer_start_ms), self.rate_hz)))
        return self._commit(min(self._buffer.size_bytes, size_bytes(max(0, end_ms - max(start_ms, buffer_start_ms)), self.rate_hz)))

    def set_codec(self, codec: AudioCodec) -> None:
        """Set the codec of the audio to come. Another sample rate clears the buffer, which has one rate only."""
        self._samples = SampleAligner()
        if codec.rate_hz != self.rate_hz:
            self.clear()
            self._earlier_rates_ms += duration_ms(self.received_bytes - self._rate_start_bytes, self.rate_hz)
            self._rate_start_bytes = self.received_bytes
        self.rate_hz, self._decode = codec
        self._lookback_bytes = size_bytes(LOOKBACK_MS, codec.rate_hz)

    def _clear(self, count: int) -> None:
        self._buffer.drop(count)
        self.cleared_bytes += count

    def _commit(self, count: int) -> bytes:
        pcm = self._buffer.read(0, count)
        self._buffer.drop(count)
        self.committed_bytes += count
        return pcm
