"""A mouth whose voices speak in a process of their own."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from antiphon.audio import SAMPLE_BYTES
from antiphon.errors import invalid_value
from antiphon.speech.base import Piece
from antiphon.speech.text.clauses import sentences
from antiphon.speech.tts.link import Begin, Said
from antiphon.speech.tts.process import Patience, VoiceProcess


def chosen(voices: Sequence[str], wanted: str | None, aliases: Mapping[str, str]) -> str:
    """
    The voice of that name, or of that alias; the first of them where none is wanted.

    Raises:
        ClientMistake: there is none of that name.
    """
    if wanted is None:
        return voices[0]
    name = aliases.get(wanted, wanted)
    if name not in voices:
        raise invalid_value("voice", wanted, [*voices, *aliases])
    return name


class ProcessMouth:
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
        patience: Patience | None = None,
        notice: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.voices = tuple(voices)
        self.rate_hz = rate_hz
        self.process = VoiceProcess(program, Begin(tuple(map(str, paths)), rate_hz), patience, notice)
        self._aliases = aliases or {}

    async def start(self) -> None:
        """
        Start the process; returns when it can speak.

        Raises:
            errors.Fault: it can't.
        """
        await self.process.start()

    async def stop(self) -> None:
        """End it; idempotent."""
        await self.process.stop()

    async def say(self, text: str, voice: str | None = None, speed: float = 1.0) -> AsyncIterator[Piece]:
        """
        Speak, in pieces of a word; closing the iterator stops the work.

        Raises:
            errors.Fault: it could not be done; a voice that it doesn't have is a `ClientMistake` that names those it has.
        """
        name = chosen(self.voices, voice, self._aliases)
        async with aclosing(self.process.speak(sentences(text), name, speed)) as all_said:
            async for said in all_said:
                for piece in _pieces(said):
                    yield piece


def _pieces(said: Said) -> Iterator[Piece]:
    at = 0
    for word in said.words:
        end = at + word.samples * SAMPLE_BYTES
        yield Piece(said.pcm[at:end], word.text)
        at = end
