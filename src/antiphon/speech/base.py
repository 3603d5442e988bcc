"""
The contracts of the speech components: a `Transcriber` turns speech into text, a `Synthesizer` text into speech.

All sessions share one of each. Slow work is done in threads or processes; nothing blocks the event loop.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError, quote_list, shorten, unsupported_parameter, unsupported_value

INPUT_RATE_HZ = 16_000
"""The rate of all audio that is transcribed, or searched for speech."""


class TimedText(Struct, frozen=True):
    """A segment or a word of a transcript; times in seconds from the beginning of the audio."""

    text: str
    start_s: float
    end_s: float


class Transcript(Struct, frozen=True, kw_only=True):
    """
    What was said.

    Attributes:
        text: all of it; empty if nothing intelligible was said.
        segments: empty if the model knows no times.
        words: empty unless `Transcription.word_times` was requested.
        language: its code, if known.
        tokens: how many tokens the model produced.
    """

    text: str
    segments: tuple[TimedText, ...] = ()
    words: tuple[TimedText, ...] = ()
    language: str | None = None
    tokens: int = 0


class TranscriptChunk(Struct, frozen=True):
    """
    The transcript of a segment of a recording.

    Attributes:
        start_s: where it begins in the recording.
        end_s: where it ends in the recording.
    """

    transcript: Transcript
    start_s: float
    end_s: float

    @property
    def segments(self) -> Iterator[TimedText]:
        """The segments with their times in the recording; one for all the text if the transcriber has no times."""
        if self.transcript.segments:
            yield from (self._shift(segment) for segment in self.transcript.segments)
        elif self.transcript.text:
            yield TimedText(self.transcript.text, self.start_s, self.end_s)

    @property
    def words(self) -> Iterator[TimedText]:
        """The words with their times in the recording, if requested."""
        yield from (self._shift(word) for word in self.transcript.words)

    def _shift(self, segment: TimedText) -> TimedText:
        return TimedText(segment.text, self.start_s + segment.start_s, self.start_s + segment.end_s)


def join_text(chunks: Iterable[TranscriptChunk]) -> str:
    """The text of all chunks."""
    return " ".join(chunk.transcript.text for chunk in chunks if chunk.transcript.text)


class Transcriber(Protocol):
    """
    Speech to text.

    Attributes:
        languages: the codes of those it understands; empty for any.
        takes_prompt: whether it uses a prompt and keywords.
        has_times: whether its transcripts have segments.
    """

    languages: tuple[str, ...]
    takes_prompt: bool
    has_times: bool

    @property
    def is_free(self) -> bool:
        """Whether audio would be transcribed at once, without waiting for others."""

    async def start(self) -> None:
        """
        Load or connect; once.

        Raises:
            ApiError: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Release everything; idempotent."""

    def check_options(self, options: Transcription) -> None:
        """
        Check whether it supports these options.

        Raises:
            ClientError: it doesn't; names the field.
        """

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        """
        The transcript of a piece of audio; cancelling stops the work.

        Args:
            pcm: s16le mono at `INPUT_RATE_HZ`, all of it.

        Raises:
            ApiError: it could not be transcribed.
        """


class AudioChunk(Struct, frozen=True):
    """
    A piece of synthesized speech.

    Attributes:
        pcm: s16le mono at the synthesizer's rate.
        text: the words that begin in it, with the white space after them; all chunks together give the whole text.
    """

    pcm: bytes
    text: str


class SentenceContext(Struct, frozen=True):
    """
    What stands around a part of a sentence, so that its melody fits.

    Attributes:
        before: the words spoken before it; a few are enough.
        continues: whether the sentence goes on after it.
    """

    before: str = ""
    continues: bool = False


WHOLE_SENTENCE = SentenceContext()


class Synthesizer(Protocol):
    """
    Text to speech.

    Attributes:
        voices: the names of its voices, the default first.
        rate_hz: of its audio.
        joins_parts: whether the parts of a sentence, spoken one by one in their context, sound like the sentence.
    """

    voices: tuple[str, ...]
    rate_hz: int
    joins_parts: bool

    async def start(self) -> None:
        """
        Load or connect; once.

        Raises:
            ApiError: what it needs is missing, with how to get it.
        """

    async def stop(self) -> None:
        """Release everything; idempotent."""

    def synthesize(
        self, text: str, voice: str | None = None, speed: float = 1.0, context: SentenceContext = WHOLE_SENTENCE
    ) -> AsyncGenerator[AudioChunk]:
        """
        Speak a clause or a sentence, in chunks of at most about a word if the times of words are known; closing the
        iterator stops the work.

        Args:
            context: a voice that doesn't join parts ignores it.

        Raises:
            ApiError: it failed; a `ClientError` for an unknown voice names those it has.
        """


def check_options(options: Transcription, model: str, *, languages: Collection[str] = (), has_word_times: bool = False) -> None:
    """
    Refuse options without which the transcript would lack something. `prompt` and `keywords` are hints.

    Args:
        model: its name, for the message.
        languages: the codes of those it understands; empty for any.

    Raises:
        ClientError: an option is not supported; names the field.
    """
    for language in options.languages:
        if languages and primary_subtag(language) not in languages:
            raise unsupported_value("language", language, model, languages)
    violations = {
        "logprobs": options.logprobs,
        "timestamp_granularities": options.word_times and not has_word_times,
    }
    for param, is_unsupported in violations.items():
        if is_unsupported:
            raise unsupported_parameter(param, model)


def primary_subtag(language: str) -> str:
    """The code of a language without its region: `en` of `en-GB`."""
    return language.replace("_", "-").partition("-")[0].lower()


def transcription_failed(error: Exception) -> ServerError:
    """The client's error for one of native code, whose words are for the operator's log alone."""
    structlog.get_logger().error("transcription_failed", message=shorten(error, 300))
    return ServerError("The audio could not be transcribed.", code="transcription_failed")


def check_files(folder: Path, model: str, files: Collection[str]) -> None:
    """
    Check that the files of a model are installed.

    Raises:
        ServerError: a file is missing; the message says how to get it.
    """
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise ServerError(
            f"The model '{model}' is not in {folder}: {quote_list(missing)} can't be found. Get it with `antiphon models pull {model}`.",
            code="model_not_found",
        )
