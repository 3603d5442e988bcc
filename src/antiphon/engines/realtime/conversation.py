"""
One client's conversation with a Realtime server: it connects at the first command that needs a connection, and again
after a loss.

The client's configuration and uncommitted audio are kept here, so that a lost connection costs only the responses in
progress. One task per connection waits for its slot, dials and retries, then sleeps until the connection ends; events
are delivered from the socket's own callbacks.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import count
from math import inf
from typing import Protocol

from antiphon.deadline import Deadline
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineOverrun
from antiphon.engines.realtime.faults import close_error, error_from_event, to_api_error
from antiphon.engines.realtime.session import AudioLog, RealtimeUpstreamSession, ResponseTimeouts
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import WebSocketClient, dial
from antiphon.errors import ApiError, ClientError, UpstreamError, shutting_down
from antiphon.wire.codec.structure import check_event_structure
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.dialects import Dialect
from antiphon.wire.realtime.response import StatusError
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, ServerEvent, SessionCreated

MAX_BACKLOG_BYTES = 16 << 20
"""Bytes that may wait to be sent; more input is refused."""

COMMAND_BYTES = 1 << 10
"""What a command that waits counts as, beside its audio: of tiny ones there would be no end."""

MAX_PENDING_REQUESTS = 64
"""Responses that may be requested before there is a connection."""

MAX_MALFORMED_MESSAGES = 16
"""More malformed messages than this end the connection."""

REDIAL_BACKOFF_S = (1.0, 30.0)
"""
How long audio alone does not redial after a failure: at first, doubled each time up to the maximum. Other commands
redial at once.
"""


class RealtimeUpstreamAccess(Protocol):
    """What a conversation needs of its engine."""

    upstream: UpstreamClient
    dialect: Dialect
    timeouts: ResponseTimeouts
    connect_timeout_s: float

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        """The URL and the headers of a connection for `model`."""


class RealtimeUpstreamConversation:
    """
    One client's conversation.

    Attributes:
        deliver: takes the events.
        is_paused: whether the client is behind.
        audio_log: the client's audio, across connections.
    """

    def __init__(self, access: RealtimeUpstreamAccess, model: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self.deliver: Deliver = deliver
        self.is_paused = False
        self.audio_log = AudioLog()
        self.access = access
        self._address = access.address(model)
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._connection: _Connection | None = None
        self._connection_task: asyncio.Task[ApiError | None] | None = None
        self._pending_commands: deque[commands.EngineCommand] = deque()
        self._pending_bytes = 0
        self._deadline = Deadline(self._check_timeouts)
        self._backoff_s = 0.0
        self._backoff_until = 0.0
        self._is_aborted = False
        numbers = count(1)
        self._new_turn_id = lambda: f"heard_{next(numbers)}"

    # Commands

    def send(self, command: commands.EngineCommand) -> None:
        if self._connection is not None:
            if (
                isinstance(command, commands.AppendAudio | commands.Respond)
                and self._connection.websocket.backlog_bytes > MAX_BACKLOG_BYTES
            ):
                raise EngineOverrun("the model server reads its input too slowly")
            self.emit(self._connection.session.handle_command(command, self._loop.time()))
        elif isinstance(command, commands.Cancel):
            self._cancel_pending(command.id)
        elif self._needs_no_connection(command):
            self.emit(self._handle_offline(command, shutting_down()))
        else:
            self._queue_command(command)

    def pause(self) -> None:
        self.is_paused = True
        if self._connection is not None:
            self._connection.websocket.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self._connection is not None:
            self._connection.session.reset_timeouts(self._loop.time())
            self._connection.websocket.resume()

    def abort(self) -> None:
        """Fail every response, because the server stops."""
        self._is_aborted = True
        self._deadline.cancel()
        self._fail(shutting_down())
        if self._connection_task is not None:
            self._connection_task.cancel()

    def close(self) -> None:
        """End the conversation and deliver nothing more."""
        self.deliver = lambda _events: None
        self.abort()
        self._deadline.close()

    # Before there is a connection

    def _needs_no_connection(self, command: commands.EngineCommand) -> bool:
        """Whether to handle a command without dialling for it."""
        if self._is_aborted:
            return True
        if self._connection_task is not None:
            return False
        is_backing_off = self._loop.time() < self._backoff_until
        # The audio log keeps them, and each connection begins with it.
        return isinstance(command, commands.Configure | commands.ClearAudio) or (
            isinstance(command, commands.AppendAudio) and is_backing_off
        )

    def _queue_command(self, command: commands.EngineCommand) -> None:
        if self._pending_bytes > MAX_BACKLOG_BYTES or (
            isinstance(command, commands.Respond)
            and sum(isinstance(pending, commands.Respond) for pending in self._pending_commands) >= MAX_PENDING_REQUESTS
        ):
            raise EngineOverrun("the model server is not connected yet")
        if self._connection_task is None:
            self._start_connecting()
        self._pending_commands.append(command)
        self._pending_bytes += COMMAND_BYTES + (len(command.pcm) if isinstance(command, commands.AppendAudio) else 0)

    def _start_connecting(self) -> None:
        self.access.upstream.concurrency_limit.reserve()
        self._connection_task = self._tasks.create_task(self._connect())
        # A callback, not a `finally` in the task: a task that is cancelled before its first step runs no code at all.
        self._connection_task.add_done_callback(self._on_disconnected)

    def _cancel_pending(self, id: str) -> None:
        request = next((command for command in self._pending_commands if isinstance(command, commands.Respond) and command.id == id), None)
        if request is not None:
            self._pending_commands.remove(request)
            self.emit([engine_events.ResponseEnded(id, "cancelled")])

    def _handle_offline(self, command: commands.EngineCommand, error: ApiError) -> list[engine_events.EngineEvent]:
        """The events of a command that is handled without a connection; `error` says why there is none."""
        audio_log = self.audio_log
        match command:
            case commands.Configure():
                audio_log.set_configuration(command)
            case commands.AppendAudio(pcm):
                audio_log.append(pcm)
            case commands.ClearAudio():
                audio_log.uncommitted_pcm.clear()
            case commands.CommitAudio(id):
                audio_log.uncommitted_pcm.clear()
                if audio_log.configuration is not None and audio_log.configuration.transcription is not None:
                    return [engine_events.InputTranscriptFailed(id=id, message=error.message)]
            case commands.Respond(id=id):
                return [engine_events.ResponseFailed.from_error(id, error)]
            case (
                commands.Cancel()
                | commands.Prepare()
                | commands.StartDuplex()
                | commands.AppendImage()
                | commands.ForceListen()
                | commands.Relay()
            ):
                pass
        return []

    async def _connect(self) -> ApiError | None:
        """Connect and wait until the connection ends; returns why there was no connection."""
        upstream = self.access.upstream
        try:
            async with upstream.concurrency_limit.slot():
                connection = await upstream.connect(self._dial)
                await connection.end_of_connection
        except ApiError as error:
            return error
        return None

    async def _dial(self) -> "_Connection | UpstreamFailure":
        connection = _Connection(self)
        url, headers = self._address
        try:
            failure = await dial(connection.websocket, url, headers, self.access.upstream.tls, self.access.connect_timeout_s)
            if failure is not None:
                return failure
            async with asyncio.timeout(self.access.connect_timeout_s):
                error = await connection.session_start
        except TimeoutError:
            message = f"The model server did not begin its session in {self.access.connect_timeout_s:g} seconds."
            error = UpstreamError(message, status=504, code="upstream_timeout")
        finally:
            # Only a connection whose session has begun in time is kept.
            if self._connection is not connection:
                connection.websocket.close()
        if error is None:
            return connection
        return UpstreamFailure(error, "refused", counts_against_upstream=error.status >= 500 and error.code != "upstream_credentials")

    def _on_disconnected(self, task: asyncio.Task[ApiError | None]) -> None:
        self.access.upstream.concurrency_limit.release()
        self._connection_task = None
        if not task.cancelled() and task.exception() is None and (error := task.result()) is not None:
            self._backoff_s = min(max(self._backoff_s * 2, REDIAL_BACKOFF_S[0]), REDIAL_BACKOFF_S[1])
            self._backoff_until = self._loop.time() + self._backoff_s
            self._fail(error)
        self._reconnect()

    def _reconnect(self) -> None:
        """Connect again for the commands that came since the connection was lost."""
        if self._pending_commands and self._connection_task is None and not self._is_aborted:
            try:
                self._start_connecting()
            except EngineOverrun as overrun:
                self.emit(
                    self._fail_pending(UpstreamError(f"The model is overloaded: {overrun}.", status=503, code="server_is_overloaded"))
                )

    # While there is a connection

    def begin_session(self, connection: "_Connection") -> list[engine_events.EngineEvent]:
        """Give the connection its session and the pending commands; returns the events to emit."""
        self._connection = connection
        self._backoff_s = 0.0
        timeouts, dialect = self.access.timeouts, self.access.dialect
        session = connection.session = RealtimeUpstreamSession(
            connection.send,
            self.audio_log,
            self._new_turn_id,
            secrets.token_hex(4),
            timeouts,
            self._map_error,
            dialect.name,
            self.access.upstream.response_limits,
        )
        if self.is_paused:
            connection.websocket.pause()
        now = self._loop.time()
        pending, self._pending_commands, self._pending_bytes = self._pending_commands, deque(), 0
        return [event for command in pending for event in session.handle_command(command, now)]

    def _map_error(self, error: RealtimeError | StatusError | None) -> ApiError:
        return self.access.upstream.redact(to_api_error(error))

    def emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """
        Deliver events and watch the timeouts; the client may send commands from within, so callers change their state
        before.
        """
        self._deadline.set(inf if self._connection is None else self._connection.session.next_deadline())
        if events:
            self.deliver(events)

    def on_connection_lost(self, connection: "_Connection", error: ApiError) -> None:
        """The connection is lost; the next command makes another."""
        if self._connection is connection:
            self._fail(self.access.upstream.report_failure(error, "broke_off"))

    def _fail(self, error: ApiError) -> None:
        # First: the client may send commands while it takes the events.
        connection, self._connection = self._connection, None
        batch = self._fail_pending(error)
        if connection is not None:
            batch = connection.session.close(error) + batch
            connection.websocket.close()
            connection.finish()
        self.emit(batch)

    def _fail_pending(self, error: ApiError) -> list[engine_events.EngineEvent]:
        """
        The events of the pending commands, which get no connection; an `EngineError` if they have none of their own.
        """
        pending, self._pending_commands, self._pending_bytes = self._pending_commands, deque(), 0
        batch = [event for command in pending for event in self._handle_offline(command, error)]
        if pending and not batch and not self._is_aborted:
            batch.append(engine_events.EngineError(message=error.message, code=error.code, type=error.type))
        return batch

    def _check_timeouts(self) -> None:
        if self._connection is None:
            return
        now = self._loop.time()
        # While we don't read, the server can't be heard, so its silence does not count.
        if self.is_paused:
            self._connection.session.reset_timeouts(now)
        self.emit(self._connection.session.check_timeouts(now))


class _Connection:
    """
    A connection, from dialling on.

    Attributes:
        has_begun: whether `session.created` came.
        session: set at `session.created`.
        websocket: the connection.
        session_start: done at `session.created`, with None; else with the error.
        end_of_connection: done when the connection is closed.
    """

    session: RealtimeUpstreamSession

    def __init__(self, conversation: RealtimeUpstreamConversation) -> None:
        loop = asyncio.get_running_loop()
        self.has_begun = False
        self.websocket = WebSocketClient(self)
        self.session_start: asyncio.Future[ApiError | None] = loop.create_future()
        self.end_of_connection: asyncio.Future[None] = loop.create_future()
        self._conversation = conversation
        self._dialect = conversation.access.dialect
        self._malformed_count = 0
        self._time = loop.time

    def send(self, event: ClientEvent) -> None:
        """Send an event to the server."""
        self.websocket.send(self._dialect.encode_client(event))

    def finish(self) -> None:
        """The connection is over: let its task end."""
        if not self.end_of_connection.done():
            self.end_of_connection.set_result(None)

    def on_messages(self, messages: Sequence[bytes]) -> None:
        batch: list[engine_events.EngineEvent] = []
        now = self._time()
        for message in messages:
            try:
                check_event_structure(message)
                event = self._dialect.decode_server(message)
            except ClientError:
                self._malformed_count += 1
                continue
            if self.has_begun:
                batch += self._handle_event(event, now, len(message))
            elif self.session_start.done():
                return  # refused, or given up: `_dial` is about to close the connection
            elif isinstance(event, SessionCreated):
                self.has_begun = True
                self.session_start.set_result(None)
                batch += self._conversation.begin_session(self)
            elif isinstance(event, ErrorEvent) or (isinstance(event, Unknown) and event.type == "error"):
                self.session_start.set_result(to_api_error(error_from_event(event)))
                return
        self._conversation.emit(batch)
        if self.has_begun and self.session.has_overrun:
            self._fail(UpstreamError("The model server goes on with a response that was cancelled.", code="upstream_malformed"))
        elif self._malformed_count > MAX_MALFORMED_MESSAGES:
            self._fail(UpstreamError("The model server sends messages that are not of the Realtime API.", code="upstream_malformed"))

    def _handle_event(self, event: ServerEvent | Unknown, now: float, size_bytes: int) -> list[engine_events.EngineEvent]:
        cut_count = self.session.cut_count
        batch = self.session.handle_event(event, now, size_bytes)
        if self.session.cut_count > cut_count:
            self._conversation.access.upstream.count_failure("too_long")
        return batch

    def on_close(self, code: int, reason: str) -> None:
        self._fail(close_error(code, reason))

    def _fail(self, error: ApiError) -> None:
        if self.session_start.done():
            self._conversation.on_connection_lost(self, error)
        else:
            self.session_start.set_result(error)
