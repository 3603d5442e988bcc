"""Streams of responses that are stored: a client that has seen the id may delete the response while it is made."""

from collections.abc import Collection

from antiphon.errors import response_deleted
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.sessions import TableEntry
from antiphon.wire.responses.events import StreamEvent

ResponseDriver = Driver[ResolvedRequest, StreamEvent]


class StoredStreams:
    """The responses that this process makes for a connection."""

    def __init__(self) -> None:
        self._drivers: dict[str, ResponseDriver] = {}

    @property
    def stored_ids(self) -> Collection[str]:
        """Those that are in the store, and not only to be stored at their end."""
        return [response_id for response_id, driver in self._drivers.items() if driver.is_stored]

    def track(self, response_id: str, driver: ResponseDriver) -> TableEntry[str, ResponseDriver]:
        """Let `stop` find the response while this is entered."""
        return TableEntry(self._drivers, response_id, driver)

    def stop(self, response_id: str) -> None:
        """End a response that was deleted; does nothing where it is not made here."""
        if (driver := self._drivers.get(response_id)) is not None:
            driver.shut_down(response_deleted())
