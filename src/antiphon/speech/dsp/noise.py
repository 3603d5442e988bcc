"""
Noise reduction: what fans, streets and lines add is made fainter, in streams of sound to be heard.

The suppressor is WebRTC's, which browsers use: it learns the noise's spectrum in half a second and takes it off by up
to 18 dB. The sound comes 6 ms late. It costs 0.8 ms for a second of sound. It helps against hiss and hum; voices in the
background are no noise to it.
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
"""By kind, what is taken off at full strength: more harms the voice, which close to the microphone stands out anyway."""
LEVELS_DB = (6, 12, 18)
"""What the suppressor is asked for; strengths between are taken for the nearest. It could take off 21, with which less is understood."""

_LIBRARY = "pywebrtc_audio"
_BLOCK_BYTES = INPUT_RATE_HZ // 100 * SAMPLE_BYTES


def available_kinds() -> tuple[str, ...]:
    """The kinds of noise reduction that can be done here; none where the library is not installed."""
    return tuple(MAX_SUPPRESSION_DB) if importlib.util.find_spec(_LIBRARY) else ()


class NoiseReducer:
    """
    One stream of sound at `INPUT_RATE_HZ`, made less noisy.

    Raises:
        ClientError: there is no such kind.
        ServerError: the library is not installed.
    """

    def __init__(self, options: NoiseReduction) -> None:
        self._suppressor = _new_suppressor(options)
        self._remainder = b""

    def process(self, pcm: bytes) -> bytes:
        """
        What can be given of the sound so far, as much in the end as was taken to 10 ms.

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
    wanted_db = MAX_SUPPRESSION_DB[options.kind] * options.strength
    nearest_db = min((0, *LEVELS_DB), key=lambda level_db: abs(level_db - wanted_db))
    if not nearest_db:
        return None
    try:
        from pywebrtc_audio import NoiseSuppressor  # noqa: PLC0415 - only those need it who ask for noise reduction
    except ImportError:
        raise ServerError("Noise reduction needs the package pywebrtc-audio.", code="not_installed") from None
    return NoiseSuppressor(sample_rate=INPUT_RATE_HZ, level=LEVELS_DB.index(nearest_db))
