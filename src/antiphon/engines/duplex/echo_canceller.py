"""
The echo of an answer, in the sound that a client sends while it plays that answer.

A loudspeaker is heard by the microphone beside it, and an engine that hears its own voice takes it for somebody who
interrupts it. What is played is known here, so it can be taken out: by WebRTC's canceller, which browsers use, too. It
finds out by itself how late the echo is, up to half a second, and how loud, and leaves whoever speaks meanwhile as they
are.

Where there is no echo, because somebody wears a headset, the canceller takes their voice for one, for seconds. So
nothing is taken out until an echo was taken for speech, which is told by how like what was played it is. At the first
word of a first answer that may be known only after the answer was cut short; then it is begun again. Where the
microphone is quiet while an answer is played there is no echo, and where what the canceller takes out is like nothing
that was played, there is none any more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antiphon.audio import SAMPLE_BYTES, size_bytes

if TYPE_CHECKING:
    from pywebrtc_audio import EchoCanceller

    from antiphon.speech.dsp.resample import Resampler

RATES_HZ = (16_000, 32_000, 48_000)
"""What the canceller takes."""

ECHO_TAIL_MS = 1_000
"""How long after the last of an answer its echo is looked for: it comes late, and rooms go on for a while."""

MAX_ECHO_DELAY_MS = 700
"""How late an echo may be: the canceller's half a second, and something for rooms."""

ANALYSIS_WINDOW_MS = 700
"""How much of what was taken for speech is looked at."""

MAX_ECHO_RESIDUAL = 0.3
"""Of what the canceller takes for an echo it leaves less than that."""

ECHO_SIMILARITY, NO_ECHO_SIMILARITY = 0.14, 0.06
"""
How like what was played an echo is, and what surely is none, where a second of it was heard; more for less, by its
square root. Of voices of others one in 200 is as like, and half are less so than the other; of echoes in bare rooms
nine of ten are more so than the first.
"""

MIN_PEAK_DISTANCE_MS, MAX_SECOND_PEAK = 30, 0.8
"""An echo comes at one time: what is nearly as like so much sooner or later is a tone, and so is all that is like it."""

QUIET_DBFS, LOUD_DBFS = -65.0, -40.0
"""What of an echo is too faint to be taken for speech, and what of an answer would be heard if there were an echo."""

NO_ECHO_AFTER_MS = 300
"""After so much of an answer was loud, and the microphone quiet, there is no echo."""

RECHECK_INTERVAL_MS = 500
"""So long after the first look one looks again, and so often at whether there is an echo still."""

SETTLE_MS = 300
"""So long after the echo was found, whoever listens may go on taking for speech what of it they have in their ears."""

_FULL_SCALE = 32_768
_HISTORY_MS = 2_000
_BLOCKS_PER_SECOND = 100
_MIN_RELATIVE_ENERGY = 0.01
_MAX_STRAY_BLOCKS = 5
"""Blocks that are loud and may be anything: a key, a chair."""


def new_echo_canceller(rate_hz: int, voice_hz: int) -> "ConversationEchoCanceller | None":
    """
    Takes the echo out of one conversation; None where that can't be done: the extra `speech` is not installed, or at
    that rate.

    Args:
        rate_hz: of what the client sends.
        voice_hz: of what it is sent.
    """
    if rate_hz not in RATES_HZ:
        return None
    try:
        import numpy  # noqa: PLC0415 - an extra, as all of these
        import pywebrtc_audio  # noqa: PLC0415

        from antiphon.speech.dsp.resample import Resampler  # noqa: PLC0415
    except ImportError:
        return None
    return ConversationEchoCanceller(
        numpy, lambda: pywebrtc_audio.EchoCanceller(sample_rate=rate_hz), Resampler(voice_hz, rate_hz, live=True), rate_hz
    )


class _AudioHistory:
    """The end of a sound; all of one conversation's end at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def append(self, pcm: bytes) -> None:
        """It goes on."""
        self._buffer += pcm
        if len(self._buffer) > 2 * self._max_bytes:
            del self._buffer[: -self._max_bytes]

    def between(self, start_bytes: int, end_bytes: int) -> bytes:
        """What came between so much and so much before its end; less where less was kept."""
        first, last = (max(0, len(self._buffer) - before_bytes) for before_bytes in (start_bytes, end_bytes))
        return bytes(self._buffer[first:last])

    def clear(self) -> None:
        """Forget it."""
        self._buffer.clear()


class ConversationEchoCanceller:
    """
    One conversation's echo.

    Time is milliseconds of all the sound that the client sent.

    Args:
        make: makes a canceller.
        resampler: from what the client is sent to what it sends.

    Attributes:
        is_heard: whether there is one, which is taken out.
        was_mistaken: whether it turned out just now that what was no echo by `is_echo` was one.
    """

    def __init__(self, numpy: Any, new_canceller: "Callable[[], EchoCanceller]", resampler: "Resampler", rate_hz: int) -> None:
        self.has_echo = self.was_mistaken = False
        self._numpy = numpy
        self._new_canceller = new_canceller
        self._canceller: EchoCanceller | None = None  # while it may be needed: it takes 0.4 MB
        self._resampler = resampler
        self._rate_hz = rate_hz
        self._block_bytes = rate_hz // _BLOCKS_PER_SECOND * SAMPLE_BYTES
        self._remainder = b""  # came, and is not a whole block
        self._input_bytes = 0
        self._pending_playback = bytearray()  # what the client plays, from where the sound was given on
        self._echo_ends_at = 0
        self._settles_at = 0
        self._recheck: tuple[int, int] | None = None  # where what may be an echo began, and when to look again
        self._next_check_at = 0
        self._is_microphone_quiet = False  # while this answer is played
        self._loud_blocks: list[int] = []  # of the answer, each where it was played
        self._audible_blocks = 0
        most = size_bytes(_HISTORY_MS, rate_hz)
        self._input_history, self._residual_history, self._playback_history = _AudioHistory(most), _AudioHistory(most), _AudioHistory(most)

    def play(self, pcm: bytes, at_ms: float) -> None:
        """The client will play this: as soon as it has played all else, and no sooner than then."""
        if self._input_bytes >= self._echo_ends_at:
            self._is_microphone_quiet, self._audible_blocks = False, 0
            self._loud_blocks.clear()
            self._canceller = self._canceller or self._new_canceller()
            for past in (self._input_history, self._residual_history, self._playback_history):
                past.clear()
        missing = size_bytes(at_ms, self._rate_hz) - self._input_bytes - len(self._pending_playback)
        self._pending_playback += bytes(max(0, missing))
        self._pending_playback += self._resampler.process(pcm)
        self._echo_ends_at = self._input_bytes + len(self._pending_playback) + size_bytes(ECHO_TAIL_MS, self._rate_hz)

    def stop(self, at_ms: float) -> None:
        """What the client has not played then, it won't."""
        del self._pending_playback[max(0, size_bytes(at_ms, self._rate_hz) - self._input_bytes) :]
        self._resampler.flush()

    def process(self, pcm: bytes) -> bytes:
        """
        The client's sound without the echo, where there is one: in the end as much as came, up to 10 ms of it later.

        Args:
            pcm: s16le, whole samples, any number of them.
        """
        self.was_mistaken = False
        sound = self._remainder + pcm if self._remainder else pcm
        if self._input_bytes >= self._echo_ends_at:
            self._remainder = b""
            self._input_bytes += len(sound)
            self._canceller = self._canceller if self.has_echo else None
            return sound
        size = len(sound) // self._block_bytes * self._block_bytes
        sound, self._remainder = sound[:size], sound[size:]
        plays = bytes(self._pending_playback[:size]).ljust(size, b"\0")
        del self._pending_playback[:size]
        self._input_bytes += size
        canceller = self._canceller
        return self._process_blocks(canceller, sound, plays) if canceller is not None and size else sound

    def _process_blocks(self, canceller: "EchoCanceller", microphone_pcm: bytes, playback_pcm: bytes) -> bytes:
        near, far = self._samples(microphone_pcm), self._samples(playback_pcm)
        left = bytes(canceller.process(near, far).astype("<i2").data)
        for past, pcm in ((self._input_history, microphone_pcm), (self._residual_history, left), (self._playback_history, playback_pcm)):
            past.append(pcm)
        self._check_microphone(near, far)
        self._recheck_echo()
        return left if self.has_echo else microphone_pcm

    def _samples(self, pcm: bytes) -> Any:
        return self._numpy.frombuffer(pcm, "<i2").astype(self._numpy.int16, copy=False)

    def _check_microphone(self, near: Any, far: Any) -> None:
        """Tell whether the microphone is quiet while something loud is played."""
        self._audible_blocks += int((self._levels(near) > _energy(QUIET_DBFS)).sum())
        first = self._input_bytes - len(far) * SAMPLE_BYTES
        self._loud_blocks += (first + self._numpy.flatnonzero(self._levels(far) > _energy(LOUD_DBFS)) * self._block_bytes).tolist()
        late_bytes = size_bytes(MAX_ECHO_DELAY_MS, self._rate_hz)
        sure = NO_ECHO_AFTER_MS * _BLOCKS_PER_SECOND // 1000
        if (
            self._audible_blocks <= _MAX_STRAY_BLOCKS
            and len(self._loud_blocks) >= sure
            and self._loud_blocks[sure - 1] < self._input_bytes - late_bytes
        ):
            self._rule_out_echo()

    def _rule_out_echo(self) -> None:
        self._is_microphone_quiet, self.has_echo, self._canceller, self._recheck = True, False, None, None

    def _levels(self, samples: Any) -> Any:
        blocks = samples.astype("f4").reshape(-1, self._block_bytes // SAMPLE_BYTES)
        return (blocks * blocks).mean(axis=1)

    def is_echo(self, at_ms: float) -> bool:
        """
        Whether it was the echo that was taken for somebody who speaks.

        Args:
            at_ms: from where on; it has just been found.
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
            left, likeness = self._compare(self._input_bytes - size_bytes(ANALYSIS_WINDOW_MS, self._rate_hz))
            if left < MAX_ECHO_RESIDUAL and likeness < NO_ECHO_SIMILARITY:
                self._rule_out_echo()

    def _compare(self, at: int) -> tuple[float, float]:
        """How much the canceller left of what came from there on, and how like what was played that is; 1 and 0 where it is too faint."""
        since = (self._input_bytes - at) // self._block_bytes * self._block_bytes
        until = max(0, since - size_bytes(ANALYSIS_WINDOW_MS, self._rate_hz))
        came, left = (self._samples(past.between(since, until)) for past in (self._input_history, self._residual_history))
        before, after = self._levels(came), self._levels(left)
        if before.max(initial=0.0) < _energy(QUIET_DBFS):
            return 1.0, 0.0
        is_loud = before > _MIN_RELATIVE_ENERGY * before.max()
        rest = self._numpy.sqrt(after[is_loud].sum() / before[is_loud].sum())
        late_bytes = size_bytes(MAX_ECHO_DELAY_MS, self._rate_hz)
        played = self._samples(
            self._playback_history.between(since + late_bytes, until).rjust(len(came) * SAMPLE_BYTES + late_bytes, b"\0")
        )
        return float(rest), self._similarity(came, played) * (int(is_loud.sum()) / _BLOCKS_PER_SECOND) ** 0.5

    def _similarity(self, microphone: Any, playback: Any) -> float:
        """How like something of what was played it is, 0 to 1."""
        numpy = self._numpy
        # Differences of neighbours: else low voices would all be alike.
        one, other = (numpy.diff(samples.astype("f8"), prepend=samples[:1]) for samples in (microphone, playback))
        lags = len(other) - len(one) + 1
        size = 1 << (len(one) + len(other)).bit_length()
        products = numpy.fft.irfft(numpy.fft.rfft(other, size) * numpy.conj(numpy.fft.rfft(one, size)), size)[:lags]
        sums = numpy.concatenate(([0.0], numpy.cumsum(other * other)))
        energies = (sums[len(one) :] - sums[: -len(one)])[:lags] * float(one @ one)
        energies = numpy.maximum(energies, 0.01 * energies.max(initial=1.0))
        likeness = abs(products) / numpy.sqrt(energies)
        best = int(likeness.argmax())
        apart = self._rate_hz * MIN_PEAK_DISTANCE_MS // 1000
        elsewhere = max(likeness[: max(0, best - apart)].max(initial=0.0), likeness[best + apart :].max(initial=0.0))
        return float(likeness[best]) if elsewhere < MAX_SECOND_PEAK * likeness[best] else 0.0


def _energy(dbfs: float) -> float:
    return float(_FULL_SCALE**2 * 10 ** (dbfs / 10))
