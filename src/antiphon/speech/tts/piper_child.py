"""The process of Piper's voices. Piper is under the GPL, so only processes of voices load it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from antiphon.speech.tts.child import SpeechPiece, SynthesisJob, VoiceUnavailable, serve
from antiphon.speech.tts.messages import StartVoice, Synthesize
from antiphon.speech.tts.onnx_voice import (
    Phonemizer,
    encode_speech,
    fold_edges,
    load_phonemizer,
    normalization_gain,
    phonemize,
)
from antiphon.speech.tts.piper_model import PiperModel
from antiphon.speech.tts.tempo import change_tempo_of_pieces, size_at_tempo

WARM_UP_TEXT = "The quick brown fox jumps over the lazy dog."
BOS, EOS, PAD = "^", "$", "_"
"""The symbols at the beginning and the end of a text, and between all phonemes."""

# Of what was tried (a comma, no end symbol, "and"), it has the smallest step of the pitch at the joint (docs/decisions/0045).
CONTINUATION = " ə"
"""
What stands for the words that will follow a part of a sentence: with it, the melody doesn't fall. Its own sound is left
out.
"""


class _Voice:
    def __init__(self, path: Path, phonemizer: Phonemizer, rate_hz: int) -> None:
        self._settings = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))
        if self._settings.get("phoneme_type", "espeak") != "espeak":
            raise ValueError(f"its phoneme type '{self._settings['phoneme_type']}' is not supported")
        self._ids: dict[str, list[int]] = self._settings["phoneme_id_map"]
        self._phonemizer = phonemizer
        self._rates_hz = int(self._settings["audio"]["sample_rate"]), rate_hz
        self._speaker: dict[str, np.ndarray] = {}
        if self._settings.get("num_speakers", 1) > 1:
            self._speaker["sid"] = np.array([self._settings.get("default_speaker_id", 0)], np.int64)
        self._model = PiperModel(path, self._speaker)
        warm_up = self._feeds(self._runs(self._phonemes(WARM_UP_TEXT)))
        self._gain = normalization_gain(self._model.calibrate(warm_up, SynthesisJob(Synthesize(0, WARM_UP_TEXT, "", 1.0))))

    def synthesize(self, job: SynthesisJob) -> Iterator[SpeechPiece]:
        request = job.request
        phonemes = self._phonemes(request.text)
        rendering = self._render(phonemes, job) if any(map(str.isalpha, phonemes)) else _Rendering((), 0, None)
        # The model's own `length_scale` isn't used for speed: each phoneme and gap keeps at least one unit, so 4x comes
        # out as 2x.
        return encode_speech(
            request.text,
            change_tempo_of_pieces(rendering.sounds, rendering.size, request.speed, self._rates_hz[0]),
            phonemes,
            rendering.samples,
            size=size_at_tempo(rendering.size, request.speed),
            gain=self._gain,
            rates_hz=self._rates_hz,
            speed=request.speed,
            continues=request.continues,
        )

    def _phonemes(self, text: str) -> list[str]:
        sentences = phonemize(self._phonemizer, self._settings["espeak"]["voice"], text)
        return [phoneme for phoneme in chain.from_iterable([*sentence, " "] for sentence in sentences) if phoneme in self._ids][:-1]

    def _runs(self, phonemes: Sequence[str]) -> list[list[int]]:
        """The ids of the begin symbol, each phoneme and the end symbol."""
        padding = self._ids[PAD]
        return [[*self._ids[phoneme], *padding] for phoneme in (BOS, *phonemes)] + [self._ids[EOS]]

    def _feeds(self, runs: Iterable[Sequence[int]]) -> dict[str, np.ndarray]:
        ids = np.array([list(chain.from_iterable(runs))], np.int64)
        inference = self._settings.get("inference", {})
        scales = [inference.get("noise_scale", 0.667), inference.get("length_scale", 1.0), inference.get("noise_w", 0.8)]
        return {
            "input": ids,
            "input_lengths": np.array([ids.shape[1]], np.int64),
            "scales": np.array(scales, np.float32),
            **self._speaker,
        }

    def _render(self, phonemes: list[str], job: SynthesisJob) -> "_Rendering":
        """The sound of the phonemes as it is between the words around them, which are left out of it."""
        request = job.request
        before = [*self._phonemes(request.before), " "] if request.before else []
        after = [each for each in CONTINUATION if each in self._ids] if request.continues else []
        runs = self._runs([*before, *phonemes, *after])
        latents, durations = self._model.encode(self._feeds(runs), job)
        ends = np.cumsum([len(run) for run in runs])
        if durations is None or len(durations) != ends[-1]:
            # Without durations it is not known where the context ends, so the text is spoken alone.
            if before or after:
                latents, _ = self._model.encode(self._feeds(self._runs(phonemes)), job)
            (sound,) = self._model.decode(latents, 0, None, job)
            return _Rendering((sound,), sound.size, None)
        frames = np.add.reduceat(durations, [0, *ends[:-1]])
        # The symbols at both ends belong to the text, unless other words stand between it and them.
        first, last = (1 + len(before) if before else 0), (-1 - len(after) if after else len(frames))
        own = frames[first:last]
        start = int(frames[:first].sum())
        sounds = self._model.decode(latents, start, start + int(own.sum()), job)
        samples = fold_edges((own * self._model.hop).tolist(), has_begin=not before, has_end=not after)
        return _Rendering(sounds, int(own.sum()) * self._model.hop, samples)


class _Rendering(NamedTuple):
    """
    Sound in pieces.

    Attributes:
        size: the samples of all pieces.
        samples: of each phoneme; None if the voice doesn't report them.
    """

    sounds: Iterable[np.ndarray]
    size: int
    samples: list[int] | None


class _PiperBackend:
    def __init__(self, start_command: StartVoice) -> None:
        self._phonemizer = load_phonemizer("The voice")
        self._paths = {Path(path).stem: Path(path) for path in start_command.paths}
        self._rate_hz = start_command.rate_hz
        self._voices: dict[str, _Voice] = {}
        try:
            self._voice(next(iter(self._paths)))
        except Exception as error:
            raise VoiceUnavailable(f"The voice {start_command.paths[0]} can't be loaded: {error}") from None

    def synthesize(self, job: SynthesisJob) -> Iterable[SpeechPiece]:
        return self._voice(job.request.voice).synthesize(job)

    def _voice(self, name: str) -> _Voice:
        if name not in self._voices:
            self._voices[name] = _Voice(self._paths[name], self._phonemizer, self._rate_hz)
        return self._voices[name]


if __name__ == "__main__":
    serve(_PiperBackend)
