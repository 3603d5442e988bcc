"""The sessions under way, which are to end well when the server does, and when whoever opened them may no more."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Protocol

from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.records import KeyRecord

RETRY_AFTER_S = 5
"""Time enough for another server to have taken over."""


class Stoppable(Protocol):
    """What can be told to end; a driver can."""

    def shut_down(self, fault: ApiError) -> None:
        """End, and tell the client why while it still can be told."""


class LiveSessions:
    """
    Sessions under way.

    Attributes:
        is_draining: whether they are to be the last.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._drivers: dict[Stoppable, str | None] = {}

    def __len__(self) -> int:
        return len(self._drivers)

    def check_admission(self) -> None:
        """
        Ask whether there may be one more.

        Raises:
            ServerError: the server is about to stop.
        """
        if self.is_draining:
            raise _shutting_down_error()

    @contextlib.contextmanager
    def track(self, driver: Stoppable, key: KeyRecord | None = None) -> Iterator[None]:
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
            driver.shut_down(_key_revoked_error())

    def shut_down(self) -> None:
        """End them all, each with its protocol's own words for it."""
        for driver in tuple(self._drivers):
            driver.shut_down(_shutting_down_error())


def _key_revoked_error() -> ApiError:
    return ClientError("The API key that this session was opened with was revoked, or has expired.", status=401, code="invalid_api_key")


def _shutting_down_error() -> ApiError:
    return ServerError(
        "The server is shutting down. Please try again.",
        status=503,
        type="service_unavailable_error",
        code="server_shutting_down",
        retry_after_s=RETRY_AFTER_S,
    )
