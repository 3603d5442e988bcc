"""
Noise reduction for streams of input audio: makes the noise of fans, streets and lines fainter.

The suppressor is WebRTC's, which browsers use: it learns the spectrum of the noise in half a second and reduces it by
up to 18 dB. It delays the audio by 6 ms and costs 0.8 ms per second of audio. It helps against hiss and hum; it takes
voices in the background for speech.
"""

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api.options import NoiseReduction
from antiphon.errors import ClientError, ServerError, quote_list
from antiphon.speech.base import INPUT_RATE_HZ

if TYPE_CHECKING:
    from pywebrtc_audio import NoiseSuppressor

MAX_SUPPRESSION_DB = {"near_field": 12, "far_field": 18}
"""By kind, the reduction at full strength: more harms a voice close to the microphone, which stands out anyway."""
LEVELS_DB = (6, 12, 18)
"""
The suppressor's levels; strengths between are rounded. Its fourth level, 21 dB, makes speech harder to understand.
"""

_LIBRARY = "pywebrtc_audio"
_BLOCK_BYTES = INPUT_RATE_HZ // 100 * SAMPLE_BYTES


def available_kinds() -> tuple[str, ...]:
    """The kinds of noise reduction available; none if the library is not installed."""
    return tuple(MAX_SUPPRESSION_DB) if importlib.util.find_spec(_LIBRARY) else ()


class NoiseReducer:
    """
    Reduces the noise in one stream of audio at `INPUT_RATE_HZ`.

    Raises:
        ClientError: there is no such kind.
        ServerError: the library is not installed.
    """

    def __init__(self, options: NoiseReduction) -> None:
        self._suppressor = _new_suppressor(options)
        self._remainder = b""

    def process(self, pcm: bytes) -> bytes:
        """
        The audio that is ready; up to 10 ms wait for the next call.

        Args:
            pcm: s16le, whole samples, any number of them.
        """
        if self._suppressor is None:
            return pcm
        sound = self._remainder + pcm
        whole_bytes = len(sound) // _BLOCK_BYTES * _BLOCK_BYTES
        self._remainder = sound[whole_bytes:]
        if not whole_bytes:
            return b""
        return bytes(self._suppressor.process(np.frombuffer(sound[:whole_bytes], np.int16)).data)


def _new_suppressor(options: NoiseReduction) -> "NoiseSuppressor | None":
    if options.kind not in MAX_SUPPRESSION_DB:
        raise ClientError(
            f"Invalid value: '{options.kind}'. Supported values are: {quote_list(MAX_SUPPRESSION_DB)}.",
            code="invalid_value",
            param="audio.input.noise_reduction.type",
        )
    target_db = MAX_SUPPRESSION_DB[options.kind] * options.strength
    nearest_db = min((0, *LEVELS_DB), key=lambda level_db: abs(level_db - target_db))
    if not nearest_db:
        return None
    try:
        from pywebrtc_audio import NoiseSuppressor  # noqa: PLC0415 - only needed where noise reduction is asked for
    except ImportError:
        raise ServerError("Noise reduction needs the package pywebrtc-audio.", code="not_installed") from None
    return NoiseSuppressor(sample_rate=INPUT_RATE_HZ, level=LEVELS_DB.index(nearest_db))
