"""The client of one response of a connection: each event is one text message."""

import time
from collections.abc import Callable, Mapping

from msgspec import UNSET

from antiphon.errors import ApiError
from antiphon.server.http.errors import retry_headers
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.websocket_mode.memory import Lane
from antiphon.wire.codec.types import Extra, Unknown
from antiphon.wire.responses.events import (
    OPENING_EVENTS,
    TERMINAL_EVENTS,
    UNNUMBERED_EVENTS,
    ErrorDetail,
    ErrorEvent,
    OutputItemDone,
    ResponseCreated,
    StreamEvent,
)
from antiphon.wire.responses.profiles import EventEncoder


def error_event(error: ApiError, lane: Lane, limits: Mapping[str, str]) -> ErrorEvent:
    """
    The event of an error, as a WebSocket has it.

    Args:
        limits: headers that an HTTP response would have.
    """
    headers = retry_headers(error) | dict(limits)
    detail = ErrorDetail(type=error.type, code=error.code, message=error.message, param=error.param, headers=headers or UNSET)
    return ErrorEvent(status=error.status, stream_id=UNSET if lane is None else lane, error=detail)


class OutgoingEvents:
    """
    Sends the events of one response.

    Args:
        on_created: called with the response's id behind `response.created`.
        on_end: called behind the terminal event, before it leaves: the client may continue the response at once.
        limits: headers for an error.

    Attributes:
        error: what the response ended with.
        first_token_at: when the first event with output came, by `time.perf_counter`.
        last_event: the latest event.
        event_count: how many events were sent.
        output_bytes: the JSON of the finished items.
        has_sent_error: whether one of them was an `error`.
    """

    def __init__(
        self,
        encoder: EventEncoder,
        websocket: ServerWebSocket,
        lane: Lane,
        *,
        on_created: Callable[[str], None],
        on_end: Callable[[StreamEvent], None],
        limits: Callable[[], Mapping[str, str]],
    ) -> None:
        self.error: ApiError | None = None
        self.first_token_at: float | None = None
        self.last_event: StreamEvent | None = None
        self.event_count = self.output_bytes = 0
        self.has_sent_error = False
        self._encoder = encoder
        self._websocket = websocket
        self._lane = lane
        self._on_created = on_created
        self._on_end = on_end
        self._limits = limits
        self._pending_events: list[StreamEvent] = []

    def send(self, event: StreamEvent) -> None:
        # OpenAI's API lacks these events, and the profile that shows them has no WebSocket (docs/decisions/0036).
        if not isinstance(event, UNNUMBERED_EVENTS):
            self._pending_events.append(event)

    def flush(self) -> None:
        """Send the pending events in one write. `close` comes before it, so an `error` among them has its status."""
        batch, self._pending_events = self._pending_events, []
        if not batch:
            return
        for event in batch:
            text = self._encode(event)
            self.last_event = event
            self._websocket.send(text)
            if isinstance(event, OutputItemDone):
                self.output_bytes += len(text)
            elif isinstance(event, ResponseCreated):
                self._on_created(event.response.id)
            elif isinstance(event, TERMINAL_EVENTS):
                self._on_end(event)
        self.event_count += len(batch)
        if self.first_token_at is None and not all(isinstance(event, OPENING_EVENTS) for event in batch):
            self.first_token_at = time.perf_counter()
        self._websocket.flush()

    def close(self, error: ApiError | None) -> None:
        self.error = error

    def _encode(self, event: StreamEvent) -> bytes:
        if isinstance(event, ErrorEvent):
            self.has_sent_error = True
            event = self._with_status(event)
        elif self._lane is not None:
            if isinstance(event, Unknown):
                event = Unknown(extra=Extra({**event.extra, "stream_id": self._lane}))
            else:
                event.stream_id = self._lane
        return self._encoder.encode_json(event)

    def _with_status(self, event: ErrorEvent) -> ErrorEvent:
        """An error of the stream, which has both shapes, in that of a WebSocket."""
        if self.error is None:  # an upstream's own event
            return ErrorEvent(sequence_number=event.sequence_number, stream_id=self._lane or UNSET, error=event.error)
        websocket_error = error_event(self.error, self._lane, self._limits())
        websocket_error.sequence_number = event.sequence_number
        if websocket_error.error and event.error:
            websocket_error.error.code = event.error.code  # never null within a stream
        return websocket_error
