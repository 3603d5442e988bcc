"""The process of Kokoro's voices. Its phonemes come from espeak, which is in Piper and under the GPL."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from antiphon.speech.tts.child import SpeechPiece, SynthesisJob, VoiceUnavailable, serve
from antiphon.speech.tts.messages import StartVoice, Synthesize
from antiphon.speech.tts.onnx_voice import OnnxVoiceModel, encode_speech, fold_edges, load_phonemizer, normalization_gain, phonemize
from antiphon.speech.tts.tempo import change_tempo

RATE_HZ = 24_000
FRAME_SAMPLES = 600
"""Samples to a unit of a duration."""

MAX_TOKENS = 510
STYLE_SIZE = 256
THREADS = 2
"""The second makes it 1.5 times as fast; a whole sentence is synthesized before any of it plays."""

MAX_MODEL_SPEED = 1.5
"""The fastest that the model speaks accurately: above it each phoneme still takes at least one unit."""

WARM_UP_TEXT = "The quick brown fox."

# The token of each symbol in the model's vocabulary, as published in its `config.json`, without symbols that espeak
# never produces.
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
"""
espeak's name of a voice's language, by the first letter of the voice's name. Japanese and Chinese need other
phonemizers.
"""

# From espeak's phonemes to those that the model was trained on, in the order of replacement.
_ENGLISH = (
    ("n\u0329", "ᵊn"), ("l\u0329", "ᵊl"), ("\u0329", ""), ("aɪ", "I"), ("aʊ", "W"), ("eɪ", "A"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"),
    ("ʲ", "j"), ("r", "ɹ"), ("x", "k"), ("ɬ", "l"), ("ç", "k"), ("ɐ", "ə"),
)  # fmt: skip
_AMERICAN = (*_ENGLISH, ("oʊ", "O"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɚ", "əɹ"), ("ɪə", "iə"), ("ː", ""))
_BRITISH = (*_ENGLISH, ("əʊ", "Q"), ("eə", "ɛː"), ("iə", "ɪə"))
_OTHER_LANGUAGES = (("tʃ", "ʧ"), ("dʒ", "ʤ"), ("ts", "ʦ"), ("dz", "ʣ"))
_REPLACEMENTS = {"a": _AMERICAN, "b": _BRITISH}


def to_symbols(phonemes: str, language: str) -> str:
    """Espeak's phonemes in the model's symbols; `language` is a key of `LANGUAGES`."""
    text = unicodedata.normalize("NFC", phonemes)
    for old, new in _REPLACEMENTS.get(language, _OTHER_LANGUAGES):
        text = text.replace(old, new)
    return re.sub(" +", " ", "".join(symbol for symbol in text if symbol in _SYMBOLS)).strip()[:MAX_TOKENS]


class _KokoroBackend:
    def __init__(self, start_command: StartVoice) -> None:
        self._phonemizer = load_phonemizer("Kokoro")
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

    def synthesize(self, job: SynthesisJob) -> Iterable[SpeechPiece]:
        text, speed = job.request.text, job.request.speed
        phonemes = self._symbols(text, job.request.voice)
        sound, samples = self._sound(phonemes, job) if any(map(str.isalpha, phonemes)) else (np.zeros(0, np.float32), None)
        sound = change_tempo(sound, max(1.0, speed / MAX_MODEL_SPEED), RATE_HZ)
        return encode_speech(text, [sound], phonemes, samples, size=sound.size, gain=self._gain, rates_hz=self._rates_hz, speed=speed)

    def _symbols(self, text: str, voice: str) -> str:
        sentences = phonemize(self._phonemizer, LANGUAGES[voice[0]], text)
        return to_symbols(" ".join("".join(sentence) for sentence in sentences), voice[0])

    def _sound(self, phonemes: str, job: SynthesisJob) -> tuple[np.ndarray, list[int] | None]:
        styles = self._styles[job.request.voice]
        feeds: dict[str, np.ndarray] = {
            "tokens": np.array([[0, *(_SYMBOLS[symbol] for symbol in phonemes), 0]], np.int64),
            # A voice has a style for each length of a text, in tokens.
            "style": styles[min(len(phonemes), len(styles) - 1)],
            "speed": np.array([min(job.request.speed, MAX_MODEL_SPEED)], np.float32),
        }
        sound, durations = self._model.run(feeds, job)
        # Two more than phonemes: a zero stands at each end.
        if durations is None or len(durations) != len(phonemes) + 2:
            return sound, None
        return sound, fold_edges((durations * FRAME_SAMPLES).astype(int).tolist())


if __name__ == "__main__":
    serve(_KokoroBackend)
