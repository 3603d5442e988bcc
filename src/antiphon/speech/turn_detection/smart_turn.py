"""
Judges how complete a turn sounds, from its intonation and words, not from the silence after it.

Smart-Turn v3 takes the last 8 s as Whisper's features. It errs both ways: sentences read aloud sound complete at every
comma, short answers sometimes don't. So it only makes a pause longer or shorter: see `endpoint`.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2, for the
features, with the scale and the area of the bands as in Slaney's Auditory Toolbox (1998), as Whisper was trained with
them.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from antiphon.audio import SAMPLE_BYTES
from antiphon.speech import onnx
from antiphon.speech.base import INPUT_RATE_HZ

MODEL = "smart-turn-v3.2"
"""Its name in the catalogue."""

CONTEXT_S = 8
MEL_BANDS = 80
FRAMES = CONTEXT_S * 100
MAX_PENDING = 4
"""More calls are not queued: at 30 ms each, a later answer is of no use."""

FloatArray = npt.NDArray[np.float32]

_CONTEXT_SAMPLES = CONTEXT_S * INPUT_RATE_HZ
_WINDOW_SAMPLES = 400  # these three as in Whisper's `audio.py`: 25 ms, every 10 ms
_HOP_SAMPLES = 160
_FLOOR = 1e-10


class SmartTurn:
    """
    The model, and the thread that it runs in.

    Args:
        path: of `smart-turn-v3.2-cpu.onnx`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="antiphon-turn")
        self._model: onnxruntime.InferenceSession | None = None
        self._pending_count = 0

    async def start(self) -> None:
        """
        Load the model; once.

        Raises:
            ServerError: the model is missing, or can't be loaded.
        """
        self._model = await asyncio.get_running_loop().run_in_executor(self._pool, onnx.load_required_model, self._path, MODEL)

    async def stop(self) -> None:
        """Stop the thread; idempotent."""
        self._model = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def likelihood(self, pcm: bytes) -> float | None:
        """
        The probability that the turn is complete; None if too many calls wait, or the model is not loaded.

        Args:
            pcm: the turn so far with the silence after it, s16le mono at `INPUT_RATE_HZ`; only its last 8 s are used.
        """
        if self._pending_count >= MAX_PENDING or self._model is None:
            return None
        self._pending_count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _likelihood, self._model, pcm)
        except onnx.ERRORS:
            return None
        finally:
            self._pending_count -= 1


def _likelihood(model: onnxruntime.InferenceSession, pcm: bytes) -> float:
    (likelihoods,) = model.run(None, {"input_features": log_mel_features(pcm)[None]})
    return float(likelihoods[0, 0])


def log_mel_features(pcm: bytes) -> FloatArray:
    """
    The log-mel spectrogram of the last 8 s, with silence before shorter audio.

    Args:
        pcm: s16le mono at `INPUT_RATE_HZ`.

    Returns:
        `MEL_BANDS` rows of `FRAMES`, one every 10 ms.
    """
    samples = np.zeros(_CONTEXT_SAMPLES, np.float32)
    tail = np.frombuffer(pcm[-_CONTEXT_SAMPLES * SAMPLE_BYTES :], "<i2")
    samples[_CONTEXT_SAMPLES - len(tail) :] = tail / np.float32(32_768)
    # Zero mean and unit variance, as the feature extractor of `transformers` makes them.
    samples -= samples.mean()
    samples /= np.sqrt(samples.var() + 1e-7)
    signal = np.pad(samples, _WINDOW_SAMPLES // 2, mode="reflect")
    # As Whisper does, the last frame is left out, whose window is centred on the last sample.
    windows = np.lib.stride_tricks.sliding_window_view(signal, _WINDOW_SAMPLES)[::_HOP_SAMPLES][:FRAMES]
    power = np.abs(np.fft.rfft(windows * _WINDOW)) ** 2
    bels: FloatArray = np.log10(np.maximum(_MEL_FILTERS @ power.T, _FLOOR))
    # The upper 80 dB, shifted and scaled as in Whisper's `log_mel_spectrogram`.
    features: FloatArray = ((np.maximum(bels, bels.max() - 8) + 4) / 4).astype(np.float32)
    return features


def _window() -> FloatArray:
    """A periodic Hann window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW_SAMPLES) / _WINDOW_SAMPLES)).astype(np.float32)


def _mel_filters() -> FloatArray:
    """The weight of each frequency in each band: triangles up to the centres of the neighbours, all of one area."""
    # Up to 1 kHz a mel is 66.7 Hz; from there on 27 of them make a factor of 6.4. Half the rate is at 45.2 of them.
    top_mel = 15 + 27 * np.log(INPUT_RATE_HZ / 2 / 1_000) / np.log(6.4)
    mels = np.linspace(0, top_mel, MEL_BANDS + 2)
    edges_hz = np.where(mels < 15, mels * 200 / 3, 1_000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    bins_hz = np.linspace(0, INPUT_RATE_HZ / 2, _WINDOW_SAMPLES // 2 + 1)
    bands = [np.interp(bins_hz, edges_hz[band : band + 3], (0, 2 / (edges_hz[band + 2] - edges_hz[band]), 0)) for band in range(MEL_BANDS)]
    return np.array(bands, np.float32)


_WINDOW = _window()
_MEL_FILTERS = _mel_filters()
