"""A text read aloud: made speakable, said, and given back as it was written, with its sound."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from antiphon.speech.base import AudioChunk, Synthesizer
from antiphon.speech.text.speakable import TextNormalizer


async def synthesize_clause(
    synthesizer: Synthesizer, clause: str, normalizer: TextNormalizer, voice: str | None = None, speed: float = 1.0
) -> AsyncIterator[AudioChunk]:
    """
    A piece of an answer, as `clauses` cuts it, spoken; closing the iterator stops the work.

    Args:
        speakable: the answer's own, which knows what came before.

    Returns:
        Pieces whose texts together are what was written, markup and all; one of what isn't said has no sound.

    Raises:
        ApiError: as the mouth's.
    """
    saying = normalizer.normalize(clause)
    if saying.spoken_text:
        heard = cast(AsyncGenerator[AudioChunk, None], synthesizer.synthesize(saying.spoken_text, voice, speed))
        async with aclosing(heard):
            async for said in heard:
                yield AudioChunk(said.pcm, saying.consume(said.text))
    if rest := saying.drain():
        yield AudioChunk(b"", rest)
