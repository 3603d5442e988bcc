"""What is counted and logged of a MiniCPM-o session, and who else listens in on it."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.session_metrics import Counted
from antiphon.runtime.core.taps import Tap, joined
from antiphon.runtime.recording.recorder import Recording
from antiphon.runtime.registry import Model
from antiphon.runtime.service import Service
from antiphon.server.live.session_log import Ended, Logged, check_room
from antiphon.server.transport import logs
from antiphon.wire.minicpmo.client_events import Mode


def taps_of(service: Service, model: Model, caller: Caller, recordings: Sequence[Recording]) -> tuple[Counted, Tap]:
    """What counts a session, and all that listens in on it."""
    spend = caller.allowance.spend if caller.allowance else lambda _tokens: None
    counted = Counted(service.metrics, service.metrics.label(model.name, model.family), spend)
    taps: list[Tap] = [counted, *recordings, *([Logged()] if service.config.logging.content else [])]
    return counted, joined(taps)


@contextlib.contextmanager
def noted(service: Service, model: Model, mode: Mode, client: Ended, tap: Counted, recordings: Sequence[Recording]) -> Iterator[None]:
    """
    Count a session from its beginning to its end, and log that; what records it is told of the end.

    Raises:
        OurFault: there are too many.
    """
    check_room(service)
    metrics, begun_at = service.metrics, time.perf_counter()
    metrics.minicpmo_sessions[mode] += 1
    try:
        yield
    finally:
        for recording in recordings:
            recording.end(client.end)
        metrics.minicpmo_sessions[mode] -= 1
        metrics.minicpmo_sessions_ended[metrics.label(model.name, model.family), mode, client.end] += 1
        logs.get().info(
            "session",
            model=model.name,
            mode=mode,
            end=client.end,
            seconds=round(time.perf_counter() - begun_at, 1),
            events_in=tap.events_in,
            events_out=tap.events_out,
            responses=tap.responses,
            tokens=tap.tokens,
        )
