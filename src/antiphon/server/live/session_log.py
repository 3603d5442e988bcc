"""What is counted and logged of a Realtime session, however its client is connected."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from antiphon.errors import OurFault, shown
from antiphon.protocols.realtime.settings import Opening
from antiphon.runtime.core.taps import Counted, Tap, joined
from antiphon.runtime.recording.recorder import Recording
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode

LOGGED_LIMIT = 10_000
"""The most characters of an event that are logged: some carry sound."""


class Ended(Protocol):
    """
    Whose session it is.

    Attributes:
        end: why it ended, in one of few words.
    """

    end: str


def taps_of(service: Service, model: Model, recordings: Sequence[Recording] = ()) -> tuple[Counted, Tap]:
    """What counts a session, and all that listens in on it."""
    counted = Counted(service.metrics, service.metrics.label(model.name, model.family))
    taps: list[Tap] = [counted, *recordings, *([Logged()] if service.config.logging.content else [])]
    return counted, joined(taps)


@contextlib.contextmanager
def noted(
    service: Service, model: Model, opening: Opening, client: Ended, tap: Counted, recordings: Sequence[Recording] = ()
) -> Iterator[None]:
    """
    Count a session from its beginning to its end, and log that; what records it is told of the end.

    Raises:
        OurFault: there are too many.
    """
    check_room(service)
    metrics, begun_at = service.metrics, time.perf_counter()
    metrics.sessions += 1
    try:
        yield
    finally:
        for recording in recordings:
            recording.end(client.end)
        metrics.sessions -= 1
        metrics.sessions_ended[metrics.label(model.name, model.family), client.end] += 1
        logs.get().info(
            "session",
            model=model.name,
            dialect=opening.dialect,
            end=client.end,
            seconds=round(time.perf_counter() - begun_at, 1),
            events_in=tap.events_in,
            events_out=tap.events_out,
            responses=tap.responses,
            tokens=tap.tokens,
        )


def check_room(service: Service) -> None:
    """
    Ask whether there may be one more session, of whichever protocol.

    Raises:
        OurFault: there are too many.
    """
    metrics = service.metrics
    if metrics.sessions + sum(metrics.minicpmo_sessions.values()) >= service.config.realtime.sessions:
        raise OurFault(
            "The server has too many sessions. Please try again later.",
            status=503,
            type="service_unavailable_error",
            code="server_is_overloaded",
            retry_after_s=1,
        )


class Logged:
    """Logs what is said, word for word; sound and the pieces of what is told whole are left out."""

    def said(self, event: Any) -> None:
        """The client said this."""
        _log("asked", event)

    def told(self, event: Any) -> None:
        """The client is told this."""
        _log("answered", event)


def _log(line: str, event: Any) -> None:
    if not event.type.endswith((".append", ".delta")):
        logs.get().info(line, content=shown(encode(event).decode(), LOGGED_LIMIT))
