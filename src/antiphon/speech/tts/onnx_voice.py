"""
What the voice processes share: ONNX models with phoneme durations, runs that can be stopped, phonemes, and speech as
bytes.
"""

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime

from antiphon.audio import SAMPLE_BYTES
from antiphon.installation import install_hint
from antiphon.speech import onnx
from antiphon.speech.dsp.resample import Resampler
from antiphon.speech.onnx_graph import OnnxGraph, extra_output
from antiphon.speech.tts.alignment import align_words, group_phonemes, scale_counts, split_words
from antiphon.speech.tts.child import SpeechPiece, SynthesisJob, SynthesisStopped, VoiceUnavailable

TARGET_RMS = 0.085
"""The loudness that voices are normalized to: the root mean square of speech relative to full scale, about -21 dB."""

MAX_GAIN = 4.0

PAUSES_MS = {".": 240, "!": 240, "?": 240, "…": 240, ":": 160, ";": 140, "—": 100, "–": 100, ",": 80}
"""Silence behind a text that ends in this mark; the models make only the pauses within a sentence."""


class OnnxVoiceModel:
    """
    A model that turns phonemes into audio.

    Args:
        duration_op_type: the op type of the node that rounds phoneme durations; if the model has exactly one, its
            result becomes an output.
    """

    def __init__(self, path: Path, duration_op_type: str, threads: int = 1) -> None:
        model = path.read_bytes()
        name = OnnxGraph(model).only_output(duration_op_type)
        self._session = load(model + (extra_output(name) if name else b""), threads)

    def run(self, feeds: Mapping[str, np.ndarray], job: SynthesisJob) -> tuple[np.ndarray, np.ndarray | None]:
        """
        The audio, and the duration of each phoneme in the model's own unit; None if the model doesn't report it.

        Raises:
            SynthesisStopped: the job was stopped.
        """
        sound, *durations = run(self._session, feeds, job)
        return sound.reshape(-1), durations[0].reshape(-1) if durations else None


def load(model: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A model in memory, ready to run."""
    if sys.platform != "linux":
        return onnx.load(model, threads)
    # onnxruntime keeps a copy of a model that it gets as bytes; from a file, also one in memory, it takes less by the
    # size of the model.
    with open(os.memfd_create("model"), "wb") as file:
        file.write(model)
        file.flush()
        return onnx.load(Path(f"/proc/self/fd/{file.fileno()}"), threads)


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray], job: SynthesisJob) -> list[np.ndarray]:
    """
    The outputs of one run.

    Raises:
        SynthesisStopped: the job was stopped.
    """
    options, stop = onnx.cancellable_run()
    job.stop = stop
    # Looked at after `job.stop` is set: a stop in between would be lost.
    if job.is_stopped:
        raise SynthesisStopped
    try:
        return [np.asarray(output) for output in session.run(None, dict(feeds), options)]
    # onnxruntime reports a run that was ended as an error.
    except Exception:
        if job.is_stopped:
            raise SynthesisStopped from None
        raise


class Phonemizer(Protocol):
    """`piper.phonemize_espeak.EspeakPhonemizer`."""

    def phonemize(self, language: str, text: str) -> Iterable[list[str]]:
        """The phonemes of each sentence."""


def load_phonemizer(user: str) -> Phonemizer:
    """
    Espeak's phonemizer, which comes with Piper and is under the GPL; loaded in the processes of voices only.

    Raises:
        VoiceUnavailable: it is not installed.
    """
    try:
        from piper.phonemize_espeak import EspeakPhonemizer  # noqa: PLC0415 - an extra: its absence becomes a message
    except ImportError:
        raise VoiceUnavailable(f"{user} needs Piper, which is not installed. {install_hint('piper')}") from None
    phonemizer: Phonemizer = EspeakPhonemizer()
    return phonemizer


def fold_edges(samples: Sequence[int], *, has_begin: bool = True, has_end: bool = True) -> list[int]:
    """The samples of phonemes, with those of the begin and end symbols around them added to their neighbours."""
    inner = list(samples[has_begin : len(samples) - has_end])
    inner[0] += samples[0] if has_begin else 0
    inner[-1] += samples[-1] if has_end else 0
    return inner


def phonemize(phonemizer: Phonemizer, language: str, text: str) -> list[list[str]]:
    """The phonemes of each sentence, from espeak."""
    return list(phonemizer.phonemize(language, text.replace("\0", "")))  # a C string ends there


def normalization_gain(sound: np.ndarray) -> float:
    """The gain that brings a sample of a voice to `TARGET_RMS`."""
    loudness = float(np.sqrt(np.mean(np.square(sound)))) if sound.size else 0.0
    return min(MAX_GAIN, TARGET_RMS / loudness) if loudness > 0 else 1.0


def encode_speech(
    text: str,
    sounds: Iterable[np.ndarray],
    phonemes: Sequence[str],
    samples: Sequence[int] | None,
    *,
    size: int,
    gain: float,
    rates_hz: tuple[int, int],
    speed: float,
    continues: bool = False,
) -> Iterator[SpeechPiece]:
    """
    Audio as s16le, with its words; behind the last of it the pause.

    Args:
        sounds: the audio in pieces; none if nothing sounds.
        samples: of each phoneme; None if the model doesn't report them.
        size: the samples of all audio.
        rates_hz: the audio's own rate, and the output's.
        continues: whether the sentence goes on, so that there is no pause.
    """
    own_hz, output_hz = rates_hz
    words = split_words(text)
    groups = group_phonemes(phonemes, samples if samples is not None else [1] * len(phonemes))
    timer = _WordTimer(words, scale_counts(align_words(words, groups), round(size * output_hz / own_hz)))
    resampler = Resampler(own_hz, output_hz)
    pcm = b""
    for sound in sounds:
        size -= sound.size
        pcm = resampler.process(np.clip(sound * (gain * 32767), -32768, 32767).astype("<i2").tobytes())
        if size > 0 and pcm:
            yield pcm, timer.take(len(pcm) // SAMPLE_BYTES)
    pause = 0 if continues else PAUSES_MS.get(text.rstrip(" \n\"')”’*_")[-1:], 0)
    pcm += resampler.flush() + bytes(SAMPLE_BYTES * round(pause / speed * output_hz / 1000))
    yield pcm, timer.take_rest(len(pcm) // SAMPLE_BYTES)


class _WordTimer:
    """Gives the words that each piece of audio begins with, and their samples in it."""

    def __init__(self, words: Sequence[str], counts: Sequence[int]) -> None:
        self._words = deque(zip(words, counts, strict=True))

    def take(self, samples: int) -> list[tuple[str, int]]:
        """The words of the next audio; a word that an earlier one began has no text."""
        result: list[tuple[str, int]] = []
        while samples and self._words:
            text, count = self._words.popleft()
            part = min(count, samples) if self._words else samples
            result.append((text, part))
            samples -= part
            if part < count or not self._words:
                self._words.appendleft(("", count - part))
        return result

    def take_rest(self, samples: int) -> list[tuple[str, int]]:
        """The words that are left, of which the last takes what remains of the audio."""
        result = self.take(samples)
        return result + [(text, 0) for text, _ in self._words if text]
