"""
A recording of any length, written down: cut where it is quietest into stretches that an ear hears well, one after the other.

So no more of it is held than one stretch, and its first words are there long before its last.
"""

from collections.abc import AsyncIterator, Iterator

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, ms_of
from antiphon.engine_api.options import Transcription
from antiphon.speech.base import HEARING_RATE_HZ, Ear, Segment, Transcript
from antiphon.speech.stt.segmenting import LONGEST_S, first_stretch, samples_of

LONGEST_TIMED_S = 28.0
"""Of a stretch for an ear that tells times: Whisper and its like hear half a minute, whatever part of it is there."""


class Passage(Struct, frozen=True):
    """
    A stretch of a recording, written down.

    Attributes:
        start_s: where it begins in the recording; likewise `end_s`.
    """

    transcript: Transcript
    start_s: float
    end_s: float

    @property
    def segments(self) -> Iterator[Segment]:
        """What was said, with its times in the recording; one where the ear tells no times."""
        if self.transcript.segments:
            yield from (self._placed(segment) for segment in self.transcript.segments)
        elif self.transcript.text:
            yield Segment(self.transcript.text, self.start_s, self.end_s)

    @property
    def words(self) -> Iterator[Segment]:
        """Its words, where their times were wished for."""
        yield from (self._placed(word) for word in self.transcript.words)

    def _placed(self, segment: Segment) -> Segment:
        return Segment(segment.text, self.start_s + segment.start_s, self.start_s + segment.end_s)


async def dictated(ear: Ear, sound: AsyncIterator[bytes], wish: Transcription) -> AsyncIterator[Passage]:
    """
    What is said in a recording, stretch by stretch; closing the iterator stops the work.

    Args:
        sound: s16le at `HEARING_RATE_HZ`, in pieces of any length.

    Raises:
        errors.Fault: as the ear's, and the sound's.
    """
    longest_s = LONGEST_TIMED_S if ear.has_times else LONGEST_S
    longest_bytes = int(longest_s * HEARING_RATE_HZ) * SAMPLE_BYTES
    held, start_s = b"", 0.0
    async for pcm in sound:
        held += pcm
        while len(held) > longest_bytes:
            # One sample too many, so that it is cut.
            size_bytes = SAMPLE_BYTES * first_stretch(samples_of(held[: longest_bytes + SAMPLE_BYTES]), longest_s)
            stretch, held = held[:size_bytes], held[size_bytes:]
            passage = await _passage(ear, stretch, wish, start_s)
            start_s = passage.end_s
            yield passage
    if held:
        yield await _passage(ear, held, wish, start_s)


async def _passage(ear: Ear, pcm: bytes, wish: Transcription, start_s: float) -> Passage:
    transcript = await ear.transcribe(pcm, wish)
    return Passage(transcript, start_s, start_s + ms_of(len(pcm), HEARING_RATE_HZ) / 1000)


def joined(passages: list[Passage]) -> str:
    """All that was said."""
    return " ".join(passage.transcript.text for passage in passages if passage.transcript.text)
