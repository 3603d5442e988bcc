"""
How complete a turn sounds: by its melody and its words, not by the silence after it.

Smart-Turn v3 listens to the last 8 s, which it takes as Whisper's features. It errs both ways: sentences that are read aloud sound complete
at every comma, short answers sometimes don't. So it makes a pause longer or shorter, and nothing else: see `endpoint`.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2, for the features, with the scale
and the area of the bands as in Slaney's Auditory Toolbox (1998), as Whisper was trained with them.
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
"""What it is called in the catalogue."""

CONTEXT_S = 8
MEL_BANDS = 80
FRAMES = CONTEXT_S * 100
MAX_PENDING = 4
"""More than that are not asked for: at 30 ms each, an answer that waits longer comes too late to be of use."""

FloatArray = npt.NDArray[np.float32]

_CONTEXT_SAMPLES = CONTEXT_S * INPUT_RATE_HZ
_WINDOW_SAMPLES = 400
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
            ServerError: it is missing, or is not what it should be.
        """
        self._model = await asyncio.get_running_loop().run_in_executor(self._pool, onnx.load_required_model, self._path, MODEL)

    async def stop(self) -> None:
        """Let go of the thread; idempotent."""
        self._model = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def likelihood(self, pcm: bytes) -> float | None:
        """
        How likely the turn is complete, 0 to 1; None where too many ask at once, or it is not there.

        Args:
            pcm: the turn so far with the silence after it, s16le mono at `INPUT_RATE_HZ`; its last 8 s count.
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
    The log-mel spectrogram of the last 8 s, after silence where there is less.

    Args:
        pcm: s16le mono at `INPUT_RATE_HZ`.

    Returns:
        `BANDS` rows of `FRAMES`, one every 10 ms.
    """
    samples = np.zeros(_CONTEXT_SAMPLES, np.float32)
    heard = np.frombuffer(pcm[-_CONTEXT_SAMPLES * SAMPLE_BYTES :], "<i2")
    samples[_CONTEXT_SAMPLES - len(heard) :] = heard / np.float32(32_768)
    samples -= samples.mean()
    samples /= np.sqrt(samples.var() + 1e-7)
    around = np.pad(samples, _WINDOW_SAMPLES // 2, mode="reflect")
    # A frame more would fit, whose window has the last sample in its middle; it is left out.
    windows = np.lib.stride_tricks.sliding_window_view(around, _WINDOW_SAMPLES)[::_HOP_SAMPLES][:FRAMES]
    power = np.abs(np.fft.rfft(windows * _WINDOW)) ** 2
    bels: FloatArray = np.log10(np.maximum(_MEL_FILTERS @ power.T, _FLOOR))
    scaled: FloatArray = ((np.maximum(bels, bels.max() - 8) + 4) / 4).astype(np.float32)
    return scaled


def _window() -> FloatArray:
    """Hann's, of a period that is as long as the window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW_SAMPLES) / _WINDOW_SAMPLES)).astype(np.float32)


def _mel_filters() -> FloatArray:
    """What each band takes of each frequency: triangles over its neighbours' middles, all of one area."""
    # Up to 1 kHz a mel is 66.7 Hz; from there on 27 of them make a factor of 6.4. Half the rate is at 45.2 of them.
    top_mel = 15 + 27 * np.log(INPUT_RATE_HZ / 2 / 1_000) / np.log(6.4)
    mels = np.linspace(0, top_mel, MEL_BANDS + 2)
    edges_hz = np.where(mels < 15, mels * 200 / 3, 1_000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    bins_hz = np.linspace(0, INPUT_RATE_HZ / 2, _WINDOW_SAMPLES // 2 + 1)
    bands = [np.interp(bins_hz, edges_hz[at : at + 3], (0, 2 / (edges_hz[at + 2] - edges_hz[at]), 0)) for at in range(MEL_BANDS)]
    return np.array(bands, np.float32)


_WINDOW = _window()
_MEL_FILTERS = _mel_filters()
