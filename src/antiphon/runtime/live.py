"""The sessions under way, which are to end well when the server does."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from antiphon.errors import Fault, OurFault

RETRY_AFTER_S = 5
"""Time enough for another server to have taken over."""


class Halting(Protocol):
    """What can be told that the server stops; a driver can."""

    def halt(self, fault: Fault) -> None:
        """End, and tell the client why while it still can be told."""


class Live:
    """
    Sessions under way.

    Attributes:
        is_draining: whether they are to be the last.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._drivers: set[Halting] = set()

    def __len__(self) -> int:
        return len(self._drivers)

    def admit(self) -> None:
        """
        Ask whether there may be one more.

        Raises:
            OurFault: the server is about to stop.
        """
        if self.is_draining:
            raise _stopping()

    @contextlib.contextmanager
    def during(self, driver: Halting) -> Iterator[None]:
        """Count a session from its beginning to its end."""
        self._drivers.add(driver)
        try:
            yield
        finally:
            self._drivers.discard(driver)

    def halt(self) -> None:
        """End them all, each with its protocol's own words for it."""
        for driver in tuple(self._drivers):
            driver.halt(_stopping())


def _stopping() -> Fault:
    return OurFault(
        "The server is shutting down. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="server_shutting_down",
        retry_after_s=RETRY_AFTER_S,
    )
