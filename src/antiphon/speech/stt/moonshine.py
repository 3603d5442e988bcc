"""
Moonshine, small models for English speech, run by onnxruntime.

Their cost grows with the audio, which is not padded: a word takes 20 ms of processor time, a sentence of 7 s takes 130
ms. The encoder runs once over a segment, then the decoder once per token, greedily. A segment uses one core: a second
one makes it no faster.

Source: Jeffries et al., "Moonshine: Speech Recognition for Live Transcription and Voice Commands" (2024).
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from antiphon.engine_api.options import Transcription
from antiphon.errors import ServerError, shutting_down
from antiphon.speech import onnx
from antiphon.speech.base import INPUT_RATE_HZ, Transcript, check_files, check_options, transcription_failed
from antiphon.speech.stt.hallucination import is_looping, remove_hallucinations
from antiphon.speech.stt.segmenting import FloatSamples, collect_evidence, float_samples, split_at_silences
from antiphon.speech.threads import BoundedThreadPool

FILES = ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin")

_BEGIN_TOKEN, _END_TOKEN = 1, 2  # of Llama's tokenizer, which Moonshine uses
_TOKENS_PER_S = 10  # the paper's 6.5 cuts off digits that are said in a row
_EXTRA_TOKENS = 8
_MIN_AUDIO_S = 0.1
_WARM_UP_S = 1.0
_LOAD_ERRORS: tuple[type[Exception], ...] = (*onnx.ERRORS, ValueError, IndexError, StopIteration)


class MoonshineTranscriber:
    """
    A transcriber that runs Moonshine.

    Args:
        folder: of the model's files, `FILES`.
        name: of the model, for messages.
        max_workers: how many segments are transcribed at once, each on a core.
        max_pending: how many more may wait.
    """

    languages: tuple[str, ...] = ("en",)
    takes_prompt = False
    has_times = False

    def __init__(self, folder: Path, *, name: str = "moonshine-tiny-en", max_workers: int = 2, max_pending: int = 32) -> None:
        self._folder = folder
        self._name = name
        self._threads = BoundedThreadPool("antiphon-moonshine", max_workers, max_pending)
        self._model: _Model | None = None

    async def start(self) -> None:
        self._model = await self._threads.run(self._load)

    async def stop(self) -> None:
        await self._threads.stop()
        self._model = None

    @property
    def is_free(self) -> bool:
        return self._threads.has_free_thread

    def check_options(self, options: Transcription) -> None:
        check_options(options, self._name, languages=self.languages)

    async def transcribe(self, pcm: bytes, options: Transcription) -> Transcript:
        if self._model is None:
            raise ServerError(f"The model '{self._name}' is not loaded.")
        run_options, stop = onnx.cancellable_run()
        return await self._threads.run(partial(_transcribe, self._model, pcm, run_options), stop)

    def _load(self) -> "_Model":
        check_files(self._folder, self._name, FILES)
        try:
            model = _Model(self._folder)
            model.generate(np.zeros(int(_WARM_UP_S * INPUT_RATE_HZ), np.float32), onnxruntime.RunOptions())
        except _LOAD_ERRORS as error:
            raise ServerError(f"The model '{self._name}' in {self._folder} can't be loaded: {error}") from None
        return model


def _transcribe(model: "_Model", pcm: bytes, run_options: onnxruntime.RunOptions) -> Transcript:
    try:
        return _transcribe_segments(model, pcm, run_options)
    except onnx.ERRORS as error:
        # onnxruntime reports a run that was stopped as an error.
        if run_options.terminate:
            raise shutting_down() from None
        raise transcription_failed(error) from None


def _transcribe_segments(model: "_Model", pcm: bytes, run_options: onnxruntime.RunOptions) -> Transcript:
    texts: list[str] = []
    count = 0
    for samples in split_at_silences(float_samples(pcm)):
        evidence = collect_evidence(samples)
        if evidence.duration_s < _MIN_AUDIO_S or evidence.is_silence:
            continue
        tokens = model.generate(samples, run_options)
        count += len(tokens)
        texts.append(remove_hallucinations(model.detokenize(tokens), evidence))
    return Transcript(text=" ".join(filter(None, texts)), language="en", tokens=count)


class _CacheTensor(NamedTuple):
    """A tensor of the decoder's cache: its names as input and as output."""

    input_name: str
    output_name: str


class _Model:
    """The encoder, the decoder, and the vocabulary; may run in several threads at once."""

    def __init__(self, folder: Path) -> None:
        encoder, decoder, vocabulary = (folder / file for file in FILES)
        self._encoder = onnx.load(encoder)
        self._decoder = onnx.load(decoder)
        self._vocabulary = _read_vocabulary(vocabulary.read_bytes())
        inputs = {each.name: each for each in self._decoder.get_inputs() if each.name.startswith("past_key_values.")}
        pasts = [_CacheTensor(name, name.replace("past_key_values", "present")) for name in inputs]
        shape = next(iter(inputs.values())).shape
        self._empty_tensor = np.zeros((1, shape[1], 0, shape[3]), np.float32)
        # The cache of the encoder's states is made in the first step, and only read in the others.
        self._cache_tensors = pasts
        self._decoder_cache_tensors = [past for past in pasts if ".decoder." in past.input_name]

    def generate(self, samples: FloatSamples, run_options: onnxruntime.RunOptions) -> list[int]:
        """The most likely tokens, greedily."""
        mask = np.ones((1, len(samples)), np.int64)
        (states,) = self._encoder.run(None, {"input_values": samples[None], "attention_mask": mask}, run_options)
        feeds: dict[str, np.ndarray] = {past.input_name: self._empty_tensor for past in self._cache_tensors}
        feeds |= {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        tokens: list[int] = []
        for _ in range(int(len(samples) / INPUT_RATE_HZ * _TOKENS_PER_S) + _EXTRA_TOKENS):
            pasts = self._decoder_cache_tensors if tokens else self._cache_tensors
            feeds["input_ids"] = np.array([[tokens[-1] if tokens else _BEGIN_TOKEN]], np.int64)
            # The merged decoder of Hugging Face Optimum has two branches: the first step has no cache to read.
            feeds["use_cache_branch"] = np.array([bool(tokens)])
            logits, *outputs = self._decoder.run(["logits", *(past.output_name for past in pasts)], feeds, run_options)
            feeds.update((past.input_name, tensor) for past, tensor in zip(pasts, outputs, strict=True))
            token = int(logits[0, -1].argmax())
            if token == _END_TOKEN:
                break
            tokens.append(token)
            # It would go on so up to the limit of tokens.
            if is_looping(tokens):
                break
        return tokens

    def detokenize(self, tokens: list[int]) -> str:
        """The text of the tokens."""
        pieces = (self._vocabulary[token] for token in tokens if token < len(self._vocabulary))
        return b"".join(pieces).replace("▁".encode(), b" ").decode(errors="replace").strip()


def _read_vocabulary(blob: bytes) -> list[bytes]:
    """
    The text of each token; empty for markers.

    Args:
        blob: the tokens, each after its length: one byte, or two if the highest bit is set, where the second counts
            128s.
    """
    pieces: list[bytes] = []
    offset = 0
    while offset < len(blob):
        size, offset = blob[offset], offset + 1
        if size >= 128:
            size, offset = size - 128 + 128 * blob[offset], offset + 1
        pieces.append(_token_text(blob[offset : offset + size]))
        offset += size
    return pieces


def _token_text(piece: bytes) -> bytes:
    if len(piece) > 2 and piece.startswith(b"<") and piece.endswith(b">"):
        return bytes((int(piece[3:5], 16),)) if piece.startswith(b"<0x") else b""
    return piece
