"""What is counted and logged of a MiniCPM-o session, and who else listens in on it."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.session_metrics import MinicpmoSessionMetrics
from antiphon.runtime.core.taps import Tap, combine
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.live.session_log import EventLogTap, HasEndReason, check_session_limit
from antiphon.server.transport import logs
from antiphon.wire.minicpmo.client_events import Mode


def minicpmo_taps(
    service: Service, model: ServedModel, caller: Caller, recordings: Sequence[RecordingTap]
) -> tuple[MinicpmoSessionMetrics, Tap]:
    """What counts a session, and all that listens in on it."""
    count_tokens = caller.allowance.count_tokens if caller.allowance else lambda _tokens: None
    counts = MinicpmoSessionMetrics(service.metrics, service.metrics.label(model.name, model.family), count_tokens)
    taps: list[Tap] = [counts, *recordings, *([EventLogTap()] if service.config.logging.content else [])]
    return counts, combine(taps)


@contextlib.contextmanager
def log_minicpmo_session(
    service: Service,
    model: ServedModel,
    mode: Mode,
    client: HasEndReason,
    counts: MinicpmoSessionMetrics,
    recordings: Sequence[RecordingTap],
) -> Iterator[None]:
    """
    Count a session from its beginning to its end, and log that; what records it is told of the end.

    Raises:
        ServerError: there are too many.
    """
    check_session_limit(service)
    metrics, started_at = service.metrics, time.perf_counter()
    metrics.minicpmo_sessions[mode] += 1
    try:
        yield
    finally:
        for recording in recordings:
            recording.end(client.end_reason)
        metrics.minicpmo_sessions[mode] -= 1
        metrics.minicpmo_sessions_ended[metrics.label(model.name, model.family), mode, client.end_reason] += 1
        logs.get().info(
            "session",
            model=model.name,
            mode=mode,
            end=client.end_reason,
            seconds=round(time.perf_counter() - started_at, 1),
            events_in=counts.events_in,
            events_out=counts.events_out,
            responses=counts.responses,
            tokens=counts.tokens,
        )
