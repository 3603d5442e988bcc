"""
A client's audio: mono, the most recent part of it, with noise reduction if configured.

It is kept as it came. What is transcribed is resampled to 16 kHz when it is asked for, and silence never is; who
searches it for speech resamples by itself, many sessions at once. Only audio whose noise is reduced, or whose settings
changed on the way, is resampled as it comes.

Times are milliseconds of all the audio that arrived.
"""

from antiphon.audio import SAMPLE_BYTES, ChunkBuffer, duration_ms
from antiphon.engine_api.options import NoiseReduction
from antiphon.speech.base import INPUT_RATE_HZ
from antiphon.speech.dsp.noise import NoiseReducer
from antiphon.speech.dsp.polyphase import RATES_HZ, TRANSCRIPTION, polyphase_filter, resample_part
from antiphon.speech.dsp.resample import Resampler

_SLACK_BYTES = 128 << 10  # kept longer than needed: finding out how much that is costs more than keeping it
_CONTEXT_MS = 8  # of what was cleared, kept for the filter that resamples what follows

_MAX_BEHIND = 10 * INPUT_RATE_HZ
"""How many samples wait to be resampled: with many more, a transcript of all would hold the event loop."""


class ConversationAudio:
    """
    The input audio of one conversation.

    Attributes:
        rate_hz: the rate at which it is kept: the client's, or `INPUT_RATE_HZ`.
    """

    def __init__(self) -> None:
        self.rate_hz = 24_000
        self._resampler: Resampler | None = None  # where audio is resampled as it comes
        self._reduction: NoiseReduction | None = None
        self._reducer: NoiseReducer | None = None
        self._buffer = ChunkBuffer()
        self._buffer_start = 0  # its first sample, in whole milliseconds of samples
        # A part of the buffer at `INPUT_RATE_HZ`, and where that part begins, in samples of that rate.
        self._output = bytearray()
        self._output_start = 0

    @property
    def is_long(self) -> bool:
        """Whether so much is kept that something can be dropped."""
        return self._buffer.size_bytes > _SLACK_BYTES

    @property
    def end_ms(self) -> float:
        """Where the audio so far ends."""
        return self.start_ms + duration_ms(self._buffer.size_bytes, self.rate_hz)

    @property
    def start_ms(self) -> float:
        """Where the part that is kept begins."""
        return self._buffer_start * 1000 / self.rate_hz

    def configure(self, rate_hz: int, reduction: NoiseReduction | None) -> bytes:
        """
        Set the rate and noise reduction of what follows.

        Returns:
            What was left in the resampler, at `INPUT_RATE_HZ`.
        """
        from_hz = self.rate_hz if self._resampler is None else self._resampler.from_hz
        if (rate_hz, reduction) == (from_hz, self._reduction):
            return b""
        if self._resampler is None and reduction is None and not self.end_ms and rate_hz in (*RATES_HZ, INPUT_RATE_HZ):
            self.rate_hz = rate_hz
            return b""
        rest = b""
        if self._resampler is None:
            self._resample_buffer()
        elif rate_hz != from_hz:
            rest = self._append(self._resampler.flush())
        if self._resampler is None or rate_hz != from_hz:
            self._resampler = Resampler(rate_hz, INPUT_RATE_HZ, live=True)
        if reduction != self._reduction:
            self._reduction = reduction
            self._reducer = NoiseReducer(reduction) if reduction else None
        return rest

    def _resample_buffer(self) -> None:
        first, last = self._kept_samples()
        pcm, self._buffer = self._resample(first, last), ChunkBuffer()
        self._buffer.append(pcm)
        self._buffer_start, self.rate_hz = first, INPUT_RATE_HZ
        self._output.clear()

    def process(self, pcm: bytes) -> bytes:
        """Append the client's audio; returns what is new and ready, at `rate_hz`."""
        if self._resampler is not None:
            return self._append(self._resampler.process(pcm))
        self._buffer.append(pcm)
        if self._buffer.size_bytes > _MAX_BEHIND:  # in bytes: less of it than in samples
            self._catch_up()
        return pcm

    def _append(self, pcm: bytes) -> bytes:
        pcm = self._reducer.process(pcm) if self._reducer is not None else pcm
        self._buffer.append(pcm)
        return pcm

    def between(self, start_ms: float, end_ms: float) -> bytes:
        """The audio between two times, as far as it is kept, at `INPUT_RATE_HZ`."""
        bounds = self._kept_samples()
        first, last = (max(bounds[0], min(bounds[1], int(at_ms * INPUT_RATE_HZ / 1000))) for at_ms in (start_ms, end_ms))
        return self._resample(first, last)

    def _kept_samples(self) -> tuple[int, int]:
        """The first sample that is kept, and the end, counted at `INPUT_RATE_HZ`."""
        end = self._buffer_start + self._buffer.size_bytes // SAMPLE_BYTES
        return self._buffer_start * INPUT_RATE_HZ // self.rate_hz, end * INPUT_RATE_HZ // self.rate_hz

    def _resample(self, first: int, last: int) -> bytes:
        """The audio between two samples, counted at `INPUT_RATE_HZ`, of which none is resampled twice if they follow each other."""
        buffer_start, _end = self._kept_samples()
        if self.rate_hz == INPUT_RATE_HZ:
            return self._buffer.read((first - buffer_start) * SAMPLE_BYTES, (last - buffer_start) * SAMPLE_BYTES)
        output_end = self._output_start + len(self._output) // SAMPLE_BYTES
        if not self._output_start <= first <= output_end:
            self._output.clear()
            self._output_start = output_end = first
        if last > output_end:
            self._output += self._resample_kept(output_end - buffer_start, last - buffer_start)
        start = self._output_start
        return bytes(self._output[(first - start) * SAMPLE_BYTES : (last - start) * SAMPLE_BYTES])

    def _resample_kept(self, first: int, last: int) -> bytes:
        """As `resample_part` of all that is kept, of which only the blocks around these samples are read."""
        filter = polyphase_filter(self.rate_hz, TRANSCRIPTION)  # a block is as long as the context on each side
        before, after = max(0, first // filter.output_block - 1), -(-last // filter.output_block) + 1
        block_bytes = filter.block * SAMPLE_BYTES
        lead = before * filter.output_block
        return resample_part(self._buffer.read(before * block_bytes, after * block_bytes), self.rate_hz, first - lead, last - lead)

    def _catch_up(self) -> None:
        first, last = self._kept_samples()
        output_end = max(first, self._output_start + len(self._output) // SAMPLE_BYTES)
        if self.rate_hz != INPUT_RATE_HZ and last - output_end > _MAX_BEHIND:
            self._resample(output_end, last - _MAX_BEHIND // 2)

    def discard_before(self, until_ms: float) -> None:
        """Drop what came before a time."""
        if self.is_long:
            self._discard(until_ms, _SLACK_BYTES)

    def clear(self) -> None:
        """Drop all audio, but for a little at the end; the clock goes on."""
        self._discard(self.end_ms - _CONTEXT_MS)

    def _discard(self, until_ms: float, slack_bytes: int = 0) -> None:
        count = int(max(0.0, until_ms - self.start_ms)) * self.rate_hz // 1000
        if count * SAMPLE_BYTES <= slack_bytes:
            return
        self._buffer.drop(count * SAMPLE_BYTES)
        self._buffer_start += count
        first, _end = self._kept_samples()
        surplus = max(0, first - self._output_start)
        del self._output[: surplus * SAMPLE_BYTES]
        self._output_start += surplus
