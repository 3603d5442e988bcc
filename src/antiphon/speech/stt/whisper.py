"""
Whisper, a model of speech in 99 languages, run by CTranslate2 through faster-whisper, the extra `whisper`.

It hears half a minute at a time, whatever the length of the sound, so that a word costs as much as a sentence. It knows how likely nobody
speaks, and where each word is.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError, quote_list, shorten
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcript
from antiphon.speech.stt.hallucination import Evidence, remove_hallucinations
from antiphon.speech.stt.options import check_options, primary_subtag
from antiphon.speech.stt.segmenting import FloatSamples, collect_evidence, float_samples
from antiphon.speech.threads import BoundedThreadPool

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

FILES = ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")

_MIN_AUDIO_S = 0.1
_BEAM_SIZE = 5
"""As the model is used by its makers; most of the time goes into the encoder, so that it costs next to nothing."""

_TEMPERATURES = (0.0, 0.4)
"""What is too repetitive or too unlikely at the first is tried again at the second; a third try helps nobody who waits."""


class WhisperTranscriber:
    """
    The ear.

    Args:
        folder: of the model's files, `FILES`.
        name: of the model, for people.
        cores: that work on one sound.
        waiting: how many more sounds may wait; one is worked on at a time.
    """

    takes_prompt = True
    has_times = True

    def __init__(self, folder: Path, *, name: str = "whisper-base", cores: int = 2, max_pending: int = 32) -> None:
        self.languages: tuple[str, ...] = ()
        self._folder = folder
        self._name = name
        self._cores = cores
        self._threads = BoundedThreadPool("antiphon-whisper", 1, max_pending)
        self._model: WhisperModel | None = None

    async def start(self) -> None:
        """
        Load the model; once. `languages` are known then.

        Raises:
            ServerError: the extra or a file is missing, or a file is not what it should be.
        """
        model = await self._threads.run(self._load)
        self._model = model
        # Those that the library knows, as far as this model does: a later one learned Cantonese.
        known = model.hf_tokenizer.token_to_id
        self.languages = tuple(each for each in model.supported_languages if known(f"<|{each}|>") is not None)

    async def stop(self) -> None:
        """Stop what is being written down, and let go of the model; idempotent."""
        await self._threads.stop()
        self._model = None

    def check_options(self, options: Transcription) -> None:
        """
        Refuse languages that it doesn't know, and probabilities.

        Raises:
            ClientError: one is wished.
        """
        check_options(options, self._name, languages=self.languages, takes_prompt=True, has_word_times=True)

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        """
        What is said; cancelling it stops the work at the next half minute of sound.

        Raises:
            ApiError: too much waits already, or the model failed.
        """
        if self._model is None:
            raise ServerError(f"The model '{self._name}' is not loaded.")
        stopped = Event()
        return await self._threads.run(partial(_transcribe, self._model, float_samples(pcm), options, stopped), stopped.set)

    def _load(self) -> "WhisperModel":
        try:
            from faster_whisper import WhisperModel  # noqa: PLC0415 - an extra that takes a second to load
        except ImportError:
            raise ServerError("Whisper needs the extra of that name: pip install 'antiphon[whisper]'.") from None
        if absent := [file for file in FILES if not (self._folder / file).is_file()]:
            raise ServerError(
                f"The model '{self._name}' is not in {self._folder}: {quote_list(absent)} can't be found. `antiphon "
                f"models pull {self._name}` "
                "gets it.",
                code="model_not_found",
            )
        try:
            return WhisperModel(str(self._folder), device="cpu", compute_type="int8", cpu_threads=self._cores, local_files_only=True)
        except (RuntimeError, ValueError, OSError) as error:
            raise ServerError(f"The model '{self._name}' in {self._folder} can't be loaded: {error}") from None


def _transcribe(model: "WhisperModel", samples: FloatSamples, options: Transcription, stop_event: Event) -> Transcript:
    evidence = collect_evidence(samples)
    if evidence.duration_s < _MIN_AUDIO_S or evidence.is_silence:
        return Transcript(text="")
    try:
        language = _detect_language(model, samples, options.languages)
        said, known = model.transcribe(
            samples,
            language=language,
            initial_prompt=options.prompt,
            hotwords=", ".join(options.keywords) or None,
            word_timestamps=options.word_times,
            beam_size=_BEAM_SIZE,
            temperature=_TEMPERATURES,
            # What was misheard before is not to be heard again.
            condition_on_previous_text=False,
        )
        parts = []
        for part in said:
            if stop_event.is_set():
                break
            parts.append(part)
    except (RuntimeError, ValueError) as error:
        raise ServerError(f"The sound could not be written down: {shorten(error, 300)}", code="transcription_failed") from None
    return _transcript(parts, samples, evidence, known.language)


def _detect_language(model: "WhisperModel", samples: FloatSamples, candidates: Sequence[str]) -> str | None:
    """The language of those allowed that it is likest to be; None for whichever it is."""
    if len(candidates) < 2:
        return primary_subtag(candidates[0]) if candidates else None
    _, _, likelihoods = model.detect_language(samples)
    wanted = {primary_subtag(each) for each in candidates}
    return next((language for language, _ in sorted(likelihoods, key=lambda each: -each[1]) if language in wanted), None)


def _transcript(parts: Sequence[Any], samples: FloatSamples, evidence: Evidence, language: str) -> Transcript:
    segments: list[TimedText] = []
    words: list[TimedText] = []
    for part in parts:
        sound = samples[int(part.start * INPUT_RATE_HZ) : int(part.end * INPUT_RATE_HZ)]
        if text := remove_hallucinations(part.text, collect_evidence(sound, part.no_speech_prob)):
            segments.append(TimedText(text, float(part.start), float(part.end)))
            words += _words(part.words or ())
    # A loop may also go on from one part to the next.
    text = remove_hallucinations(" ".join(part.text for part in segments), evidence)
    return Transcript(
        text=text,
        segments=tuple(segments) if text else (),
        words=tuple(words) if text else (),
        language=language if text else None,
        tokens=sum(len(part.tokens) for part in parts),
    )


def _words(parts: Sequence[Any]) -> list[TimedText]:
    """The words; what is joined to the one before by a hyphen or an apostrophe is part of it."""
    words: list[TimedText] = []
    for part in parts:
        text = part.word.strip()
        if words and text.startswith(("-", "'", "’")):
            before = words.pop()
            words.append(TimedText(before.text + text, before.start_s, float(part.end)))
        else:
            words.append(TimedText(text, float(part.start), float(part.end)))
    return words
