"""Metrics, log lines and taps of live sessions."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from antiphon.engine_api.history import TextPart
from antiphon.engine_api.options import ConversationKind
from antiphon.errors import overloaded_error, shorten
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.core.session_metrics import MinicpmoSessionMetrics, RealtimeSessionMetrics
from antiphon.runtime.core.sessions import LiveSession
from antiphon.runtime.core.taps import Tap, combine
from antiphon.runtime.recording.recorder import RecordingTap
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.scheduling.eta import time_limits_s
from antiphon.runtime.service import Service
from antiphon.server.live.client import failure_reason
from antiphon.server.transport import logs
from antiphon.wire.codec.types import Tagged, encode
from antiphon.wire.minicpmo.client_events import ChatAppend, Mode, SessionInit

MAX_LOGGED_CHARS = 10_000
"""How much of an event is logged, in characters: some carry audio."""


class HasEndReason(Protocol):
    """
    The client of a session.

    Attributes:
        end_reason: why the session ended, as a metrics label.
    """

    end_reason: str


def realtime_taps(
    service: Service, model: ServedModel, caller: Caller, recordings: Sequence[RecordingTap] = ()
) -> tuple[RealtimeSessionMetrics, Tap]:
    """The tap that counts a Realtime session, and all of its taps as one."""
    counts = RealtimeSessionMetrics(service.metrics, service.metrics.label(model.name, model.family), caller.key_id)
    return counts, combine([counts, *recordings, *_content_taps(service)])


def minicpmo_taps(
    service: Service, model: ServedModel, caller: Caller, recordings: Sequence[RecordingTap]
) -> tuple[MinicpmoSessionMetrics, Tap]:
    """The tap that counts a MiniCPM-o session, and all of its taps as one."""
    count_tokens = caller.allowance.count_tokens if caller.allowance else lambda _tokens: None
    counts = MinicpmoSessionMetrics(service.metrics, service.metrics.label(model.name, model.family), count_tokens, caller.key_id)
    return counts, combine([counts, *recordings, *_content_taps(service)])


def _content_taps(service: Service) -> Sequence[Tap]:
    return [EventLogTap()] if service.config.logging.content else []


@contextlib.contextmanager
def log_realtime_session(
    service: Service,
    caller: Caller,
    model: ServedModel,
    session_config: RealtimeSessionConfig,
    client: HasEndReason,
    counts: RealtimeSessionMetrics,
    recordings: Sequence[RecordingTap] = (),
) -> Iterator[LiveSession]:
    """
    Count a Realtime session from beginning to end, log it, show it to operators, and end its recordings.

    Yields:
        The session as they see it; its `stop` is to be set.

    Raises:
        ServerError: there are too many sessions.
    """
    mode = "transcription" if session_config.is_transcription else "conversation"
    live = _live_session(service, caller, model, recordings, "realtime", mode, "realtime")
    with _log_session(service, model, client, counts, recordings, live, dialect=session_config.dialect):
        metrics = service.metrics
        metrics.sessions += 1
        try:
            with _name_failure(client):
                yield live
        finally:
            metrics.sessions -= 1
            metrics.sessions_ended[metrics.label(model.name, model.family), client.end_reason] += 1


@contextlib.contextmanager
def _name_failure(client: HasEndReason) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A reason that was set when the session was closed stays.
        if client.end_reason == "failed":
            client.end_reason = failure_reason(error)
        raise


@contextlib.contextmanager
def log_minicpmo_session(
    service: Service,
    caller: Caller,
    model: ServedModel,
    mode: Mode,
    client: HasEndReason,
    counts: MinicpmoSessionMetrics,
    recordings: Sequence[RecordingTap],
) -> Iterator[LiveSession]:
    """
    Count a MiniCPM-o session from beginning to end, log it, show it to operators, and end its recordings.

    Yields:
        As `log_realtime_session`.

    Raises:
        ServerError: there are too many sessions.
    """
    live = _live_session(service, caller, model, recordings, "minicpmo", mode, mode)
    with _log_session(service, model, client, counts, recordings, live, mode=mode):
        metrics = service.metrics
        metrics.minicpmo_sessions[mode] += 1
        try:
            yield live
        finally:
            metrics.minicpmo_sessions[mode] -= 1
            metrics.minicpmo_sessions_ended[metrics.label(model.name, model.family), mode, client.end_reason] += 1


def _live_session(
    service: Service,
    caller: Caller,
    model: ServedModel,
    recordings: Sequence[RecordingTap],
    protocol: Literal["realtime", "minicpmo"],
    mode: str,
    kind: ConversationKind,
) -> LiveSession:
    return LiveSession(
        protocol=protocol,
        mode=mode,
        model=model.name,
        tenant=caller.tenant,
        key_id=caller.key_id,
        is_recorded=bool(recordings),
        started_at=time.time(),
        limit_s=time_limits_s(service.config)[kind],
    )


@contextlib.contextmanager
def _log_session(
    service: Service,
    model: ServedModel,
    client: HasEndReason,
    counts: RealtimeSessionMetrics | MinicpmoSessionMetrics,
    recordings: Sequence[RecordingTap],
    live: LiveSession,
    **fields: str,
) -> Iterator[None]:
    # First, so that a session that is refused is neither counted nor logged nor listed.
    _check_session_limit(service)
    started_at = time.perf_counter()
    counts.live = live
    try:
        with service.usage.track(counts.usage), service.live_sessions.show(live):
            yield
    finally:
        for recording in recordings:
            recording.end(client.end_reason)
        logs.get().info(
            "session",
            model=model.name,
            **fields,
            end=client.end_reason,
            seconds=round(time.perf_counter() - started_at, 1),
            events_in=counts.events_in,
            events_out=counts.events_out,
            responses=counts.responses,
            tokens=counts.tokens,
        )


def _check_session_limit(service: Service) -> None:
    # Sessions of both protocols share the limit.
    metrics = service.metrics
    if metrics.sessions + sum(metrics.minicpmo_sessions.values()) >= service.config.realtime.sessions:
        raise overloaded_error("The server has too many sessions. Please try again later.")


class EventLogTap:
    """Logs the events of a session, except for audio and deltas, which would repeat what is logged whole."""

    def on_client_event(self, event: object) -> None:
        if isinstance(event, Tagged):
            _log_event("asked", event)
        # MiniCPM-o's are decoded to structs without a `type`, and recordings come in the same event as the words.
        elif (content := _minicpmo_content(event)) is not None:
            logs.get().info("asked", content=shorten(encode(content).decode(), MAX_LOGGED_CHARS))

    def on_server_event(self, event: object) -> None:
        _log_event("answered", event)


def _minicpmo_content(event: object) -> object:
    """The words of a client's event, without its recordings and pictures; None for one without words."""
    match event:
        case SessionInit(instructions=instructions, options=options):
            return {"type": "session.init", "instructions": instructions, "config": options}
        case ChatAppend(messages=messages):
            texts = [[part.text for part in each.parts if isinstance(part, TextPart)] for each in messages]
            return {"type": "input.append", "messages": [[each.role, *parts] for each, parts in zip(messages, texts, strict=True)]}
        case _:
            return None


def _log_event(message: str, event: object) -> None:
    if not str(getattr(event, "type", "")).endswith((".append", ".delta")):
        logs.get().info(message, content=shorten(logs.content_text(encode(event)), MAX_LOGGED_CHARS))
