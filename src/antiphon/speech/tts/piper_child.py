"""The process of Piper's voices. Piper is under the GPL, so only processes of voices load it."""

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from antiphon.speech.tts.child import SynthesisJob, VoiceUnavailable, serve
from antiphon.speech.tts.messages import StartVoice, Synthesize
from antiphon.speech.tts.onnx_voice import (
    OnnxVoiceModel,
    Phonemizer,
    encode_speech,
    fold_edges,
    load_phonemizer,
    normalization_gain,
    phonemize,
)
from antiphon.speech.tts.tempo import change_tempo

WARM_UP_TEXT = "The quick brown fox jumps over the lazy dog."
HOP_SAMPLES = 256
"""Samples to a unit of a duration, unless a voice's configuration says otherwise."""

BOS, EOS, PAD = "^", "$", "_"
"""The symbols at the beginning and the end of a text, and between all phonemes."""


class _Voice:
    def __init__(self, path: Path, phonemizer: Phonemizer, rate_hz: int) -> None:
        self._settings = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))
        if self._settings.get("phoneme_type", "espeak") != "espeak":
            raise ValueError(f"its phoneme type '{self._settings['phoneme_type']}' is not supported")
        self._ids: dict[str, list[int]] = self._settings["phoneme_id_map"]
        self._phonemizer = phonemizer
        self._rates_hz = int(self._settings["audio"]["sample_rate"]), rate_hz
        self._model = OnnxVoiceModel(path, "Ceil")
        self._gain = 1.0
        self._gain = normalization_gain(self._sound(self._phonemes(WARM_UP_TEXT), SynthesisJob(Synthesize(0, WARM_UP_TEXT, "", 1.0)))[0])

    def synthesize(self, job: SynthesisJob) -> tuple[bytes, Iterable[tuple[str, int]]]:
        text, speed = job.request.text, job.request.speed
        phonemes = self._phonemes(text)
        sound, samples = self._sound(phonemes, job) if any(map(str.isalpha, phonemes)) else (np.zeros(0, np.float32), None)
        # The model's own `length_scale` isn't used for speed: each phoneme and gap keeps at least one unit, so 4x comes
        # out as 2x.
        sound = change_tempo(sound, speed, self._rates_hz[0])
        return encode_speech(text, sound, phonemes, samples, gain=self._gain, rates_hz=self._rates_hz, speed=speed)

    def _phonemes(self, text: str) -> list[str]:
        sentences = phonemize(self._phonemizer, self._settings["espeak"]["voice"], text)
        return [phoneme for phoneme in chain.from_iterable([*sentence, " "] for sentence in sentences) if phoneme in self._ids][:-1]

    def _sound(self, phonemes: list[str], job: SynthesisJob) -> tuple[np.ndarray, list[int] | None]:
        padding = self._ids[PAD]
        runs = [[*self._ids[phoneme], *padding] for phoneme in (BOS, *phonemes)] + [self._ids[EOS]]
        ids = np.array([list(chain.from_iterable(runs))], np.int64)
        inference = self._settings.get("inference", {})
        scales = [inference.get("noise_scale", 0.667), inference.get("length_scale", 1.0), inference.get("noise_w", 0.8)]
        feeds: dict[str, np.ndarray] = {
            "input": ids,
            "input_lengths": np.array([ids.shape[1]], np.int64),
            "scales": np.array(scales, np.float32),
        }
        if self._settings.get("num_speakers", 1) > 1:
            feeds["sid"] = np.array([self._settings.get("default_speaker_id", 0)], np.int64)
        sound, durations = self._model.run(feeds, job)
        if durations is None or len(durations) != ids.shape[1]:
            return sound, None
        ends = np.cumsum([len(run) for run in runs])
        samples = np.add.reduceat(durations * self._settings.get("hop_length", HOP_SAMPLES), [0, *ends[:-1]]).astype(int).tolist()
        return sound, fold_edges(samples)


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

    def synthesize(self, job: SynthesisJob) -> tuple[bytes, Iterable[tuple[str, int]]]:
        return self._voice(job.request.voice).synthesize(job)

    def _voice(self, name: str) -> _Voice:
        if name not in self._voices:
            self._voices[name] = _Voice(self._paths[name], self._phonemizer, self._rate_hz)
        return self._voices[name]


if __name__ == "__main__":
    serve(_PiperBackend)
