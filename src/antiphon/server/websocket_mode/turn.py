"""One `response.create` of a connection, from its turn in its lane to its last event."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog
from msgspec import Struct, structs
from starlette.types import Scope

from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.offload import offload
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.runtime.access.body_budget import BodyLease
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.resolve_request import KnownHistory
from antiphon.runtime.service import Service
from antiphon.server.http.access_log import CLIENT_CLOSED_REQUEST
from antiphon.server.http.auth import rate_limit_headers, request_caller, track_response
from antiphon.server.http.errors import DEFECT_MESSAGE, first_error
from antiphon.server.responses.create import PreparedResponse, prepare_response
from antiphon.server.responses.metrics import ResponseMeasurement
from antiphon.server.transport import logs
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.websocket_mode.lanes import Lanes
from antiphon.server.websocket_mode.memory import ConnectionMemory, Lane
from antiphon.server.websocket_mode.outgoing import OutgoingEvents, error_event
from antiphon.server.websocket_mode.steering import Steering, Submission, input_behind_outputs
from antiphon.server.websocket_mode.warm_up import WarmUpEngine, can_prefill, prefill
from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.responses.events import TERMINAL_EVENTS, ResponseCompleted, ResponseIncomplete, StreamEvent
from antiphon.wire.responses.items import Compaction, newest_compaction
from antiphon.wire.responses.profiles import EventEncoder
from antiphon.wire.responses.response import read_item
from antiphon.wire.responses.websocket import ResponseCreate

TURN_METHOD = "WEBSOCKET"
"""In the access log and in metrics, where an HTTP request has its method."""


class Connection(Struct, frozen=True, eq=False):
    """
    What the turns of one connection share.

    Attributes:
        tasks: run the turns.
    """

    service: Service
    scope: Scope
    encoder: EventEncoder
    websocket: ServerWebSocket
    memory: ConnectionMemory
    lanes: "Lanes[Turn]"
    steering: Steering
    tasks: asyncio.TaskGroup

    def limits(self) -> Mapping[str, str]:
        """What is left of the key's limits, as headers."""
        allowance = request_caller(self.scope).allowance
        return {} if allowance is None else rate_limit_headers(allowance.last_known_states())

    def send_error(self, error: ApiError, lane: Lane) -> None:
        """Send an error that belongs to no response."""
        self.websocket.send(self.encoder.encode_json(error_event(error, lane, self.limits())))
        self.websocket.flush()


class Turn:
    """
    One request.

    Args:
        request: as it came, or why it can't be read.
        previous_id: of the response that it continues, as far as that could be read.
        lease: of the message's bytes; given back at the end.
        submissions: the steering input that it begins with.
    """

    def __init__(
        self,
        connection: Connection,
        lane: Lane,
        request: ResponseCreate | ClientError,
        previous_id: str | None,
        lease: BodyLease,
        submissions: Sequence[Submission] = (),
    ) -> None:
        self._connection = connection
        self._lane = lane
        self._request = request
        self._previous_id = previous_id
        self._lease = lease
        self._submissions = submissions
        self._resolved_request: ResolvedRequest | None = None
        self._size_bytes = self._input_bytes = 0
        self._driver: Driver[ResolvedRequest, StreamEvent] | None = None
        self._session: ResponsesSession | None = None
        self._client: OutgoingEvents | None = None
        self._task: asyncio.Task[object] | None = None
        self._status = CLIENT_CLOSED_REQUEST
        self._is_behind = self._is_over = False

    async def run(self, has_begun: asyncio.Event) -> None:
        """
        Answer it; returns when all was sent and stored.

        Args:
            has_begun: set when the next turn begins.
        """
        self._task = asyncio.current_task()
        # Each turn is logged as a request of its own; as a task, it has a context of its own.
        structlog.contextvars.bind_contextvars(request_id=new_id("req"))
        started_at = time.perf_counter()
        try:
            if not self._is_over:
                await self._respond(started_at, has_begun)
        except ApiError as error:
            self._fail(error)
        except ExceptionGroup as group:  # of a driver's tasks
            errors, rest = group.split(ApiError)
            if errors is None or rest is not None:
                logs.get().exception("defect")
            self._fail(first_error(errors) if errors is not None and rest is None else _defect())
        except Exception:  # where a turn ends
            logs.get().exception("defect")
            self._fail(_defect())
        finally:
            self.drop()
            self._record(time.perf_counter() - started_at)
            self._client = self._driver = self._session = self._task = self._resolved_request = (
                None  # they refer to this turn, or are large
            )

    def drop(self) -> None:
        """Give back what it holds; it is over, or never runs."""
        self._lease.release()
        self._connection.steering.release(self._submissions)

    def hang_up(self) -> None:
        """The client has gone: end the response, or the loading of what it needs."""
        self._is_over = True
        if self._driver is not None:
            self._driver.hang_up()
        elif self._task is not None:  # what it needs is being loaded
            self._task.cancel()

    def shut_down(self, error: ApiError) -> None:
        """End the response, and tell the client why."""
        self._is_over = True
        if self._driver is not None:
            self._driver.shut_down(error)
            return
        self._fail(error)
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """Pause the engine, as the client is behind; a response that is yet to begin is paused when it does."""
        self._is_behind = True
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        """Let the engine go on, as the client has caught up."""
        self._is_behind = False
        if self._driver is not None:
            self._driver.resume()

    async def _respond(self, started_at: float, has_begun: asyncio.Event) -> None:
        connection = self._connection
        service, scope = connection.service, connection.scope
        if isinstance(self._request, ClientError):
            raise self._request
        service.live_sessions.check_admission()
        # Turns are counted as the requests that they are, and the handshake is not (docs/decisions/0028).
        if (allowance := request_caller(scope).allowance) is not None:
            await allowance.begin_request()
        prepared_response = await self._prepare(self._request)
        self._session = session = prepared_response.session
        engine, response_id = prepared_response.engine, prepared_response.resolved_request.id
        warm_up = WarmUpEngine(engine.capabilities) if prepared_response.resolved_request.is_warm_up else None
        client = self._client = OutgoingEvents(
            connection.encoder,
            connection.websocket,
            self._lane,
            on_created=self._on_created,
            on_end=self._on_end,
            limits=connection.limits,
        )
        # Nothing is awaited between the two: what ends this turn there would leave a conversation locked.
        async with prepared_response, track_response(scope, lambda: session.tokens):
            input_items = list(prepared_response.resolved_request.input_items)
            self._input_bytes = len(await offload(self._size_bytes, encode, input_items))
            driver = self._driver = Driver(session, client, service.store, metrics=service.metrics, tools=prepared_response.tools)
            if self._is_behind:
                driver.pause()
            is_made = service.background.streams.track(response_id, driver)
            with is_made, ResponseMeasurement(service, request_caller(scope), response_id, prepared_response.model, client, started_at):
                await driver.run(warm_up or engine, prepared_response.settings, prepared_response.resolved_request)
        service.metrics.stream_events += client.event_count
        if client.error is not None:
            self._fail(client.error)
        elif isinstance(client.last_event, TERMINAL_EVENTS):
            self._status = 200
        if warm_up is not None and warm_up.request is not None and can_prefill(prepared_response.model_engine):
            connection.tasks.create_task(prefill(prepared_response.model_engine, prepared_response.settings, warm_up.request, has_begun))

    async def _prepare(self, request: ResponseCreate) -> PreparedResponse:
        """Load what the request refers to: from the connection's memory, or from the store."""
        connection, memory = self._connection, self._connection.memory
        if request.background:
            raise ClientError(
                "Unsupported parameter: 'background' is not supported over a WebSocket.", code="unsupported_parameter", param="background"
            )
        # A turn that steering began has its submissions already; others take what waits for the outputs that they bring.
        if self._previous_id is not None and not self._submissions:
            self._submissions = connection.steering.take(self._previous_id, self._lane)
            if self._submissions:
                request = structs.replace(request, input=input_behind_outputs(request.input_items, self._submissions))
        request = self._request = structs.replace(request, stream=True)
        self._size_bytes = self._lease.size_bytes + sum(submission.lease.size_bytes for submission in self._submissions)
        history = memory.find(self._previous_id) if self._previous_id is not None else None
        try:
            prepared_response = await prepare_response(connection.service, connection.scope, request, self._size_bytes, history)
        except ClientError as error:
            # The store never had it where `store` was false; why the memory lacks it is what helps the client.
            if error.code == "previous_response_not_found" and (reason := memory.explain(self._previous_id)) is not None:
                raise reason from None
            raise
        self._resolved_request = prepared_response.resolved_request
        return prepared_response

    def _on_created(self, response_id: str) -> None:
        if self._submissions:
            self._connection.steering.release(self._submissions)
            self._submissions = ()
        assert isinstance(self._request, ResponseCreate)
        # A warm-up has no output that could be steered.
        if self._request.generate is not False:
            self._connection.steering.begin(response_id, self._lane, self._request)

    def _on_end(self, event: StreamEvent) -> None:
        connection, resolved_request, client = self._connection, self._resolved_request, self._client
        assert resolved_request is not None and client is not None and isinstance(event, TERMINAL_EVENTS)
        response = event.response
        if isinstance(event, ResponseCompleted | ResponseIncomplete):
            past_bytes = resolved_request.size_bytes - self._size_bytes
            assert self._session is not None
            # Decoded once, here, so that continuing takes no decoding (docs/decisions/0028).
            output = [read_item(item.json) if isinstance(item, Unknown) else item for item in self._session.output]
            all_items = (*resolved_request.previous_items, *resolved_request.input_items, *output)
            size_bytes = past_bytes + self._input_bytes + client.output_bytes
            if (start := newest_compaction(output)) or (output and isinstance(output[0], Compaction)):
                all_items, size_bytes = tuple(output[start:]), client.output_bytes  # nothing from before it is read again
            connection.memory.remember(self._lane, response.id, KnownHistory(all_items, size_bytes))
        elif self._previous_id is not None:
            connection.memory.evict(self._lane, self._previous_id)
        next_turn = connection.steering.end(response)
        if next_turn is not None:
            lease = connection.service.body_budget.lease(self._lease.holder)
            turn = Turn(connection, next_turn.lane, next_turn.request, response.id, lease, next_turn.submissions)
            connection.lanes.add_first(next_turn.lane, turn)

    def _fail(self, error: ApiError) -> None:
        """Tell the client of an error, unless its response did, and forget what it could not continue."""
        connection = self._connection
        self._status = error.status
        if self._previous_id is not None:
            connection.memory.evict(self._lane, self._previous_id)
        if self._submissions:
            submissions, self._submissions = self._submissions, ()
            connection.steering.fail_creation(submissions, error)
        if self._client is None or not self._client.has_sent_error:
            connection.send_error(error, self._lane)
        if self._resolved_request is not None:
            connection.steering.abandon(self._resolved_request.id)

    def _record(self, elapsed_s: float) -> None:
        """Count it and log it, as an HTTP request of its own."""
        scope = self._connection.scope
        self._connection.service.metrics.requests[scope["path"], TURN_METHOD, self._status].observe(elapsed_s)
        logs.get().info("request", method=TURN_METHOD, path=scope["path"], status=self._status, ms=round(elapsed_s * 1000, 1))


def _defect() -> ServerError:
    return ServerError(DEFECT_MESSAGE, code="server_error")
