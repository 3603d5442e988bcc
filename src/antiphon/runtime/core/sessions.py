"""The sessions under way, which are to end well when the server does, and when whoever opened them may no more."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Protocol

from antiphon.errors import ClientMistake, Fault, OurFault
from antiphon.records import KeyRecord

RETRY_AFTER_S = 5
"""Time enough for another server to have taken over."""


class Halting(Protocol):
    """What can be told to end; a driver can."""

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
        self._drivers: dict[Halting, str | None] = {}

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
    def during(self, driver: Halting, key: KeyRecord | None = None) -> Iterator[None]:
        """
        Count a session from its beginning to its end.

        Args:
            key: that it is to end with; None for what needs no key, or is over soon.
        """
        self._drivers[driver] = None if key is None else key.id
        try:
            yield
        finally:
            del self._drivers[driver]

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys that sessions under way end with."""
        return frozenset(key_id for key_id in self._drivers.values() if key_id is not None)

    def revoke(self, key_ids: Collection[str]) -> None:
        """End the sessions of keys that open nothing any more."""
        for driver in [driver for driver, key_id in self._drivers.items() if key_id in key_ids]:
            self._drivers[driver] = None  # told once
            driver.halt(_revoked())

    def halt(self) -> None:
        """End them all, each with its protocol's own words for it."""
        for driver in tuple(self._drivers):
            driver.halt(_stopping())


def _revoked() -> Fault:
    return ClientMistake("The API key that this session was opened with was revoked, or has expired.", status=401, code="invalid_api_key")


def _stopping() -> Fault:
    return OurFault(
        "The server is shutting down. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="server_shutting_down",
        retry_after_s=RETRY_AFTER_S,
    )
