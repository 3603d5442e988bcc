"""What is counted and logged of a Realtime session, however its client is connected."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from antiphon.errors import ServerError, shorten
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.core.session_metrics import RealtimeSessionMetrics
from antiphon.runtime.core.taps import Tap, combine
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode

MAX_LOGGED_CHARS = 10_000
"""The most characters of an event that are logged: some carry sound."""


class HasEndReason(Protocol):
    """
    Whose session it is.

    Attributes:
        end: why it ended, in one of few words.
    """

    end_reason: str


def realtime_taps(service: Service, model: ServedModel, recordings: Sequence[RecordingTap] = ()) -> tuple[RealtimeSessionMetrics, Tap]:
    """What counts a session, and all that listens in on it."""
    counted = RealtimeSessionMetrics(service.metrics, service.metrics.label(model.name, model.family))
    taps: list[Tap] = [counted, *recordings, *([EventLogTap()] if service.config.logging.content else [])]
    return counted, combine(taps)


@contextlib.contextmanager
def log_realtime_session(
    service: Service,
    model: ServedModel,
    session_config: RealtimeSessionConfig,
    client: HasEndReason,
    counts: RealtimeSessionMetrics,
    recordings: Sequence[RecordingTap] = (),
) -> Iterator[None]:
    """
    Count a session from its beginning to its end, and log that; what records it is told of the end.

    Raises:
        ServerError: there are too many.
    """
    check_session_limit(service)
    metrics, begun_at = service.metrics, time.perf_counter()
    metrics.sessions += 1
    try:
        yield
    finally:
        for recording in recordings:
            recording.end(client.end_reason)
        metrics.sessions -= 1
        metrics.sessions_ended[metrics.label(model.name, model.family), client.end_reason] += 1
        logs.get().info(
            "session",
            model=model.name,
            dialect=session_config.dialect,
            end=client.end_reason,
            seconds=round(time.perf_counter() - begun_at, 1),
            events_in=counts.events_in,
            events_out=counts.events_out,
            responses=counts.responses,
            tokens=counts.tokens,
        )


def check_session_limit(service: Service) -> None:
    """
    Ask whether there may be one more session, of whichever protocol.

    Raises:
        ServerError: there are too many.
    """
    metrics = service.metrics
    if metrics.sessions + sum(metrics.minicpmo_sessions.values()) >= service.config.realtime.sessions:
        raise ServerError(
            "The server has too many sessions. Please try again later.",
            status=503,
            type="service_unavailable_error",
            code="server_is_overloaded",
            retry_after_s=1,
        )


class EventLogTap:
    """Logs what is said, word for word; sound and the pieces of what is told whole are left out."""

    def on_client_event(self, event: Any) -> None:
        """The client said this."""
        _log_event("asked", event)

    def on_server_event(self, event: Any) -> None:
        """The client is told this."""
        _log_event("answered", event)


def _log_event(message: str, event: Any) -> None:
    if not event.type.endswith((".append", ".delta")):
        logs.get().info(message, content=shorten(encode(event).decode(), MAX_LOGGED_CHARS))
