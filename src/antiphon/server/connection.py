"""
An HTTP connection that hands a streaming route its transport.

The server underneath parses requests, frames the head and keeps the connection; between the head and the end of a stream the route
writes chunks straight to the transport, so that an event costs no `await`. Both meet through the request's scope.
"""

from typing import Any, Protocol

from antiphon.server.guards import Guarded
from antiphon.server.limits import BACKLOG_LIMIT_BYTES

SCOPE_KEY = "antiphon.connection"


class Paced(Protocol):
    """Whoever writes to the transport and can be told to hold on."""

    def pause(self) -> None:
        """The client is behind."""

    def resume(self) -> None:
        """The client has caught up."""


class Connection(Guarded):
    """One client's connection; `self.transport` is what a stream writes to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stream: Paced | None = None

    def on_message_begin(self) -> None:
        """A request begins: its scope learns where it came in."""
        super().on_message_begin()
        self.scope["extensions"] = {SCOPE_KEY: self}  # type: ignore[dict-item]  # ours, not one of ASGI's

    @property
    def is_overfull(self) -> bool:
        """Whether more waits for the client than for any that it is worth waiting for."""
        return self.flow.write_paused and self.transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES

    def stream_to(self, stream: Paced | None) -> None:
        """Tell `stream` from now on when the client falls behind or catches up; None for nobody."""
        self._stream = stream

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        super().pause_writing()
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has drained."""
        super().resume_writing()
        if self._stream is not None:
            self._stream.resume()


def of(scope: Any) -> Connection:
    """The connection that a request came in on."""
    connection: Connection = scope["extensions"][SCOPE_KEY]
    return connection
