"""
Turn detection without a model: by the level of the sound, or by the script's clock.

A gate is given all sound in order, and says where speech starts and where it is over. Places are samples of the conversation's clock.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from antiphon.audio import SAMPLE_BYTES, peak
from antiphon.engine_api.options import TurnDetection
from antiphon.engines.scripted.script import Stretch

FRAMES_PER_SECOND = 100
FRAME_MS = 1000 // FRAMES_PER_SECOND

ONSET_FRAMES = 3
"""Loud frames in a row that are speech; a click has fewer."""

FULL_SCALE = 32_768
FLOOR_DB = -60
"""The level that threshold 0 stands for; at 0.5 it is -40 dB, at 1 -20."""

STEP_DB = 40

SILENCE_MS = {"high": 500, "low": 1200}
"""How long `semantic_vad` waits, by eagerness; a gate that understands nothing has only the silence to go by."""

SILENCE_MS_ELSE = 800


class Edge(NamedTuple):
    """Speech starts, or is over, `at` a sample."""

    starts: bool
    at: int


class Gate(Protocol):
    """Tells speech from silence."""

    def configure(self, rate_hz: int, detection: TurnDetection) -> None:
        """How the sound from here on is to be taken."""

    def hear(self, pcm: bytes, at: int) -> list[Edge]:
        """More sound, which begins `at` a sample; the edges in it, in order, starts and ends by turns."""

    def drop(self) -> None:
        """Whatever was going on is over; the sound goes on, perhaps from a later place."""


class LevelGate:
    """Takes what is loud for speech."""

    def __init__(self) -> None:
        self._level = 0.0
        self._rate_hz = 0
        self._frame = 0
        self._padding = 0
        self._silence_frames = 1
        self._speaks = False
        # Frames in a row that say otherwise than `_speaks` does.
        self._run = 0
        self._rest = b""

    def configure(self, rate_hz: int, detection: TurnDetection) -> None:
        """How loud speech is, how long the silence after it, and how much before it is part of it."""
        silence_ms = detection.silence_duration_ms
        if detection.kind == "semantic_vad":
            silence_ms = SILENCE_MS.get(detection.eagerness, SILENCE_MS_ELSE)
        self._level = FULL_SCALE * 10 ** ((FLOOR_DB + STEP_DB * detection.threshold) / 20)
        self._padding = detection.prefix_padding_ms * rate_hz // 1000
        self._silence_frames = max(1, -(-silence_ms // FRAME_MS))
        if rate_hz != self._rate_hz:
            self._rate_hz, self._frame, self._rest = rate_hz, rate_hz // FRAMES_PER_SECOND, b""

    def hear(self, pcm: bytes, at: int) -> list[Edge]:
        """The edges in the frames that are whole; the rest of the sound waits."""
        sound = memoryview(self._rest + pcm)
        end = at - len(self._rest) // SAMPLE_BYTES
        size = self._frame * SAMPLE_BYTES
        whole = len(sound) - len(sound) % size
        edges = []
        for start in range(0, whole, size):
            end += self._frame
            if (edge := self._step(peak(sound[start : start + size]) > self._level, end)) is not None:
                edges.append(edge)
        self._rest = bytes(sound[whole:])
        return edges

    def _step(self, is_loud: bool, end: int) -> Edge | None:
        self._run = self._run + 1 if is_loud != self._speaks else 0
        if self._run < (self._silence_frames if self._speaks else ONSET_FRAMES):
            return None
        first = end - self._run * self._frame
        self._run, self._speaks = 0, is_loud
        return Edge(True, first - self._padding) if is_loud else Edge(False, end)

    def drop(self) -> None:
        """Silence, and a new frame begins."""
        self._speaks, self._run, self._rest = False, 0, b""


class ScheduledGate:
    """Takes for speech what the script says is speech; what began while nobody listened is none."""

    def __init__(self, speech: Sequence[Stretch]) -> None:
        self._coming = list(reversed(speech))
        self._speaks = False
        self._rate_hz = 0

    def configure(self, rate_hz: int, _detection: TurnDetection) -> None:
        """How many samples there are to the clock."""
        self._rate_hz = rate_hz

    def hear(self, pcm: bytes, at: int) -> list[Edge]:
        """The edges that the clock passes."""
        until = at + len(pcm) // SAMPLE_BYTES
        edges = []
        while (edge := self._next()) is not None and edge.at <= until:
            if edge.starts and edge.at < at:
                self._coming.pop()
                continue
            self._speaks = edge.starts
            edges.append(edge)
            if not edge.starts:
                self._coming.pop()
        return edges

    def _next(self) -> Edge | None:
        if not self._coming:
            return None
        stretch = self._coming[-1]
        return Edge(not self._speaks, (stretch.until_ms if self._speaks else stretch.at_ms) * self._rate_hz // 1000)

    def drop(self) -> None:
        """The stretch that had begun is none: it began before whatever is heard next."""
        self._speaks = False
