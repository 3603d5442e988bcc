"""
The sound that a client has sent and that is no item yet.

The law: every byte that came in is committed, cleared or held. The clock of the conversation is all that came in, in milliseconds; what
is held is always the end of it.
"""

from collections.abc import Callable
from typing import NamedTuple

from antiphon.audio import SampleAligner, decode_alaw, decode_ulaw, duration_ms, size_bytes
from antiphon.errors import ClientError

MIN_COMMIT_MS = 100
"""The shortest sound that can be committed by hand."""

BUFFER_LIMIT_BYTES = 64 << 20
"""The most sound that is held: some 23 minutes at 24 kHz."""

LOOKBACK_MS = 4_000
"""How much silence is held while turns are detected; speech is told a little after it has begun, and begins with its padding."""


class AudioCodec(NamedTuple):
    """
    How sound stands on the wire.

    Attributes:
        rate_hz: samples a second.
        decode: to s16le; None where it is that already.
    """

    rate_hz: int
    decode: Callable[[bytes], bytes] | None = None


PCM_CODEC = AudioCodec(24_000)
AUDIO_CODECS: dict[str, AudioCodec] = {
    "audio/pcm": PCM_CODEC,
    "audio/pcmu": AudioCodec(8_000, decode_ulaw),
    "audio/pcma": AudioCodec(8_000, decode_alaw),
}


class InputBuffer:
    """
    What was heard and is not committed.

    Attributes:
        came_bytes: all sound that came in, as s16le; likewise `committed_bytes` and `cleared_bytes`.
        rate_hz: samples a second of what is held.
    """

    def __init__(self, codec: AudioCodec = PCM_CODEC) -> None:
        self.received_bytes = 0
        self.committed_bytes = 0
        self.cleared_bytes = 0
        self.rate_hz = codec.rate_hz
        self._decode = codec.decode
        self._buffer = bytearray()
        self._samples = SampleAligner()
        # What came at an earlier rate, and where in `received_bytes` the present one began.
        self._earlier_rates_ms = 0.0
        self._rate_start_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Sound that is neither committed nor cleared; the half of a sample at its end is not counted before the other half has come."""
        return len(self._buffer)

    @property
    def now_ms(self) -> int:
        """The conversation's clock: how much sound came in."""
        return int(self._earlier_rates_ms + duration_ms(self.received_bytes - self._rate_start_bytes, self.rate_hz))

    @property
    def buffer_start_ms(self) -> int:
        """Where on the clock what is held begins."""
        return int(self._earlier_rates_ms + duration_ms(self.received_bytes - self._rate_start_bytes - len(self._buffer), self.rate_hz))

    def append(self, audio: bytes) -> bytes:
        """
        Hold more sound, as it is on the wire.

        Returns:
            What that is as s16le, whole samples.

        Raises:
            ClientError: there is too much; none of it was taken.
        """
        if len(self._buffer) + len(audio) > BUFFER_LIMIT_BYTES:
            raise ClientError(
                f"The input audio buffer is full: it holds {duration_ms(len(self._buffer), self.rate_hz):.0f}ms of audio. "
                "Commit or clear it.",
                code="input_audio_buffer_full",
            )
        pcm = self._samples.align(audio) if self._decode is None else self._decode(audio)
        self._buffer += pcm
        self.received_bytes += len(pcm)
        return pcm

    def trim(self, keep_ms: int = LOOKBACK_MS) -> None:
        """Clear all but the last of what is held: silence that nobody will ask for."""
        if len(self._buffer) > 2 * (keep_bytes := size_bytes(keep_ms, self.rate_hz)):
            self._clear(len(self._buffer) - keep_bytes)

    def clear(self) -> None:
        """Clear all that is held."""
        self._samples = SampleAligner()
        self._clear(len(self._buffer))

    def commit(self) -> bytes:
        """
        Commit all that is held.

        Raises:
            ClientError: that is too little; it is still held.
        """
        held_ms = duration_ms(len(self._buffer), self.rate_hz)
        if held_ms < MIN_COMMIT_MS:
            raise ClientError(
                f"Error committing input audio buffer: buffer too small. Expected at least {MIN_COMMIT_MS}ms of audio, "
                f"but buffer only has {held_ms:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        return self._commit(len(self._buffer))

    def commit_turn(self, start_ms: int, end_ms: int) -> bytes:
        """Commit what lies between two times of the clock, as far as it is held; what lies before is cleared, the rest still held."""
        held_from_ms = self.buffer_start_ms
        self._clear(min(len(self._buffer), size_bytes(max(0, start_ms - held_from_ms), self.rate_hz)))
        return self._commit(min(len(self._buffer), size_bytes(max(0, end_ms - max(start_ms, held_from_ms)), self.rate_hz)))

    def set_codec(self, codec: AudioCodec) -> None:
        """From here on sound comes in another coding; at another rate what is held is cleared, as one sound has one rate."""
        self._samples = SampleAligner()
        if codec.rate_hz != self.rate_hz:
            self.clear()
            self._earlier_rates_ms += duration_ms(self.received_bytes - self._rate_start_bytes, self.rate_hz)
            self._rate_start_bytes = self.received_bytes
        self.rate_hz, self._decode = codec

    def _clear(self, count: int) -> None:
        del self._buffer[:count]
        self.cleared_bytes += count

    def _commit(self, count: int) -> bytes:
        pcm = bytes(self._buffer[:count])
        del self._buffer[:count]
        self.committed_bytes += count
        return pcm
