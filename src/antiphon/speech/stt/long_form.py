"""
A recording of any length, written down: cut where it is quietest into stretches that an ear hears well, one after the other.

So no more of it is held than one stretch, and its first words are there long before its last.
"""

from collections.abc import AsyncIterator, Iterator

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, duration_ms
from antiphon.engine_api.options import Transcription
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcriber, Transcript
from antiphon.speech.stt.segmenting import MAX_SEGMENT_S, cut_at_silence, float_samples

MAX_TIMED_SEGMENT_S = 28.0
"""Of a stretch for an ear that tells times: Whisper and its like hear half a minute, whatever part of it is there."""


class TranscriptChunk(Struct, frozen=True):
    """
    A stretch of a recording, written down.

    Attributes:
        start_s: where it begins in the recording; likewise `end_s`.
    """

    transcript: Transcript
    start_s: float
    end_s: float

    @property
    def segments(self) -> Iterator[TimedText]:
        """What was said, with its times in the recording; one where the ear tells no times."""
        if self.transcript.segments:
            yield from (self._shift(segment) for segment in self.transcript.segments)
        elif self.transcript.text:
            yield TimedText(self.transcript.text, self.start_s, self.end_s)

    @property
    def words(self) -> Iterator[TimedText]:
        """Its words, where their times were wished for."""
        yield from (self._shift(word) for word in self.transcript.words)

    def _shift(self, segment: TimedText) -> TimedText:
        return TimedText(segment.text, self.start_s + segment.start_s, self.start_s + segment.end_s)


async def transcribe_long(transcriber: Transcriber, audio: AsyncIterator[bytes], options: Transcription) -> AsyncIterator[TranscriptChunk]:
    """
    What is said in a recording, stretch by stretch; closing the iterator stops the work.

    Args:
        sound: s16le at `INPUT_RATE_HZ`, in pieces of any length.

    Raises:
        ApiError: as the ear's, and the sound's.
    """
    longest_s = MAX_TIMED_SEGMENT_S if transcriber.has_times else MAX_SEGMENT_S
    longest_bytes = int(longest_s * INPUT_RATE_HZ) * SAMPLE_BYTES
    held, start_s = b"", 0.0
    async for pcm in audio:
        held += pcm
        while len(held) > longest_bytes:
            # One sample too many, so that it is cut.
            size_bytes = SAMPLE_BYTES * cut_at_silence(float_samples(held[: longest_bytes + SAMPLE_BYTES]), longest_s)
            stretch, held = held[:size_bytes], held[size_bytes:]
            passage = await _transcribe_chunk(transcriber, stretch, options, start_s)
            start_s = passage.end_s
            yield passage
    if held:
        yield await _transcribe_chunk(transcriber, held, options, start_s)


async def _transcribe_chunk(transcriber: Transcriber, pcm: bytes, options: Transcription, start_s: float) -> TranscriptChunk:
    transcript = await transcriber.transcribe(pcm, options)
    return TranscriptChunk(transcript, start_s, start_s + duration_ms(len(pcm), INPUT_RATE_HZ) / 1000)


def join_text(chunks: list[TranscriptChunk]) -> str:
    """All that was said."""
    return " ".join(passage.transcript.text for passage in chunks if passage.transcript.text)
