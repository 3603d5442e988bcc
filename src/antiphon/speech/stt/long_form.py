"""
Transcribes recordings of any length: cut at the quietest places into segments that a transcriber handles well, one
after the other.

So only one segment is in memory, and the first text is ready long before the end.
"""

from collections.abc import AsyncIterator

from antiphon.audio import SAMPLE_BYTES, duration_ms
from antiphon.engine_api.options import Transcription
from antiphon.speech.base import INPUT_RATE_HZ, Transcriber, TranscriptChunk
from antiphon.speech.stt.segmenting import MAX_SEGMENT_S, cut_at_silence, float_samples

MAX_TIMED_SEGMENT_S = 28.0
"""Of a segment for a transcriber with times: models like Whisper process 30 s at a time, however short the audio."""


async def transcribe_long(transcriber: Transcriber, audio: AsyncIterator[bytes], options: Transcription) -> AsyncIterator[TranscriptChunk]:
    """
    The transcript of a recording, chunk by chunk; closing the iterator stops the work.

    Args:
        audio: s16le at `INPUT_RATE_HZ`, in pieces of any length.

    Raises:
        ApiError: from the transcriber, or from `audio`.
    """
    max_s = MAX_TIMED_SEGMENT_S if transcriber.has_times else MAX_SEGMENT_S
    max_bytes = int(max_s * INPUT_RATE_HZ) * SAMPLE_BYTES
    buffer, start_s = b"", 0.0
    async for pcm in audio:
        buffer += pcm
        while len(buffer) > max_bytes:
            # One sample more than the maximum, so that `cut_at_silence` cuts.
            size_bytes = SAMPLE_BYTES * cut_at_silence(float_samples(buffer[: max_bytes + SAMPLE_BYTES]), max_s)
            segment, buffer = buffer[:size_bytes], buffer[size_bytes:]
            chunk = await _transcribe_chunk(transcriber, segment, options, start_s)
            start_s = chunk.end_s
            yield chunk
    if buffer:
        yield await _transcribe_chunk(transcriber, buffer, options, start_s)


async def _transcribe_chunk(transcriber: Transcriber, pcm: bytes, options: Transcription, start_s: float) -> TranscriptChunk:
    transcript = await transcriber.transcribe(pcm, options)
    return TranscriptChunk(transcript, start_s, start_s + duration_ms(len(pcm), INPUT_RATE_HZ) / 1000)
