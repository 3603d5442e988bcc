"""
`GET /v1/realtime?call_id=`: a server's WebSocket beside a call, on which it hears and says what the caller does.

It ends with the call, and the call not with it.
"""

from typing import Any

from antiphon.errors import ApiError
from antiphon.runtime.core.calls import Call
from antiphon.runtime.core.taps import Tap
from antiphon.server.realtime.client import RealtimeClient
from antiphon.wire.realtime.dialects import Dialect


class SidebandListener:
    """What a client beside a call may do to it: talk."""

    def __init__(self, call: Call, client: RealtimeClient) -> None:
        self._call = call
        self._client = client

    def receive_from_client(self, message: Any) -> None:
        """The client said something."""
        if self._call.driver is not None:
            self._call.driver.receive_from_client(message)

    def hang_up(self) -> None:
        """The client is gone, and the call goes on."""

    def pause(self) -> None:
        """The client is behind, which is no reason for the caller to wait; its connection is cut when it is too far."""

    def resume(self) -> None:
        """The client has caught up."""

    def shut_down(self, fault: ApiError) -> None:
        """The client may have no part in the call any more."""
        self._client.close(fault)


class _ClientEventTap:
    """Hears what a client beside a call says; what it is told was counted when the caller was told."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def on_client_event(self, event: Any) -> None:
        """The client said this."""
        self._tap.on_client_event(event)

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""


def sideband_client(call: Call, dialect: Dialect) -> RealtimeClient:
    """One more client of a call."""
    return RealtimeClient(dialect, _ClientEventTap(call.tap))
