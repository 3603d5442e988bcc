"""
The contracts of the parts of speech: an `Transcriber` writes down what is said, a `Synthesizer` says what is written.

Parts are shared by all sessions. What they take long for is done in threads or processes of their own; nothing here blocks the event loop.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from antiphon.engine_api.options import Transcription

INPUT_RATE_HZ = 16_000
"""The rate of all sound that parts are given to hear."""


class TimedText(Struct, frozen=True):
    """A stretch of what was said; seconds from the beginning of the sound."""

    text: str
    start_s: float
    end_s: float


class Transcript(Struct, frozen=True, kw_only=True):
    """
    What was said.

    Attributes:
        text: all of it; empty where nothing was said that makes sense.
        segments: its stretches, where the model knows their times; `words` likewise, where their times were wished for.
        language: the code of the language, where that is known.
        tokens: how many the model made.
    """

    text: str
    segments: tuple[TimedText, ...] = ()
    words: tuple[TimedText, ...] = ()
    language: str | None = None
    tokens: int = 0


class Transcriber(Protocol):
    """
    Speech to text.

    Attributes:
        languages: the codes of those that it understands; empty for any.
        takes_prompt: whether a prompt and keywords make a difference to it.
        has_times: whether its transcripts have segments.
    """

    languages: tuple[str, ...]
    takes_prompt: bool
    has_times: bool

    async def start(self) -> None:
        """
        Load or connect; once.

        Raises:
            ApiError: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Let go of everything; idempotent."""

    def check_options(self, options: Transcription) -> None:
        """
        Ask whether it can do what is wished.

        Raises:
            ClientError: it can't, naming the field.
        """

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        """
        What is said in a stretch of sound; cancelling it stops the work.

        Args:
            pcm: s16le mono at `INPUT_RATE_HZ`, whole.

        Raises:
            ApiError: it could not be done.
        """


class AudioChunk(Struct, frozen=True):
    """
    A piece of speech.

    Attributes:
        pcm: s16le mono at the mouth's rate.
        text: the words that are heard in it, with the white space that follows them; all pieces together give the whole text.
    """

    pcm: bytes
    text: str


class Synthesizer(Protocol):
    """
    Text to speech.

    Attributes:
        voices: the names of those it has; the first is its own choice.
        rate_hz: of the sound that it makes.
    """

    voices: tuple[str, ...]
    rate_hz: int

    async def start(self) -> None:
        """
        Load or connect; once.

        Raises:
            ApiError: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Let go of everything; idempotent."""

    def synthesize(self, text: str, voice: str | None = None, speed: float = 1.0) -> AsyncIterator[AudioChunk]:
        """
        Speak a clause or a sentence, in pieces of about a word where the words' places are known; closing the iterator stops the work.

        Raises:
            ApiError: it could not be done; a voice that it doesn't have is a `ClientError` that names those it has.
        """
