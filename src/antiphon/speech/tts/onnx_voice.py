"""What the processes of voices have in common: models that tell how long each phoneme sounds, runs that can be stopped, sound as bytes."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from antiphon.speech import onnx
from antiphon.speech.dsp.resample import resample
from antiphon.speech.tts.alignment import align_words, group_phonemes, scale_counts, split_words
from antiphon.speech.tts.child import SynthesisJob, SynthesisStopped

TARGET_RMS = 0.085
"""How loud voices are: the root mean square of speech, of full scale; some 21 dB below it."""

MAX_GAIN = 4.0

PAUSES_MS = {".": 240, "!": 240, "?": 240, "…": 240, ":": 160, ";": 140, "—": 100, "–": 100, ",": 80}
"""Of silence behind a text that ends so; the models' own pauses are those within a sentence."""


class OnnxVoiceModel:
    """
    A model that makes sound of phonemes.

    Args:
        durations: the kind of node that rounds how long each phoneme sounds, of which the model has one; what it gives becomes an output.
    """

    def __init__(self, path: Path, duration_op_type: str, threads: int = 1) -> None:
        model = path.read_bytes()
        name = _find_output(model, duration_op_type)
        self._session = _load(model, _extra_output(name) if name else b"", threads)

    def run(self, feeds: Mapping[str, Any], job: SynthesisJob) -> tuple[np.ndarray, np.ndarray | None]:
        """
        The sound, and how long each phoneme sounds in the model's own unit where it tells.

        Raises:
            Stopped: the job was.
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


def phonemize(phonemizer: Any, language: str, text: str) -> list[list[str]]:
    """The phonemes of each sentence, as espeak makes them."""
    return list(phonemizer.phonemize(language, text.replace("\0", "")))  # it is written in C, whose texts end there


def normalization_gain(sound: np.ndarray) -> float:
    """By how much a voice is to be louder, by something that it said."""
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
    Sound as it is sent, and its words.

    Args:
        samples: of each phoneme; None where the model doesn't tell.
        rates_hz: the sound's own rate, and the one that is wanted.
    """
    own_hz, wanted_hz = rates_hz
    pcm = np.clip(sound * (gain * 32767), -32768, 32767).astype("<i2").tobytes()
    pcm = resample(pcm, own_hz, wanted_hz)
    words = split_words(text)
    groups = group_phonemes(phonemes, samples if samples is not None else [1] * len(phonemes))
    counts = scale_counts(align_words(words, groups), len(pcm) // 2)
    pause = round(PAUSES_MS.get(text.rstrip(" \n\"')”’*_")[-1:], 0) / speed * wanted_hz / 1000)
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
    # What is loaded from a file, be it one in memory, takes as much less as the model is large.
    with open(os.memfd_create("model"), "wb") as file:
        file.write(model)
        file.write(addition)
        file.flush()
        return onnx.load(Path(f"/proc/self/fd/{file.fileno()}"), threads)


def _extra_output(name: str) -> bytes:
    """What is put behind a model for that: of a message that comes twice the second adds to the first, so its graph may come again."""
    return _encode_field(_GRAPH_OF_MODEL, _encode_field(_OUTPUT_OF_GRAPH, _encode_field(_NAME_OF_VALUE, name.encode())))


def _find_output(model: bytes, op_type: str) -> str | None:
    """What the only node of that kind gives; None where there are several or none."""
    found = []
    view = memoryview(model)
    for graph in _read_fields(view, _GRAPH_OF_MODEL):
        for node in _read_fields(graph, _NODE_OF_GRAPH):
            if any(bytes(each) == op_type.encode() for each in _read_fields(node, _OP_TYPE_OF_NODE)):
                found += [bytes(each).decode() for each in _read_fields(node, _OUTPUT_OF_NODE)]
    return found[0] if len(found) == 1 else None


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return head + bytes((value,))


def _read_fields(message: memoryview, field_number: int) -> Iterator[memoryview]:
    """The fields of that number which are bytes; others are passed over."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, 0)
        if kind in (_VARINT, _BYTES):
            value, at = _read_varint(message, at)
            size = value if kind == _BYTES else 0
        if number == field_number and kind == _BYTES:
            yield message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
