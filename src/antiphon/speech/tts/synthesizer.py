"""A mouth whose voices speak in a process of their own."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from antiphon.audio import SAMPLE_BYTES
from antiphon.errors import invalid_value
from antiphon.speech.base import AudioChunk
from antiphon.speech.text.clauses import split_sentences
from antiphon.speech.tts.link import StartVoice, SynthesisDone
from antiphon.speech.tts.process import VoiceLimits, VoiceProcess


def resolve_voice(voices: Sequence[str], voice: str | None, aliases: Mapping[str, str]) -> str:
    """
    The voice of that name, or of that alias; the first of them where none is wanted.

    Raises:
        ClientError: there is none of that name.
    """
    if voice is None:
        return voices[0]
    name = aliases.get(voice, voice)
    if name not in voices:
        raise invalid_value("voice", voice, [*voices, *aliases])
    return name


class ProcessSynthesizer:
    """
    The mouth.

    Args:
        program: of its process: what Python runs.
        paths: what that is to speak with.
        aliases: other names for its voices.
        notice: takes lines for the operator.

    Attributes:
        process: for those who want to know how it is.
    """

    def __init__(
        self,
        program: Sequence[str],
        paths: Sequence[Path],
        *,
        voices: Sequence[str],
        rate_hz: int,
        aliases: Mapping[str, str] | None = None,
        limits: VoiceLimits | None = None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.voices = tuple(voices)
        self.rate_hz = rate_hz
        self.process = VoiceProcess(program, StartVoice(tuple(map(str, paths)), rate_hz), limits, notice)
        self._aliases = aliases or {}

    async def start(self) -> None:
        """
        Start the process; returns when it can speak.

        Raises:
            ApiError: it can't.
        """
        await self.process.start()

    async def stop(self) -> None:
        """End it; idempotent."""
        await self.process.stop()

    async def synthesize(self, text: str, voice: str | None = None, speed: float = 1.0) -> AsyncIterator[AudioChunk]:
        """
        Speak, in pieces of a word; closing the iterator stops the work.

        Raises:
            ApiError: it could not be done; a voice that it doesn't have is a `ClientError` that names those it has.
        """
        name = resolve_voice(self.voices, voice, self._aliases)
        async with aclosing(self.process.synthesize(split_sentences(text), name, speed)) as all_said:
            async for said in all_said:
                for piece in _audio_chunks(said):
                    yield piece


def _audio_chunks(result: SynthesisDone) -> Iterator[AudioChunk]:
    at = 0
    for word in result.words:
        end = at + word.samples * SAMPLE_BYTES
        yield AudioChunk(result.pcm[at:end], word.text)
        at = end
