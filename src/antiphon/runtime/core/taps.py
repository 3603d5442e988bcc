"""
Taps: observers of a session that the session does not know of.

Each decoded event from the client and each event to it passes here once, in order. A tap must be quick and must not
raise: every piece of audio waits for it.
"""

from collections.abc import Sequence
from typing import Protocol


class Tap(Protocol):
    """Observes the events of one session, of whichever protocol."""

    def on_client_event(self, event: object) -> None:
        """The client sent `event`."""

    def on_server_event(self, event: object) -> None:
        """`event` is being sent to the client."""


class Taps:
    """Several taps as one."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = tuple(taps)

    def on_client_event(self, event: object) -> None:
        for tap in self._taps:
            tap.on_client_event(event)

    def on_server_event(self, event: object) -> None:
        for tap in self._taps:
            tap.on_server_event(event)


def combine(taps: Sequence[Tap]) -> Tap:
    """All taps as one; a single tap is returned as it is."""
    return taps[0] if len(taps) == 1 else Taps(taps)
