"""How fast a client may send sound and pictures: as fast as it is spoken, and in bursts."""

import time
from collections.abc import Callable

ALLOWANCE_S = 10.0
"""How much sound may come at once, so that a network that stalled catches up."""

TIMES_AS_FAST = 2.0
"""How fast sound may come beyond that. What comes faster than it is spoken waits in the engine, so that this bounds that, too."""

PICTURE_S = 0.1
"""A picture comes with at least so much sound, or counts as much: clients send one or a few a second."""

BEHIND_S = 15.0
"""How long a client may go on sending faster: who replays a recording is slowed to the pace, and who never stops is no client."""


class SoundPace:
    """
    The sound of one session, against the clock.

    Args:
        clock: for durations, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        self._at = clock()
        self._fast_since: float | None = None

    def spend(self, sound_s: float, pictures: int = 0) -> float:
        """Count what came together; for how many seconds no more may come."""
        now = self._clock()
        came_s = max(sound_s, pictures * PICTURE_S)
        self._ahead_s = max(0.0, self._ahead_s - (now - self._at) * TIMES_AS_FAST) + came_s
        self._at = now
        if self._ahead_s <= ALLOWANCE_S:
            self._fast_since = None
            return 0.0
        if self._fast_since is None:
            self._fast_since = now
        return (self._ahead_s - ALLOWANCE_S) / TIMES_AS_FAST

    @property
    def patience_s(self) -> float:
        """How much longer the client may go on being too fast."""
        return BEHIND_S if self._fast_since is None else BEHIND_S - (self._clock() - self._fast_since)

    @property
    def is_hopeless(self) -> bool:
        """Whether the client has been too fast for too long."""
        return self.patience_s < 0
