"""
One client's conversation with a Realtime server: a connection when there is something to say, another when it is lost.

What the client's session was told stays here and in the session, so that a lost connection costs the answers that were under way and
nothing else. A task for each connection sees to its turn, its dialling and its retries, then sleeps until it is over; all that is said
comes from the socket's own callbacks.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.engine import Deliver, EngineOverrun
from antiphon.engines.realtime.faults import close_error, error_from_event, to_api_error
from antiphon.engines.realtime.session import AudioLog, RealtimeUpstreamSession, ResponseTimeouts
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import WebSocketClient, dial
from antiphon.errors import ApiError, ClientError, UpstreamError
from antiphon.wire.codec.types import Unknown
from antiphon.wire.realtime.client_events import ClientEvent
from antiphon.wire.realtime.dialects import Dialect
from antiphon.wire.realtime.response import StatusError
from antiphon.wire.realtime.server_events import ErrorEvent, RealtimeError, SessionCreated

MAX_BACKLOG_BYTES = 16 << 20
"""How much may wait to be sent; what is told when there is more is not taken."""

MAX_PENDING_REQUESTS = 64
"""Answers that may be asked for before there is a connection."""

MAX_MALFORMED_MESSAGES = 16
"""So many messages that are none, and the upstream is not one to listen to."""

REDIAL_BACKOFF_S = (1.0, 30.0)
"""How long sound alone does not dial after dialling has failed: at first, doubled each time, and at most."""


class RealtimeUpstreamAccess(Protocol):
    """How a server is reached."""

    upstream: UpstreamClient
    dialect: Dialect
    timeouts: ResponseTimeouts
    connect_timeout_s: float

    def address(self, model: str) -> tuple[str, dict[str, str]]:
        """The URL and the headers that a connection for `model` is opened with."""


class RealtimeUpstreamConversation:
    """
    A conversation.

    Attributes:
        deliver: takes the words.
        is_paused: whether the client is behind.
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
        self._connection_task: asyncio.Task[None] | None = None
        self._pending_commands: deque[commands.EngineCommand] = deque()
        self._pending_bytes = 0
        self._outbox: list[engine_events.EngineEvent] = []
        self._timer: asyncio.TimerHandle | None = None
        self._backoff_s = 0.0
        self._backoff_until = 0.0
        self._is_aborted = False
        numbers = count(1)
        self._new_turn_id = lambda: f"heard_{next(numbers)}"

    # What the session does

    def send(self, command: commands.EngineCommand) -> None:
        """Take a word."""
        if self._connection is not None:
            if (
                isinstance(command, commands.AppendAudio | commands.Respond)
                and self._connection.websocket.backlog_bytes > MAX_BACKLOG_BYTES
            ):
                raise EngineOverrun("the model server takes in what it is sent too slowly")
            self._deliver_soon(self._connection.session.handle_command(command, self._loop.time()))
            self._arm_timer()
        elif isinstance(command, commands.Cancel):
            self._cancel_pending(command.id)
        elif self._needs_no_connection(command):
            self._deliver_soon(self._handle_offline(command, _shutdown_error()))
        else:
            self._queue_command(command)

    def pause(self) -> None:
        """Read nothing, and let no time pass."""
        self.is_paused = True
        if self._connection is not None:
            self._connection.websocket.pause()

    def resume(self) -> None:
        """Read on."""
        self.is_paused = False
        if self._connection is not None:
            self._connection.session.reset_timeouts(self._loop.time())
            self._connection.websocket.resume()

    def abort(self) -> None:
        """Break every answer: the server stops."""
        self._is_aborted = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail(_shutdown_error())
        if self._connection_task is not None:
            self._connection_task.cancel()

    def close(self) -> None:
        """Say nothing more."""
        self.deliver = lambda _words: None
        self.abort()

    # Before there is a connection

    def _needs_no_connection(self, command: commands.EngineCommand) -> bool:
        """Whether a word is only to be noted, and no connection made for it."""
        if self._is_aborted:
            return True
        if self._connection_task is not None:
            return False
        is_resting = self._loop.time() < self._backoff_until
        return isinstance(command, commands.Configure | commands.ClearAudio) or (isinstance(command, commands.AppendAudio) and is_resting)

    def _queue_command(self, command: commands.EngineCommand) -> None:
        if (
            self._pending_bytes > MAX_BACKLOG_BYTES
            or sum(isinstance(waiting, commands.Respond) for waiting in self._pending_commands) >= MAX_PENDING_REQUESTS
        ):
            raise EngineOverrun("the connection to the model server is not there yet")
        if self._connection_task is None:
            self._start_connecting()
        self._pending_commands.append(command)
        self._pending_bytes += len(command.pcm) if isinstance(command, commands.AppendAudio) else 0

    def _start_connecting(self) -> None:
        self.access.upstream.concurrency_limit.reserve()
        self._connection_task = self._tasks.create_task(self._connect())
        # Not the task's own last act: one that is cancelled before its first step does nothing at all.
        self._connection_task.add_done_callback(self._on_disconnected)

    def _cancel_pending(self, id: str) -> None:
        asked = next((word for word in self._pending_commands if isinstance(word, commands.Respond) and word.id == id), None)
        if asked is not None:
            self._pending_commands.remove(asked)
            self._deliver_soon([engine_events.ResponseEnded(id, "cancelled")])

    def _handle_offline(self, command: commands.EngineCommand, error: ApiError) -> list[engine_events.EngineEvent]:
        """What a word comes to without a connection, which there is none of by `fault`."""
        intake = self.audio_log
        match command:
            case commands.Configure():
                intake.set_configuration(command)
            case commands.AppendAudio(pcm):
                intake.append(pcm)
            case commands.ClearAudio():
                intake.uncommitted_pcm.clear()
            case commands.CommitAudio(id):
                intake.uncommitted_pcm.clear()
                if intake.configuration is not None and intake.configuration.transcription is not None:
                    return [engine_events.InputTranscriptFailed(id=id, message=error.message)]
            case commands.Respond(id=id):
                return [engine_events.ResponseFailed.from_error(id, error)]
            case commands.Cancel() | commands.Prepare() | commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                pass
        return []

    async def _connect(self) -> None:
        upstream = self.access.upstream
        try:
            async with upstream.concurrency_limit.slot():
                line = await upstream.connect(self._dial)
                await line.end_of_connection
        except ApiError as fault:
            self._backoff_s = min(max(self._backoff_s * 2, REDIAL_BACKOFF_S[0]), REDIAL_BACKOFF_S[1])
            self._backoff_until = self._loop.time() + self._backoff_s
            self._fail(fault)

    async def _dial(self) -> "_Connection | UpstreamFailure":
        line = _Connection(self)
        url, headers = self._address
        try:
            failure = await dial(line.websocket, url, headers, self.access.upstream.tls, self.access.connect_timeout_s)
            if failure is not None:
                return failure
            async with asyncio.timeout(self.access.connect_timeout_s):
                fault = await line.session_start
        except TimeoutError:
            message = f"The model server did not begin its session in {self.access.connect_timeout_s:g} seconds."
            fault = UpstreamError(message, status=504, code="upstream_timeout")
        finally:
            if self._connection is not line:
                line.websocket.close()
        return (
            line
            if fault is None
            else UpstreamFailure(fault, "refused", counts_against_upstream=fault.status >= 500 and fault.code != "upstream_credentials")
        )

    def _on_disconnected(self, _task: asyncio.Task[None]) -> None:
        self.access.upstream.concurrency_limit.release()
        self._connection_task = None
        if self._pending_commands and not self._is_aborted:  # told since the connection was lost
            try:
                self._start_connecting()
            except EngineOverrun as overrun:
                self._deliver_soon(
                    self._fail_pending(UpstreamError(f"The model is overloaded: {overrun}.", status=503, code="server_is_overloaded"))
                )

    # While there is one

    def begin_session(self, connection: "_Connection") -> RealtimeUpstreamSession:
        """The upstream has said that its session has begun."""
        self._connection = connection
        self._backoff_s = 0.0
        way = self.access
        channel = RealtimeUpstreamSession(
            connection.send, self.audio_log, self._new_turn_id, secrets.token_hex(4), way.timeouts, self._map_error, way.dialect.name
        )
        if self.is_paused:
            connection.websocket.pause()
        now = self._loop.time()
        waiting, self._pending_commands, self._pending_bytes = self._pending_commands, deque(), 0
        for word in waiting:
            self._deliver_soon(channel.handle_command(word, now))
        return channel

    def _map_error(self, error: RealtimeError | StatusError | None) -> ApiError:
        return self.access.upstream.redact(to_api_error(error))

    def deliver_at_once(self, events: list[engine_events.EngineEvent]) -> None:
        """The upstream said so, all of it together."""
        self._outbox += events
        self._flush_outbox()
        self._arm_timer()

    def on_connection_lost(self, connection: "_Connection", error: ApiError) -> None:
        """The connection is gone; the next word makes another."""
        if self._connection is connection:
            self.access.upstream.count_failure("broke_off")
            self._fail(error)

    def _fail(self, error: ApiError) -> None:
        line, self._connection = self._connection, None
        words = self._fail_pending(error)
        if line is not None:
            words = line.session.close(error) + words
            line.websocket.close()
            line.finish()
        self._deliver_soon(words)

    def _fail_pending(self, error: ApiError) -> list[engine_events.EngineEvent]:
        """What comes of the words that wait for a connection that will not be."""
        waiting, self._pending_commands, self._pending_bytes = self._pending_commands, deque(), 0
        words = [said for word in waiting for said in self._handle_offline(word, error)]
        if waiting and not words and not self._is_aborted:
            words.append(engine_events.EngineError(message=error.message, code=error.code, type=error.type))
        return words

    # When it is said

    def _deliver_soon(self, events: Sequence[engine_events.EngineEvent]) -> None:
        """Say so as soon as whoever tells something has finished."""
        if events and not self._outbox:
            self._loop.call_soon(self._flush_outbox)
        self._outbox += events

    def _flush_outbox(self) -> None:
        words, self._outbox = self._outbox, []
        if words:
            self.deliver(words)

    def _arm_timer(self) -> None:
        due_at = self._connection.session.next_deadline() if self._connection is not None else None
        if due_at is not None and (self._timer is None or due_at < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due_at, self._check_timeouts)

    def _check_timeouts(self) -> None:
        self._timer = None
        if self._connection is None:
            return
        now = self._loop.time()
        if self.is_paused:
            self._connection.session.reset_timeouts(now)
        self.deliver_at_once(self._connection.session.check_timeouts(now))


def _shutdown_error() -> ApiError:
    return UpstreamError("The server is shutting down.", status=503, code="server_is_overloaded")


class _Connection:
    """
    A connection, from dialling on.

    Attributes:
        link: the socket.
        channel: set once the upstream has begun its session.
        greeted: None when it has, else why not.
        over: done when the connection is gone.
    """

    session: RealtimeUpstreamSession

    def __init__(self, conversation: RealtimeUpstreamConversation) -> None:
        loop = asyncio.get_running_loop()
        self.websocket = WebSocketClient(self)
        self.session_start: asyncio.Future[ApiError | None] = loop.create_future()
        self.end_of_connection: asyncio.Future[None] = loop.create_future()
        self._conversation = conversation
        self._dialect = conversation.access.dialect
        self._malformed_count = 0
        self._time = loop.time

    def send(self, event: ClientEvent) -> None:
        """Send an event upstream."""
        self.websocket.send(self._dialect.encode_client(event))

    def finish(self) -> None:
        """It is over."""
        if not self.end_of_connection.done():
            self.end_of_connection.set_result(None)

    def on_messages(self, messages: Sequence[bytes]) -> None:
        """Take messages that came together."""
        words: list[engine_events.EngineEvent] = []
        now = self._time()
        for message in messages:
            try:
                event = self._dialect.decode_server(message)
            except ClientError:
                self._malformed_count += 1
                continue
            if self.session_start.done():
                words += self.session.handle_event(event, now)
            elif isinstance(event, SessionCreated):
                self.session = self._conversation.begin_session(self)
                self.session_start.set_result(None)
            elif isinstance(event, ErrorEvent) or (isinstance(event, Unknown) and event.type == "error"):
                self.session_start.set_result(to_api_error(error_from_event(event)))
                return
        self._conversation.deliver_at_once(words)
        if self._malformed_count > MAX_MALFORMED_MESSAGES:
            fault = UpstreamError("The model server sends what is no message of the Realtime API.", code="upstream_malformed")
            self._conversation.on_connection_lost(self, fault)

    def on_close(self, code: int, reason: str) -> None:
        """The upstream closed the connection, or it broke."""
        fault = close_error(code, reason)
        if self.session_start.done():
            self._conversation.on_connection_lost(self, fault)
        else:
            self.session_start.set_result(fault)
