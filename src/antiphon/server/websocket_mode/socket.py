"""
A WebSocket of the Responses API: reads the client's events, and runs its requests in their lanes.

A message that can't be used is answered by an error event, and the connection goes on.
"""

import asyncio
from collections import deque
from functools import partial

from msgspec import Raw
from starlette.types import Scope

from antiphon.errors import ApiError, ClientError, invalid_value, missing_parameter, shutting_down
from antiphon.offload import LARGE_BYTES, offload
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.service import Service
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY
from antiphon.server.live.client import close_code, close_reason
from antiphon.server.transport import logs
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.websocket_mode.lanes import Lanes, read_stream_id
from antiphon.server.websocket_mode.memory import ConnectionMemory, Lane
from antiphon.server.websocket_mode.steering import Steering
from antiphon.server.websocket_mode.turn import Connection, Turn
from antiphon.wire.codec.response_ids import read_response_id
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.profiles import EventEncoder, without_prefixes
from antiphon.wire.responses.websocket import (
    CLIENT_EVENTS,
    Envelope,
    SteeringEvent,
    decode_create,
    decode_envelope,
    decode_steer,
)

UNREAD_LIMIT = 16
"""Messages that wait to be decoded, above which no more are read from the client."""


class ResponsesSocket:
    """
    One connection.

    Args:
        tasks: run its requests.
    """

    def __init__(self, service: Service, scope: Scope, encoder: EventEncoder, tasks: asyncio.TaskGroup) -> None:
        self._service = service
        self._scope = scope
        self._encoder = encoder
        self._tasks = tasks
        self._lanes: Lanes[Turn] = Lanes()
        self._running: set[Turn] = set()
        self._unread: deque[bytes] = deque()
        self._has_unread = asyncio.Event()
        self._is_paused = self._is_behind = False
        self._end_error: ApiError | None = None
        self._is_closing = False
        self._next_turn = asyncio.Event()
        self._websocket: ServerWebSocket | None = None
        self._connection: Connection | None = None
        lease: BodyLease = scope[BODY_LEASE_SCOPE_KEY]
        self._holder = lease.holder
        self._memory = ConnectionMemory(partial(service.memory_budget.lease, lease.holder))

    async def run(self, websocket: ServerWebSocket) -> None:
        """Serve the client until it leaves, or the connection's time is up."""
        self._websocket = websocket
        steering = Steering(self._send_steering)
        self._connection = Connection(
            self._service, self._scope, self._encoder, websocket, self._memory, self._lanes, steering, self._tasks
        )
        lifetime_s = self._service.config.responses.websocket_minutes * 60
        timer = asyncio.get_running_loop().call_later(lifetime_s, self.shut_down, _lifetime_over(lifetime_s))
        websocket.resume_reading()
        self._close_if_over()  # it may have been told to end while the handshake was answered
        try:
            await self._read(self._connection)
            await websocket.wait_closed()
        finally:
            timer.cancel()
            self._next_turn.set()
            steering.close()
            self._memory.clear()
            self._connection = None  # whose steering refers to this

    def drain(self) -> None:
        """The server is about to stop: what runs may finish."""
        if self._lanes.is_idle:
            self.shut_down(shutting_down())

    # Stoppable

    def shut_down(self, error: ApiError) -> None:
        """End what runs, tell the client why, and close."""
        if self._end_error is not None or self._is_closing:
            return
        self._end_error = error
        if self._websocket is not None:
            self._websocket.has_more = True  # the ends of responses are stored before they are sent
        for _lane, turn in self._lanes.drop_waiting():
            turn.drop()
        for turn in tuple(self._running):
            turn.shut_down(error)
        self._close_if_over()

    # WebSocketListener

    def on_text(self, text: bytes) -> None:
        if self._end_error is not None:
            return
        self._unread.append(without_prefixes(text))
        self._has_unread.set()
        # Large messages are decoded in a thread, one after another; read on, the client could pile up many of them here.
        if self._websocket is not None and not self._is_paused and (len(text) >= LARGE_BYTES or len(self._unread) > UNREAD_LIMIT):
            self._is_paused = True
            self._websocket.pause_reading()

    def on_disconnect(self) -> None:
        self._is_closing = True
        self._has_unread.set()
        self._next_turn.set()
        for _lane, turn in self._lanes.drop_waiting():
            turn.drop()
        for turn in tuple(self._running):
            turn.hang_up()

    def pause(self) -> None:
        self._is_behind = True
        for turn in tuple(self._running):
            turn.pause()

    def resume(self) -> None:
        self._is_behind = False
        for turn in tuple(self._running):
            turn.resume()

    # Messages

    async def _read(self, connection: Connection) -> None:
        """Handle the messages in order; a large one is decoded in a thread."""
        while True:
            await self._has_unread.wait()
            self._has_unread.clear()
            while self._unread and self._end_error is None and not self._is_closing:
                await self._receive(connection, self._unread.popleft())
            if self._is_closing:
                self._unread.clear()
                return
            if self._is_paused:
                self._is_paused = False
                connection.websocket.resume_reading()

    async def _receive(self, connection: Connection, message: bytes) -> None:
        if self._service.config.logging.content:
            logs.get().info("asked", content=logs.content_text(message))
        lane: Lane = None
        lease = self._service.body_budget.lease(self._holder)
        try:
            lease.extend(len(message))
            envelope = await offload(len(message), decode_envelope, message)
            lane = read_stream_id(envelope.stream_id)
            if envelope.type == "response.steer":
                await self._steer(connection, envelope, lane, message, lease)
                return
            if envelope.type != "response.create":
                raise _unknown_type(envelope.type)
            await self._create(connection, envelope, lane, message, lease)
        except ApiError as error:
            lease.release()
            connection.send_error(error, lane)

    async def _create(self, connection: Connection, envelope: Envelope, lane: Lane, message: bytes, lease: BodyLease) -> None:
        """
        Add a request to its lane. One that is invalid has its turn too, as its error would seem to be that of another.

        Raises:
            ClientError: there are too many lanes, or too many requests wait.
        """
        previous_id = read_response_id(envelope.previous_response_id) if isinstance(envelope.previous_response_id, str) else None
        try:
            request = await offload(len(message), decode_create, message)
        except ClientError as error:
            self._lanes.add(lane, Turn(connection, lane, error, previous_id, lease))
        else:
            self._lanes.add(lane, Turn(connection, lane, request, previous_id, lease))
        self._start_turns(connection)

    async def _steer(self, connection: Connection, envelope: Envelope, lane: Lane, message: bytes, lease: BodyLease) -> None:
        if not isinstance(envelope.previous_response_id, str):
            raise missing_parameter("previous_response_id")
        raw_input = Raw(bytes(envelope.input))
        try:
            event = await offload(len(message), decode_steer, message)
        except ClientError as error:
            lease.release()
            connection.steering.refuse(envelope.previous_response_id, raw_input, lane, "invalid_input", error.message)
        else:
            connection.steering.submit(event, raw_input, lease)

    def _send_steering(self, event: SteeringEvent) -> None:
        assert self._websocket is not None
        self._websocket.send(encode(event))
        self._websocket.flush()

    # Turns

    def _start_turns(self, connection: Connection) -> None:
        while not self._is_closing and self._end_error is None and (start := self._lanes.start_next()) is not None:
            lane, turn = start
            self._running.add(turn)
            # Tells warm-ups to leave the engine to this one.
            self._next_turn.set()
            self._next_turn = asyncio.Event()
            if self._is_behind:
                turn.pause()
            self._tasks.create_task(self._run_turn(connection, lane, turn, self._next_turn))

    async def _run_turn(self, connection: Connection, lane: Lane, turn: Turn, has_begun: asyncio.Event) -> None:
        try:
            await turn.run(has_begun)
        finally:
            self._running.discard(turn)
            self._lanes.finish(lane)
            if self._is_closing or self._end_error is not None:
                self._close_if_over()
            else:
                self._start_turns(connection)
                # `drain` came while something ran, and was left to the last one to end.
                if self._lanes.is_idle and self._service.live_sessions.is_draining:
                    self.shut_down(shutting_down())

    def _close_if_over(self) -> None:
        error = self._end_error
        if self._running or self._is_closing or error is None or self._connection is None:
            return
        # After the ends of all responses: nothing may follow a Close (RFC 6455, 5.5.1).
        self._is_closing = True
        self._has_unread.set()
        self._connection.send_error(error, None)
        self._connection.websocket.close(close_code(error)[0], close_reason(error.message))


def _unknown_type(value: object) -> ClientError:
    return missing_parameter("type") if value is None else invalid_value("type", value, CLIENT_EVENTS)


def _lifetime_over(lifetime_s: float) -> ClientError:
    return ClientError(
        f"Responses WebSocket connection limit reached ({lifetime_s / 60:g} minutes). Create a new WebSocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
