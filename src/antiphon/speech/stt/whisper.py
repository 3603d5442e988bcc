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
from antiphon.errors import OurFault, listed, shown
from antiphon.speech.base import HEARING_RATE_HZ, Segment, Transcript
from antiphon.speech.stt.hallucination import Evidence, sensible
from antiphon.speech.stt.options import plain, refuse
from antiphon.speech.stt.segmenting import Samples, evidence_of, samples_of
from antiphon.speech.threads import Threads

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

FILES = ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")

_SHORTEST_S = 0.1
_BEAM = 5
"""As the model is used by its makers; most of the time goes into the encoder, so that it costs next to nothing."""

_TEMPERATURES = (0.0, 0.4)
"""What is too repetitive or too unlikely at the first is tried again at the second; a third try helps nobody who waits."""


class Whisper:
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

    def __init__(self, folder: Path, *, name: str = "whisper-base", cores: int = 2, waiting: int = 32) -> None:
        self.languages: tuple[str, ...] = ()
        self._folder = folder
        self._name = name
        self._cores = cores
        self._threads = Threads("antiphon-whisper", 1, waiting)
        self._model: WhisperModel | None = None

    async def start(self) -> None:
        """
        Load the model; once. `languages` are known then.

        Raises:
            OurFault: the extra or a file is missing, or a file is not what it should be.
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

    def check(self, wish: Transcription) -> None:
        """
        Refuse languages that it doesn't know, and probabilities.

        Raises:
            ClientMistake: one is wished.
        """
        refuse(wish, self._name, languages=self.languages, takes_prompt=True, has_word_times=True)

    async def transcribe(self, pcm: bytes, wish: Transcription) -> Transcript:
        """
        What is said; cancelling it stops the work at the next half minute of sound.

        Raises:
            errors.Fault: too much waits already, or the model failed.
        """
        if self._model is None:
            raise OurFault(f"The model '{self._name}' is not loaded.")
        stopped = Event()
        return await self._threads.run(partial(_transcribe, self._model, samples_of(pcm), wish, stopped), stopped.set)

    def _load(self) -> "WhisperModel":
        try:
            from faster_whisper import WhisperModel  # noqa: PLC0415 - an extra that takes a second to load
        except ImportError:
            raise OurFault("Whisper needs the extra of that name: pip install 'antiphon[whisper]'.") from None
        if absent := [file for file in FILES if not (self._folder / file).is_file()]:
            raise OurFault(
                f"The model '{self._name}' is not in {self._folder}: {listed(absent)} can't be found. `antiphon models pull {self._name}` "
                "gets it.",
                code="model_not_found",
            )
        try:
            return WhisperModel(str(self._folder), device="cpu", compute_type="int8", cpu_threads=self._cores, local_files_only=True)
        except (RuntimeError, ValueError, OSError) as error:
            raise OurFault(f"The model '{self._name}' in {self._folder} can't be loaded: {error}") from None


def _transcribe(model: "WhisperModel", samples: Samples, wish: Transcription, stopped: Event) -> Transcript:
    evidence = evidence_of(samples)
    if evidence.seconds < _SHORTEST_S or evidence.is_silence:
        return Transcript(text="")
    try:
        language = _language(model, samples, wish.languages)
        said, known = model.transcribe(
            samples,
            language=language,
            initial_prompt=wish.prompt,
            hotwords=", ".join(wish.keywords) or None,
            word_timestamps=wish.word_times,
            beam_size=_BEAM,
            temperature=_TEMPERATURES,
            # What was misheard before is not to be heard again.
            condition_on_previous_text=False,
        )
        parts = []
        for part in said:
            if stopped.is_set():
                break
            parts.append(part)
    except (RuntimeError, ValueError) as error:
        raise OurFault(f"The sound could not be written down: {shown(error, 300)}", code="transcription_failed") from None
    return _transcript(parts, samples, evidence, known.language)


def _language(model: "WhisperModel", samples: Samples, allowed: Sequence[str]) -> str | None:
    """The language of those allowed that it is likest to be; None for whichever it is."""
    if len(allowed) < 2:
        return plain(allowed[0]) if allowed else None
    _, _, likelihoods = model.detect_language(samples)
    wanted = {plain(each) for each in allowed}
    return next((language for language, _ in sorted(likelihoods, key=lambda each: -each[1]) if language in wanted), None)


def _transcript(parts: Sequence[Any], samples: Samples, whole: Evidence, language: str) -> Transcript:
    segments: list[Segment] = []
    words: list[Segment] = []
    for part in parts:
        sound = samples[int(part.start * HEARING_RATE_HZ) : int(part.end * HEARING_RATE_HZ)]
        if text := sensible(part.text, evidence_of(sound, part.no_speech_prob)):
            segments.append(Segment(text, float(part.start), float(part.end)))
            words += _words(part.words or ())
    # A loop may also go on from one part to the next.
    text = sensible(" ".join(part.text for part in segments), whole)
    return Transcript(
        text=text,
        segments=tuple(segments) if text else (),
        words=tuple(words) if text else (),
        language=language if text else None,
        tokens=sum(len(part.tokens) for part in parts),
    )


def _words(parts: Sequence[Any]) -> list[Segment]:
    """The words; what is joined to the one before by a hyphen or an apostrophe is part of it."""
    words: list[Segment] = []
    for part in parts:
        text = part.word.strip()
        if words and text.startswith(("-", "'", "’")):
            before = words.pop()
            words.append(Segment(before.text + text, before.start_s, float(part.end)))
        else:
            words.append(Segment(text, float(part.start), float(part.end)))
    return words
