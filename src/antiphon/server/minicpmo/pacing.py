"""How fast a client may send sound and pictures: as fast as it is spoken, and in bursts."""

import time
from collections.abc import Callable

BURST_S = 10.0
"""How much sound may come at once, so that a network that stalled catches up."""

MAX_SPEED = 2.0
"""How fast sound may come beyond that. What comes faster than it is spoken waits in the engine, so that this bounds that, too."""

IMAGE_COST_S = 0.1
"""A picture comes with at least so much sound, or counts as much: clients send one or a few a second."""

MAX_TOO_FAST_S = 15.0
"""How long a client may go on sending faster: who replays a recording is slowed to the pace, and who never stops is no client."""


class AudioPacer:
    """
    The sound of one session, against the clock.

    Args:
        clock: for durations, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        self._updated_at = clock()
        self._too_fast_since: float | None = None

    def consume(self, audio_s: float, images: int = 0) -> float:
        """Count what came together; for how many seconds no more may come."""
        now = self._clock()
        came_s = max(audio_s, images * IMAGE_COST_S)
        self._ahead_s = max(0.0, self._ahead_s - (now - self._updated_at) * MAX_SPEED) + came_s
        self._updated_at = now
        if self._ahead_s <= BURST_S:
            self._too_fast_since = None
            return 0.0
        if self._too_fast_since is None:
            self._too_fast_since = now
        return (self._ahead_s - BURST_S) / MAX_SPEED

    @property
    def patience_s(self) -> float:
        """How much longer the client may go on being too fast."""
        return MAX_TOO_FAST_S if self._too_fast_since is None else MAX_TOO_FAST_S - (self._clock() - self._too_fast_since)

    @property
    def is_over_limit(self) -> bool:
        """Whether the client has been too fast for too long."""
        return self.patience_s < 0
