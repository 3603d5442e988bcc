"""
Removes the echo of an answer from the audio that a client sends while it plays that answer.

A microphone hears the loudspeaker beside it, and an engine that hears its own voice takes it for an interruption. The
playback is known here, so its echo can be removed, by WebRTC's canceller, which browsers use too. It finds the delay of
the echo, up to half a second, and its level, and leaves the voices of people unchanged.

Without an echo, because somebody wears a headset, the canceller removes their voice for seconds. So nothing is removed
until an echo was taken for speech, which shows in its similarity to the playback. At the first word of a first answer
that may be known only after the answer was cut short; then it begins again. If the microphone is quiet during an answer
there is no echo, and if what the canceller removes is unlike the playback, there is none any more.
"""

from typing import TYPE_CHECKING, TypeAlias

from antiphon.audio import SAMPLE_BYTES, size_bytes

try:  # the extra `speech`
    import numpy as np
    from pywebrtc_audio import EchoCanceller

    from antiphon.speech.dsp.resample import Resampler
except ImportError:
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True

if TYPE_CHECKING:
    import numpy.typing as npt

_Samples: TypeAlias = "npt.NDArray[np.int16]"
_Energies: TypeAlias = "npt.NDArray[np.float32]"

RATES_HZ = (16_000, 32_000, 48_000)
"""The rates that the canceller supports."""

ECHO_TAIL_MS = 1_000
"""How long after an answer its echo is looked for: it comes late, and rooms reverberate."""

MAX_ECHO_DELAY_MS = 700
"""The longest delay of an echo: the canceller's half a second, and some for rooms."""

ANALYSIS_WINDOW_MS = 700
"""How much of detected speech is compared with the playback."""

MAX_ECHO_RESIDUAL = 0.3
"""The canceller leaves less than this part of an echo."""

ECHO_SIMILARITY, NO_ECHO_SIMILARITY = 0.14, 0.06
"""
How similar to a second of playback an echo is at least, and what is surely none at most; for shorter audio more, by the
square root. One in 200 other voices is as similar as the first, and half are below the second; nine of ten echoes in
bare rooms are above the first.
"""

MIN_PEAK_DISTANCE_MS, MAX_SECOND_PEAK = 30, 0.8
"""An echo has one delay: audio nearly as similar at other delays is a tone."""

QUIET_DBFS, LOUD_DBFS = -65.0, -40.0
"""Below the first an echo is too faint to be taken for speech; above the second an answer's echo would be heard."""

NO_ECHO_AFTER_MS = 300
"""If so much of an answer was loud while the microphone was quiet, there is no echo."""

RECHECK_INTERVAL_MS = 500
"""When to compare again after the first time, and how often to check that there still is an echo."""

SETTLE_MS = 300
"""How long after the echo was found the turn detection may still take the part it already heard for speech."""

_FULL_SCALE = 32_768
_HISTORY_MS = 2_000
_BLOCKS_PER_SECOND = 100
_MIN_RELATIVE_ENERGY = 0.01
"""A block with less than this part of the loudest one's energy counts as a pause."""
_MAX_STRAY_BLOCKS = 5
"""Loud blocks that may be any noise: a key, a chair."""


def new_echo_canceller(rate_hz: int, voice_hz: int) -> "ConversationEchoCanceller | None":
    """
    An echo canceller for a conversation; None if the extra `speech` is not installed, or the rate is not supported.

    Args:
        rate_hz: of the input.
        voice_hz: of the output.
    """
    return ConversationEchoCanceller(rate_hz, voice_hz) if _IS_INSTALLED and rate_hz in RATES_HZ else None


class _AudioHistory:
    """The most recent part of an audio stream; those of one conversation end at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def append(self, pcm: bytes) -> None:
        self._buffer += pcm
        if len(self._buffer) > 2 * self._max_bytes:
            del self._buffer[: -self._max_bytes]

    def between(self, start_bytes: int, end_bytes: int) -> bytes:
        """The audio between two distances from its end; less if less is kept."""
        first, last = (max(0, len(self._buffer) - before_bytes) for before_bytes in (start_bytes, end_bytes))
        return bytes(self._buffer[first:last])

    def clear(self) -> None:
        self._buffer.clear()


class ConversationEchoCanceller:
    """
    Cancels the echo in one conversation.

    Times are milliseconds of all input audio.

    Args:
        rate_hz: of the input.
        voice_hz: of the output.

    Attributes:
        has_echo: whether there is an echo, which is removed.
        was_mistaken: whether it turned out just now that `is_echo` took an echo for speech.
    """

    def __init__(self, rate_hz: int, voice_hz: int) -> None:
        self.has_echo = self.was_mistaken = False
        self._canceller: EchoCanceller | None = None  # only while it may be needed: it takes 0.4 MB
        self._resampler = Resampler(voice_hz, rate_hz, live=True)
        self._rate_hz = rate_hz
        self._block_bytes = rate_hz // _BLOCKS_PER_SECOND * SAMPLE_BYTES
        self._remainder = b""  # input that is not a whole block
        self._input_bytes = 0
        self._pending_playback = bytearray()  # what the client will play from the end of the input on
        self._echo_ends_at = 0
        self._settles_at = 0
        self._recheck: tuple[int, int] | None = None  # where a possible echo began, and when to compare again
        self._next_check_at = 0
        self._is_microphone_quiet = False  # while this answer is played
        self._loud_blocks: list[int] = []  # of the answer, each where it was played
        self._audible_blocks = 0
        max_bytes = size_bytes(_HISTORY_MS, rate_hz)
        self._input_history, self._residual_history, self._playback_history = (_AudioHistory(max_bytes) for _ in range(3))

    def play(self, pcm: bytes, at_ms: float) -> None:
        """The client will play this, after all audio before it and no sooner than `at_ms`."""
        if self._input_bytes >= self._echo_ends_at:
            self._is_microphone_quiet, self._audible_blocks = False, 0
            self._loud_blocks.clear()
            self._canceller = self._canceller or EchoCanceller(sample_rate=self._rate_hz)
            for audio in (self._input_history, self._residual_history, self._playback_history):
                audio.clear()
        missing = size_bytes(at_ms, self._rate_hz) - self._input_bytes - len(self._pending_playback)
        self._pending_playback += bytes(max(0, missing))
        self._pending_playback += self._resampler.process(pcm)
        self._echo_ends_at = self._input_bytes + len(self._pending_playback) + size_bytes(ECHO_TAIL_MS, self._rate_hz)

    def stop(self, at_ms: float) -> None:
        """The client drops what it has not played by then."""
        del self._pending_playback[max(0, size_bytes(at_ms, self._rate_hz) - self._input_bytes) :]
        self._resampler.flush()

    def process(self, pcm: bytes) -> bytes:
        """
        The input without the echo, if there is one; up to 10 ms of it wait for the next call.

        Args:
            pcm: s16le, whole samples, any number of them.
        """
        self.was_mistaken = False
        audio = self._remainder + pcm if self._remainder else pcm
        if self._input_bytes >= self._echo_ends_at:
            self._remainder = b""
            self._input_bytes += len(audio)
            self._canceller = self._canceller if self.has_echo else None
            return audio
        size = len(audio) // self._block_bytes * self._block_bytes
        audio, self._remainder = audio[:size], audio[size:]
        playback = bytes(self._pending_playback[:size]).ljust(size, b"\0")
        del self._pending_playback[:size]
        self._input_bytes += size
        canceller = self._canceller
        return self._process_blocks(canceller, audio, playback) if canceller is not None and size else audio

    def _process_blocks(self, canceller: "EchoCanceller", microphone_pcm: bytes, playback_pcm: bytes) -> bytes:
        near, far = _decode(microphone_pcm), _decode(playback_pcm)
        residual = bytes(canceller.process(near, far).astype("<i2").data)
        for audio, pcm in (
            (self._input_history, microphone_pcm),
            (self._residual_history, residual),
            (self._playback_history, playback_pcm),
        ):
            audio.append(pcm)
        self._check_microphone(near, far)
        self._recheck_echo()
        return residual if self.has_echo else microphone_pcm

    def _check_microphone(self, near: _Samples, far: _Samples) -> None:
        """Find out whether the microphone is quiet while something loud is played."""
        self._audible_blocks += int((self._energies(near) > _energy(QUIET_DBFS)).sum())
        first = self._input_bytes - len(far) * SAMPLE_BYTES
        self._loud_blocks += (first + np.flatnonzero(self._energies(far) > _energy(LOUD_DBFS)) * self._block_bytes).tolist()
        late_bytes = size_bytes(MAX_ECHO_DELAY_MS, self._rate_hz)
        min_blocks = NO_ECHO_AFTER_MS * _BLOCKS_PER_SECOND // 1000
        if (
            self._audible_blocks <= _MAX_STRAY_BLOCKS
            and len(self._loud_blocks) >= min_blocks
            and self._loud_blocks[min_blocks - 1] < self._input_bytes - late_bytes
        ):
            self._rule_out_echo()

    def _rule_out_echo(self) -> None:
        self._is_microphone_quiet, self.has_echo, self._canceller, self._recheck = True, False, None, None

    def _energies(self, samples: _Samples) -> _Energies:
        blocks = samples.astype(np.float32).reshape(-1, self._block_bytes // SAMPLE_BYTES)
        energies: _Energies = (blocks * blocks).mean(axis=1)
        return energies

    def is_echo(self, at_ms: float) -> bool:
        """
        Whether detected speech is only the echo.

        Args:
            at_ms: where the speech begins, which was just detected.
        """
        at = size_bytes(at_ms, self._rate_hz)
        if self.has_echo:
            return at < self._settles_at
        if self._is_microphone_quiet or self._input_bytes >= self._echo_ends_at:
            return False
        self._detect_echo(at)
        if not self.has_echo:
            self._recheck = at, self._input_bytes + size_bytes(RECHECK_INTERVAL_MS, self._rate_hz)
        return self.has_echo

    def _detect_echo(self, at: int) -> None:
        self.has_echo = self._compare(at)[1] > ECHO_SIMILARITY
        self._settles_at = self._input_bytes + size_bytes(SETTLE_MS, self._rate_hz)
        self._next_check_at = self._settles_at + size_bytes(RECHECK_INTERVAL_MS, self._rate_hz)

    def _recheck_echo(self) -> None:
        if self._recheck is not None and self._input_bytes >= self._recheck[1]:
            (at, _), self._recheck = self._recheck, None
            self._detect_echo(at)
            self.was_mistaken = self.has_echo
        elif self.has_echo and self._input_bytes >= self._next_check_at:
            self._next_check_at = self._input_bytes + size_bytes(RECHECK_INTERVAL_MS, self._rate_hz)
            residual, similarity = self._compare(self._input_bytes - size_bytes(ANALYSIS_WINDOW_MS, self._rate_hz))
            if residual < MAX_ECHO_RESIDUAL and similarity < NO_ECHO_SIMILARITY:
                self._rule_out_echo()

    def _compare(self, at: int) -> tuple[float, float]:
        """
        The part of the input since then that the canceller left, and its similarity to the playback; 1 and 0 if it is
        too faint.
        """
        since = (self._input_bytes - at) // self._block_bytes * self._block_bytes
        until = max(0, since - size_bytes(ANALYSIS_WINDOW_MS, self._rate_hz))
        microphone, residual = (_decode(audio.between(since, until)) for audio in (self._input_history, self._residual_history))
        before, after = self._energies(microphone), self._energies(residual)
        if before.max(initial=0.0) < _energy(QUIET_DBFS):
            return 1.0, 0.0
        is_loud = before > _MIN_RELATIVE_ENERGY * before.max()
        residual_part = np.sqrt(after[is_loud].sum() / before[is_loud].sum())
        late_bytes = size_bytes(MAX_ECHO_DELAY_MS, self._rate_hz)
        playback = _decode(
            self._playback_history.between(since + late_bytes, until).rjust(len(microphone) * SAMPLE_BYTES + late_bytes, b"\0")
        )
        return float(residual_part), self._similarity(microphone, playback) * (int(is_loud.sum()) / _BLOCKS_PER_SECOND) ** 0.5

    def _similarity(self, microphone: _Samples, playback: _Samples) -> float:
        """The highest normalized correlation with the playback at any delay, 0 to 1."""
        # Differences of neighbouring samples: else all low voices would be similar.
        one, other = (np.diff(samples.astype("f8"), prepend=samples[:1]) for samples in (microphone, playback))
        lags = len(other) - len(one) + 1
        size = 1 << (len(one) + len(other)).bit_length()
        products = np.fft.irfft(np.fft.rfft(other, size) * np.conj(np.fft.rfft(one, size)), size)[:lags]
        sums = np.concatenate(([0.0], np.cumsum(other * other)))
        energies = (sums[len(one) :] - sums[: -len(one)])[:lags] * float(one @ one)
        energies = np.maximum(energies, 0.01 * energies.max(initial=1.0))
        similarity = abs(products) / np.sqrt(energies)
        best = int(similarity.argmax())
        apart = self._rate_hz * MIN_PEAK_DISTANCE_MS // 1000
        elsewhere = max(similarity[: max(0, best - apart)].max(initial=0.0), similarity[best + apart :].max(initial=0.0))
        return float(similarity[best]) if elsewhere < MAX_SECOND_PEAK * similarity[best] else 0.0


def _decode(pcm: bytes) -> _Samples:
    return np.frombuffer(pcm, "<i2").astype(np.int16, copy=False)


def _energy(dbfs: float) -> float:
    return float(_FULL_SCALE**2 * 10 ** (dbfs / 10))
