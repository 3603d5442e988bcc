"""
The sound that a client has sent and that is no item yet.

The law: every byte that came in is committed, cleared or held. The clock of the conversation is all that came in, in milliseconds; what
is held is always the end of it.
"""

from collections.abc import Callable
from typing import NamedTuple

from antiphon.audio import Samples, bytes_of, from_alaw, from_ulaw, ms_of
from antiphon.errors import ClientMistake

LEAST_MS = 100
"""The shortest sound that can be committed by hand."""

MOST_BYTES = 64 << 20
"""The most sound that is held: some 23 minutes at 24 kHz."""

LOOKBACK_MS = 4_000
"""How much silence is held while turns are detected; speech is told a little after it has begun, and begins with its padding."""


class Coding(NamedTuple):
    """
    How sound stands on the wire.

    Attributes:
        rate_hz: samples a second.
        decode: to s16le; None where it is that already.
    """

    rate_hz: int
    decode: Callable[[bytes], bytes] | None = None


PCM = Coding(24_000)
CODINGS: dict[str, Coding] = {"audio/pcm": PCM, "audio/pcmu": Coding(8_000, from_ulaw), "audio/pcma": Coding(8_000, from_alaw)}


class InputBuffer:
    """
    What was heard and is not committed.

    Attributes:
        came_bytes: all sound that came in, as s16le; likewise `committed_bytes` and `cleared_bytes`.
        rate_hz: samples a second of what is held.
    """

    def __init__(self, coding: Coding = PCM) -> None:
        self.came_bytes = 0
        self.committed_bytes = 0
        self.cleared_bytes = 0
        self.rate_hz = coding.rate_hz
        self._decode = coding.decode
        self._held = bytearray()
        self._samples = Samples()
        # What came at an earlier rate, and where in `came_bytes` the present one began.
        self._before_ms = 0.0
        self._rate_since = 0

    @property
    def held_bytes(self) -> int:
        """Sound that is neither committed nor cleared; the half of a sample at its end is not counted before the other half has come."""
        return len(self._held)

    @property
    def now_ms(self) -> int:
        """The conversation's clock: how much sound came in."""
        return int(self._before_ms + ms_of(self.came_bytes - self._rate_since, self.rate_hz))

    @property
    def held_from_ms(self) -> int:
        """Where on the clock what is held begins."""
        return int(self._before_ms + ms_of(self.came_bytes - self._rate_since - len(self._held), self.rate_hz))

    def append(self, sound: bytes) -> bytes:
        """
        Hold more sound, as it is on the wire.

        Returns:
            What that is as s16le, whole samples.

        Raises:
            ClientMistake: there is too much; none of it was taken.
        """
        if len(self._held) + len(sound) > MOST_BYTES:
            raise ClientMistake(
                f"The input audio buffer is full: it holds {ms_of(len(self._held), self.rate_hz):.0f}ms of audio. Commit or clear it.",
                code="input_audio_buffer_full",
            )
        pcm = self._samples.take(sound) if self._decode is None else self._decode(sound)
        self._held += pcm
        self.came_bytes += len(pcm)
        return pcm

    def let_go(self, keep_ms: int = LOOKBACK_MS) -> None:
        """Clear all but the last of what is held: silence that nobody will ask for."""
        if len(self._held) > 2 * (keep_bytes := bytes_of(keep_ms, self.rate_hz)):
            self._clear(len(self._held) - keep_bytes)

    def clear(self) -> None:
        """Clear all that is held."""
        self._samples = Samples()
        self._clear(len(self._held))

    def commit(self) -> bytes:
        """
        Commit all that is held.

        Raises:
            ClientMistake: that is too little; it is still held.
        """
        held_ms = ms_of(len(self._held), self.rate_hz)
        if held_ms < LEAST_MS:
            raise ClientMistake(
                f"Error committing input audio buffer: buffer too small. Expected at least {LEAST_MS}ms of audio, "
                f"but buffer only has {held_ms:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        return self._commit(len(self._held))

    def commit_turn(self, start_ms: int, end_ms: int) -> bytes:
        """Commit what lies between two times of the clock, as far as it is held; what lies before is cleared, the rest still held."""
        held_from_ms = self.held_from_ms
        self._clear(min(len(self._held), bytes_of(max(0, start_ms - held_from_ms), self.rate_hz)))
        return self._commit(min(len(self._held), bytes_of(max(0, end_ms - max(start_ms, held_from_ms)), self.rate_hz)))

    def recode(self, coding: Coding) -> None:
        """From here on sound comes in another coding; at another rate what is held is cleared, as one sound has one rate."""
        self._samples = Samples()
        if coding.rate_hz != self.rate_hz:
            self.clear()
            self._before_ms += ms_of(self.came_bytes - self._rate_since, self.rate_hz)
            self._rate_since = self.came_bytes
        self.rate_hz, self._decode = coding

    def _clear(self, count: int) -> None:
        del self._held[:count]
        self.cleared_bytes += count

    def _commit(self, count: int) -> bytes:
        pcm = bytes(self._held[:count])
        del self._held[:count]
        self.committed_bytes += count
        return pcm
