"""The process of Kokoro's voices. Its phonemes are espeak's, which comes with Piper and is under the GPL; it is loaded only here."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.speech.tts.child import SynthesisJob, VoiceBackend, VoiceUnavailable, serve
from antiphon.speech.tts.link import StartVoice, Synthesize
from antiphon.speech.tts.onnx_voice import OnnxVoiceModel, encode_speech, normalization_gain, phonemize
from antiphon.speech.tts.tempo import change_tempo

RATE_HZ = 24_000
FRAME_SAMPLES = 600
"""Of sound to a unit of a duration."""

MAX_TOKENS = 510
STYLE_SIZE = 256
THREADS = 2
"""Of which the second makes it half as fast again; a whole sentence is made before any of it is heard."""

MAX_MODEL_SPEED = 1.5
"""How fast the model itself speaks: asked for more it comes ever shorter of it, as each phoneme takes a unit at least."""

WARM_UP_TEXT = "The quick brown fox."

# The model's own alphabet, which its makers published with it: the number of each symbol that speech can have.
_SYMBOLS = (
    {symbol: number for number, symbol in enumerate(";:,.!?", 1)}
    | {"—": 9, "…": 10, '"': 11, "(": 12, ")": 13, "“": 14, "”": 15, " ": 16, "\u0303": 17, "ʣ": 18, "ʥ": 19, "ʦ": 20, "ʨ": 21}
    | {"A": 24, "I": 25, "O": 31, "Q": 33, "S": 35, "T": 36, "W": 39, "Y": 41, "ᵊ": 42}
    | {symbol: number for number, symbol in enumerate("abcdef", 43)}
    | {symbol: number for number, symbol in enumerate("hijklmnopqrstuvwxyz", 50)}
    | {"ɑ": 69, "ɐ": 70, "ɒ": 71, "æ": 72, "β": 75, "ɔ": 76, "ɕ": 77, "ç": 78, "ɖ": 80, "ð": 81, "ʤ": 82, "ə": 83, "ɚ": 85, "ɛ": 86}
    | {"ɜ": 87, "ɟ": 90, "ɡ": 92, "ɥ": 99, "ɨ": 101, "ɪ": 102, "ʝ": 103, "ɯ": 110, "ɰ": 111, "ŋ": 112, "ɳ": 113, "ɲ": 114, "ɴ": 115}
    | {"ø": 116, "ɸ": 118, "θ": 119, "œ": 120, "ɹ": 123, "ɾ": 125, "ɻ": 126, "ʁ": 128, "ɽ": 129, "ʂ": 130, "ʃ": 131, "ʈ": 132}
    | {"ʧ": 133, "ʊ": 135, "ʋ": 136, "ʌ": 138, "ɣ": 139, "ɤ": 140, "χ": 142, "ʎ": 143, "ʒ": 147, "ʔ": 148, "ˈ": 156, "ˌ": 157}
    | {"ː": 158, "ʰ": 162, "ʲ": 164, "↓": 169, "→": 171, "↗": 172, "↘": 173, "ᵻ": 177}
)

LANGUAGES = {"a": "en-us", "b": "en-gb-x-rp", "e": "es", "f": "fr", "h": "hi", "i": "it", "p": "pt-br"}
"""The language of a voice, by the first letter of its name, as espeak knows it. Japanese and Chinese need other makers of phonemes."""

# espeak's way of writing English, in the order of replacement, as the model was taught it.
_ENGLISH = (
    ("n\u0329", "ᵊn"), ("l\u0329", "ᵊl"), ("\u0329", ""), ("aɪ", "I"), ("aʊ", "W"), ("eɪ", "A"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"),
    ("ʲ", "j"), ("r", "ɹ"), ("x", "k"), ("ɬ", "l"), ("ç", "k"), ("ɐ", "ə"),
)  # fmt: skip
_AMERICAN = (*_ENGLISH, ("oʊ", "O"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɚ", "əɹ"), ("ɪə", "iə"), ("ː", ""))
_BRITISH = (*_ENGLISH, ("əʊ", "Q"), ("eə", "ɛː"), ("iə", "ɪə"))
_OTHER_LANGUAGES = (("tʃ", "ʧ"), ("dʒ", "ʤ"), ("ts", "ʦ"), ("dz", "ʣ"))
_REPLACEMENTS = {"a": _AMERICAN, "b": _BRITISH}


def to_symbols(phonemes: str, language: str) -> str:
    """What espeak wrote, in the model's alphabet; `language` is its letter."""
    text = unicodedata.normalize("NFC", phonemes)
    for old, new in _REPLACEMENTS.get(language, _OTHER_LANGUAGES):
        text = text.replace(old, new)
    return re.sub(" +", " ", "".join(symbol for symbol in text if symbol in _SYMBOLS)).strip()[:MAX_TOKENS]


class _KokoroBackend:
    def __init__(self, start_command: StartVoice) -> None:
        try:
            from piper.phonemize_espeak import EspeakPhonemizer  # noqa: PLC0415 - missing, it is told instead of raised
        except ImportError:
            raise VoiceUnavailable(
                "Kokoro needs espeak, which comes with Piper, which is not installed: `pip install 'antiphon[piper]'` installs it."
            ) from None
        self._phonemizer = EspeakPhonemizer()
        model, *voices = map(Path, start_command.paths)
        self._rates_hz = RATE_HZ, start_command.rate_hz
        try:
            self._model = OnnxVoiceModel(model, "Round", THREADS)
            self._styles = {path.stem: np.fromfile(path, "<f4").reshape(-1, 1, STYLE_SIZE) for path in voices}
            first = next(iter(self._styles))
            self._gain = normalization_gain(
                self._sound(self._symbols(WARM_UP_TEXT, first), SynthesisJob(Synthesize(0, WARM_UP_TEXT, first, 1.0)))[0]
            )
        except Exception as error:
            raise VoiceUnavailable(f"The voice {model} can't be loaded: {error}") from None

    def synthesize(self, job: SynthesisJob) -> tuple[bytes, Iterable[tuple[str, int]]]:
        text, speed = job.request.text, job.request.speed
        phonemes = self._symbols(text, job.request.voice)
        sound, samples = self._sound(phonemes, job) if any(map(str.isalpha, phonemes)) else (np.zeros(0, np.float32), None)
        sound = change_tempo(sound, max(1.0, speed / MAX_MODEL_SPEED), RATE_HZ)
        return encode_speech(text, sound, phonemes, samples, gain=self._gain, rates_hz=self._rates_hz, speed=speed)

    def _symbols(self, text: str, voice: str) -> str:
        sentences = phonemize(self._phonemizer, LANGUAGES[voice[0]], text)
        return to_symbols(" ".join("".join(sentence) for sentence in sentences), voice[0])

    def _sound(self, phonemes: str, job: SynthesisJob) -> tuple[np.ndarray, list[int] | None]:
        styles = self._styles[job.request.voice]
        feeds: dict[str, Any] = {
            "tokens": np.array([[0, *(_SYMBOLS[symbol] for symbol in phonemes), 0]], np.int64),
            "style": styles[min(len(phonemes), len(styles) - 1)],
            "speed": np.array([min(job.request.speed, MAX_MODEL_SPEED)], np.float32),
        }
        sound, durations = self._model.run(feeds, job)
        if durations is None or len(durations) != len(phonemes) + 2:
            return sound, None
        first, *samples, last = (durations * FRAME_SAMPLES).astype(int).tolist()
        samples[0] += first
        samples[-1] += last
        return sound, samples


def _new_backend(start_command: StartVoice) -> VoiceBackend:
    return _KokoroBackend(start_command)


if __name__ == "__main__":
    serve(_new_backend)
