"""What the clients of all live protocols have in common."""

from typing import Any, Protocol

REASON_LIMIT_BYTES = 123
"""The most that a WebSocket's close frame has room for, after its code."""


class ClientListener(Protocol):
    """Whoever takes what the client says and does: its session's driver, as a rule."""

    def receive_from_client(self, message: Any) -> None:
        """The client said something."""

    def hang_up(self) -> None:
        """The client is gone."""

    def pause(self) -> None:
        """The client is behind."""

    def resume(self) -> None:
        """The client has caught up."""


def close_reason(text: str) -> str:
    """A text as a close frame has room for it."""
    return text.encode()[:REASON_LIMIT_BYTES].decode(errors="ignore")
