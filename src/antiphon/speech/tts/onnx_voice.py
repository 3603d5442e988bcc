"""
What the voice processes share: ONNX models with phoneme durations, runs that can be stopped, phonemes, and speech as
bytes.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime

from antiphon.installation import install_hint
from antiphon.speech import onnx
from antiphon.speech.dsp.resample import resample
from antiphon.speech.tts.alignment import align_words, group_phonemes, scale_counts, split_words
from antiphon.speech.tts.child import SynthesisJob, SynthesisStopped, VoiceUnavailable

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
        name = _find_output(model, duration_op_type)
        self._session = _load(model, _extra_output(name) if name else b"", threads)

    def run(self, feeds: Mapping[str, np.ndarray], job: SynthesisJob) -> tuple[np.ndarray, np.ndarray | None]:
        """
        The audio, and the duration of each phoneme in the model's own unit; None if the model doesn't report it.

        Raises:
            SynthesisStopped: the job was stopped.
        """
        options, stop = onnx.cancellable_run()
        job.stop = stop
        if job.is_stopped:
            raise SynthesisStopped
        try:
            sound, *durations = self._session.run(None, dict(feeds), options)
        except Exception:
            if job.is_stopped:
                raise SynthesisStopped from None
            raise
        return np.asarray(sound).reshape(-1), np.asarray(durations[0]).reshape(-1) if durations else None


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


def fold_edges(samples: Sequence[int]) -> list[int]:
    """
    The samples of the phonemes between the begin and end symbols, with those of the two symbols added to their
    neighbours.
    """
    first, *inner, last = samples
    inner[0] += first
    inner[-1] += last
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
    sound: np.ndarray,
    phonemes: Sequence[str],
    samples: Sequence[int] | None,
    *,
    gain: float,
    rates_hz: tuple[int, int],
    speed: float,
) -> tuple[bytes, Iterable[tuple[str, int]]]:
    """
    The audio as s16le with the pause behind it, and its words with the samples of each.

    Args:
        samples: of each phoneme; None if the model doesn't report them.
        rates_hz: the audio's own rate, and the output's.
    """
    own_hz, output_hz = rates_hz
    pcm = np.clip(sound * (gain * 32767), -32768, 32767).astype("<i2").tobytes()
    pcm = resample(pcm, own_hz, output_hz)
    words = split_words(text)
    groups = group_phonemes(phonemes, samples if samples is not None else [1] * len(phonemes))
    counts = scale_counts(align_words(words, groups), len(pcm) // 2)
    pause = round(PAUSES_MS.get(text.rstrip(" \n\"')”’*_")[-1:], 0) / speed * output_hz / 1000)
    if counts:
        counts[-1] += pause
    return pcm + bytes(2 * pause), zip(words, counts, strict=True)


# A model is a protocol buffer: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_GRAPH_OF_MODEL, _NODE_OF_GRAPH, _OUTPUT_OF_GRAPH = 7, 1, 12
_OUTPUT_OF_NODE, _OP_TYPE_OF_NODE, _NAME_OF_VALUE = 2, 4, 1
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def _load(model: bytes, addition: bytes, threads: int) -> onnxruntime.InferenceSession:
    if sys.platform != "linux":
        return onnx.load(model + addition, threads)
    # onnxruntime keeps a copy of a model that it gets as bytes; from a file, also one in memory, it takes less by the
    # size of the model.
    with open(os.memfd_create("model"), "wb") as file:
        file.write(model)
        file.write(addition)
        file.flush()
        return onnx.load(Path(f"/proc/self/fd/{file.fileno()}"), threads)


def _extra_output(name: str) -> bytes:
    """
    Bytes that add an output when appended to a model: protobuf merges a second occurrence of an embedded message into
    the first.
    """
    return _encode_field(_GRAPH_OF_MODEL, _encode_field(_OUTPUT_OF_GRAPH, _encode_field(_NAME_OF_VALUE, name.encode())))


def _find_output(model: bytes, op_type: str) -> str | None:
    """The output of the only node with this op type; None if there are several or none."""
    outputs: list[str] = []
    view = memoryview(model)
    for graph in _read_fields(view, _GRAPH_OF_MODEL):
        for node in _read_fields(graph, _NODE_OF_GRAPH):
            if any(bytes(each) == op_type.encode() for each in _read_fields(node, _OP_TYPE_OF_NODE)):
                outputs += [bytes(each).decode() for each in _read_fields(node, _OUTPUT_OF_NODE)]
    return outputs[0] if len(outputs) == 1 else None


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return head + bytes((value,))


def _read_fields(message: memoryview, field_number: int) -> Iterator[memoryview]:
    """The fields with this number that are bytes; others are skipped."""
    offset = 0
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        number, kind = key >> 3, key & 7
        size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, 0)
        if kind in (_VARINT, _BYTES):
            value, offset = _read_varint(message, offset)
            size = value if kind == _BYTES else 0
        if number == field_number and kind == _BYTES:
            yield message[offset : offset + size]
        offset += size


def _read_varint(message: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, offset
