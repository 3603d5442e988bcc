"""Limits how fast a client may send audio and images: at twice real time, beyond a burst."""

import time
from collections.abc import Callable

BURST_S = 10.0
"""How much audio may come at once, for a network that stalled and catches up."""

MAX_SPEED = 2.0
"""
Speed of audio beyond the burst. What comes faster than real time waits in the engine, so this limits that queue too.
"""

IMAGE_COST_S = 0.1
"""How much audio an image counts as, where less came with it: clients send one or a few images a second."""

MAX_TOO_FAST_S = 15.0
"""
How long a client may stay too fast: one that replays a recording is only slowed down, one that never stops is dropped.
"""


class AudioPacer:
    """
    The audio of one session against the clock.

    Args:
        clock: in seconds, for durations.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        self._updated_at = clock()
        self._too_fast_since: float | None = None

    def consume(self, audio_s: float, images: int = 0) -> float:
        """Count what arrived together; returns for how many seconds to stop reading."""
        now = self._clock()
        # The larger of the two, as the images of an event belong to the time of its audio.
        cost_s = max(audio_s, images * IMAGE_COST_S)
        self._ahead_s = max(0.0, self._ahead_s - (now - self._updated_at) * MAX_SPEED) + cost_s
        self._updated_at = now
        if self._ahead_s <= BURST_S:
            self._too_fast_since = None
            return 0.0
        if self._too_fast_since is None:
            self._too_fast_since = now
        return (self._ahead_s - BURST_S) / MAX_SPEED

    @property
    def patience_s(self) -> float:
        """For how many seconds more the client may stay too fast; negative once it was for too long."""
        return MAX_TOO_FAST_S if self._too_fast_since is None else MAX_TOO_FAST_S - (self._clock() - self._too_fast_since)

    @property
    def is_over_limit(self) -> bool:
        """Whether the client has been too fast for too long."""
        return self.patience_s < 0
