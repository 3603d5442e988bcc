"""
Whisper, a model for speech in 99 languages, run by CTranslate2 through faster-whisper, the extra `whisper`.

It processes 30 s at a time, however short the audio, so a word costs as much as a sentence. It estimates how likely
nobody speaks, and where each word is.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError
from antiphon.installation import install_hint
from antiphon.speech.base import INPUT_RATE_HZ, TimedText, Transcript, check_files, check_options, primary_subtag, transcription_failed
from antiphon.speech.stt.hallucination import Evidence, remove_hallucinations
from antiphon.speech.stt.segmenting import FloatSamples, collect_evidence, float_samples
from antiphon.speech.threads import BoundedThreadPool

if TYPE_CHECKING:
    from faster_whisper import WhisperModel
    from faster_whisper.transcribe import Segment, Word

FILES = ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")

_MIN_AUDIO_S = 0.1
_BEAM_SIZE = 5
"""As OpenAI uses it; most of the time goes into the encoder, so it costs next to nothing."""

_TEMPERATURES = (0.0, 0.4)
"""
A result that is too repetitive or too unlikely is tried again at the second; a third try takes too long for a
conversation.
"""


class WhisperTranscriber:
    """
    A transcriber that runs Whisper.

    Args:
        folder: of the model's files, `FILES`.
        name: of the model, for messages.
        cores: used for one transcript.
        max_pending: how many calls may wait; one runs at a time.
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
        model = await self._threads.run(self._load)
        self._model = model
        # The library lists the same languages for every multilingual model. Older ones have no token for Cantonese,
        # which is new in large-v3 (its model card).
        token_id = model.hf_tokenizer.token_to_id
        self.languages = tuple(language for language in model.supported_languages if token_id(f"<|{language}|>") is not None)

    async def stop(self) -> None:
        await self._threads.stop()
        self._model = None

    @property
    def is_free(self) -> bool:
        return self._threads.has_free_thread

    def check_options(self, options: Transcription) -> None:
        check_options(options, self._name, languages=self.languages, has_word_times=True)

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        if self._model is None:
            raise ServerError(f"The model '{self._name}' is not loaded.")
        stop_event = Event()
        return await self._threads.run(partial(_transcribe, self._model, float_samples(pcm), options, stop_event), stop_event.set)

    def _load(self) -> "WhisperModel":
        try:
            from faster_whisper import WhisperModel  # noqa: PLC0415 - an extra that takes a second to load
        except ImportError:
            raise ServerError(f"Whisper needs the extra `whisper`. {install_hint('whisper')}") from None
        check_files(self._folder, self._name, FILES)
        try:
            return WhisperModel(str(self._folder), device="cpu", compute_type="int8", cpu_threads=self._cores, local_files_only=True)
        except (RuntimeError, ValueError, OSError) as error:
            raise ServerError(f"The model '{self._name}' in {self._folder} can't be loaded: {error}") from None


def _transcribe(model: "WhisperModel", samples: FloatSamples, options: Transcription, stop_event: Event) -> Transcript:
    evidence = collect_evidence(samples)
    # The model would make up words for it.
    if evidence.duration_s < _MIN_AUDIO_S or evidence.is_silence:
        return Transcript(text="")
    try:
        language = _detect_language(model, samples, options.languages)
        segments, info = model.transcribe(
            samples,
            language=language,
            initial_prompt=options.prompt,
            hotwords=", ".join(options.keywords) or None,
            word_timestamps=options.word_times,
            beam_size=_BEAM_SIZE,
            temperature=_TEMPERATURES,
            # Else an error in one segment repeats in the next.
            condition_on_previous_text=False,
        )
        parts = []
        for segment in segments:  # transcribes 30 s at each step
            if stop_event.is_set():
                break
            parts.append(segment)
    except (RuntimeError, ValueError) as error:
        raise transcription_failed(error) from None
    return _transcript(parts, samples, evidence, info.language)


def _detect_language(model: "WhisperModel", samples: FloatSamples, candidates: Sequence[str]) -> str | None:
    """The most likely of several candidates; None lets the model detect any."""
    if len(candidates) < 2:
        return primary_subtag(candidates[0]) if candidates else None
    _, _, likelihoods = model.detect_language(samples)
    codes = {primary_subtag(candidate) for candidate in candidates}
    return next((language for language, _ in sorted(likelihoods, key=lambda each: -each[1]) if language in codes), None)


def _transcript(parts: "Sequence[Segment]", samples: FloatSamples, evidence: Evidence, language: str) -> Transcript:
    segments: list[TimedText] = []
    words: list[TimedText] = []
    for part in parts:
        audio = samples[int(part.start * INPUT_RATE_HZ) : int(part.end * INPUT_RATE_HZ)]
        if text := remove_hallucinations(part.text, collect_evidence(audio, part.no_speech_prob)):
            segments.append(TimedText(text, float(part.start), float(part.end)))
            words += _words(part.words or ())
    # A loop may go on from one segment to the next.
    text = remove_hallucinations(" ".join(part.text for part in segments), evidence)
    return Transcript(
        text=text,
        segments=tuple(segments) if text else (),
        words=tuple(words) if text else (),
        language=language if text else None,
        tokens=sum(len(part.tokens) for part in parts),
    )


def _words(parts: "Sequence[Word]") -> list[TimedText]:
    """The words; one that starts with a hyphen or an apostrophe is part of the one before."""
    words: list[TimedText] = []
    for part in parts:
        text = part.word.strip()
        if words and text.startswith(("-", "'", "’")):
            before = words.pop()
            words.append(TimedText(before.text + text, before.start_s, float(part.end)))
        else:
            words.append(TimedText(text, float(part.start), float(part.end)))
    return words
