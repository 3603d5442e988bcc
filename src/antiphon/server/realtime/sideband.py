"""
`GET /v1/realtime?call_id=`: a second client of a call, usually the app's server, which gets and sends the same events.

It is closed when the call ends. When it leaves, the call goes on.
"""

from antiphon.errors import ApiError
from antiphon.protocols.realtime.session import RealtimeMessage
from antiphon.runtime.core.calls import Call
from antiphon.runtime.core.taps import Tap
from antiphon.server.realtime.client import RealtimeClient
from antiphon.wire.realtime.dialects import Dialect


class SidebandListener:
    """Passes events on to the call, but never ends or slows it."""

    def __init__(self, call: Call, client: RealtimeClient) -> None:
        self._call = call
        self._client = client

    def receive_from_client(self, message: RealtimeMessage) -> None:
        if self._call.driver is not None:
            self._call.driver.receive_from_client(message)

    def hang_up(self) -> None:
        """Nothing to do: the call goes on."""

    def pause(self) -> None:
        """Nothing to do: the call doesn't wait; a client that falls too far behind is dropped by its connection."""

    def resume(self) -> None:
        """Nothing to do."""

    def shut_down(self, error: ApiError) -> None:
        self._client.close(error)


class _ClientEventTap:
    """Counts only the client's events: the server's were counted for the call already."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def on_client_event(self, event: object) -> None:
        self._tap.on_client_event(event)

    def on_server_event(self, event: object) -> None:
        pass


def sideband_client(call: Call, dialect: Dialect) -> RealtimeClient:
    """A client that gets the call's events in its own dialect; only what it sends itself is counted."""
    return RealtimeClient(dialect, _ClientEventTap(call.tap))
