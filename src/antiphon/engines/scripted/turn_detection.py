"""
Turn detection without a model: by the level of the audio, or by the script's times.

A detector gets all audio in order, and returns where speech starts and ends. Positions are samples of the
conversation's clock.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from antiphon.audio import SAMPLE_BYTES, peak
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.script import ScheduledSpeech

FRAMES_PER_SECOND = 100
FRAME_MS = 1000 // FRAMES_PER_SECOND

ONSET_FRAMES = 3
"""So many loud frames in a row are speech; a click has fewer."""

FULL_SCALE = 32_768
MIN_THRESHOLD_DB = -60
"""The level that threshold 0 stands for; at 0.5 it is -40 dB, at 1 -20."""

THRESHOLD_RANGE_DB = 40

SILENCE_MS = {"high": 500, "low": 1200}
"""How long `semantic_vad` waits, by eagerness: without a model, silence is all there is to go by."""

DEFAULT_SILENCE_MS = 800


class SpeechEdge(NamedTuple):
    """Speech starts or ends at a sample."""

    is_start: bool
    at_sample: int


class ScriptedVad(Protocol):
    """Tells speech from silence."""

    def configure(self, rate_hz: int, detection: TurnDetection) -> None:
        """Set the rate and the settings for the audio that follows."""

    def feed(self, pcm: bytes, at_sample: int) -> list[SpeechEdge]:
        """The edges in more audio, in order, starts and ends alternating."""

    def reset(self) -> None:
        """Drop open speech; the audio goes on, perhaps at a later position."""


class LevelVad:
    """Takes loud audio for speech."""

    def __init__(self) -> None:
        self._level = 0.0
        self._rate_hz = 0
        self._frame_samples = 0
        self._padding_samples = 0
        self._silence_frames = 1
        self._is_speech = False
        # Frames in a row that contradict `_is_speech`.
        self._run_frames = 0
        self._partial_frame = b""

    def configure(self, rate_hz: int, detection: TurnDetection) -> None:
        silence_ms = detection.silence_duration_ms
        if detection.kind == "semantic_vad":
            silence_ms = SILENCE_MS.get(detection.eagerness, DEFAULT_SILENCE_MS)
        self._level = FULL_SCALE * 10 ** ((MIN_THRESHOLD_DB + THRESHOLD_RANGE_DB * detection.threshold) / 20)
        self._padding_samples = detection.prefix_padding_ms * rate_hz // 1000
        self._silence_frames = max(1, -(-silence_ms // FRAME_MS))
        if rate_hz != self._rate_hz:
            self._rate_hz, self._frame_samples, self._partial_frame = rate_hz, rate_hz // FRAMES_PER_SECOND, b""

    def feed(self, pcm: bytes, at_sample: int) -> list[SpeechEdge]:
        audio = memoryview(self._partial_frame + pcm)
        end = at_sample - len(self._partial_frame) // SAMPLE_BYTES
        size = self._frame_samples * SAMPLE_BYTES
        whole = len(audio) - len(audio) % size
        edges = []
        for start in range(0, whole, size):
            end += self._frame_samples
            if (edge := self._next_edge(peak(audio[start : start + size]) > self._level, end)) is not None:
                edges.append(edge)
        self._partial_frame = bytes(audio[whole:])
        return edges

    def _next_edge(self, is_loud: bool, end: int) -> SpeechEdge | None:
        self._run_frames = self._run_frames + 1 if is_loud != self._is_speech else 0
        if self._run_frames < (self._silence_frames if self._is_speech else ONSET_FRAMES):
            return None
        first = end - self._run_frames * self._frame_samples
        self._run_frames, self._is_speech = 0, is_loud
        return SpeechEdge(True, first - self._padding_samples) if is_loud else SpeechEdge(False, end)

    def reset(self) -> None:
        self._is_speech, self._run_frames, self._partial_frame = False, 0, b""


class ScheduledVad:
    """Takes the script's times for speech; speech that began in skipped audio is left out."""

    def __init__(self, speech: Sequence[ScheduledSpeech]) -> None:
        self._upcoming_speech = list(reversed(speech))
        self._is_speech = False
        self._rate_hz = 0

    def configure(self, rate_hz: int, _detection: TurnDetection) -> None:
        self._rate_hz = rate_hz

    def feed(self, pcm: bytes, at_sample: int) -> list[SpeechEdge]:
        until = at_sample + len(pcm) // SAMPLE_BYTES
        edges = []
        while (edge := self._next_edge()) is not None and edge.at_sample <= until:
            if edge.is_start and edge.at_sample < at_sample:
                self._upcoming_speech.pop()
                continue
            self._is_speech = edge.is_start
            edges.append(edge)
            if not edge.is_start:
                self._upcoming_speech.pop()
        return edges

    def _next_edge(self) -> SpeechEdge | None:
        if not self._upcoming_speech:
            return None
        speech = self._upcoming_speech[-1]
        return SpeechEdge(not self._is_speech, (speech.until_ms if self._is_speech else speech.at_ms) * self._rate_hz // 1000)

    def reset(self) -> None:
        self._is_speech = False  # `feed` drops the open speech, as it began before the audio that follows
