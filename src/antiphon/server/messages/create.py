"""`POST /v1/messages`: a message, whole or as a stream of events; and `POST /v1/messages/count_tokens`."""

import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon.errors import ApiError, ServerError
from antiphon.offload import offload
from antiphon.protocols.messages.session import MessagesSession
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.registry import ServedModel
from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import rewrite_headers
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import read_json_body, read_question
from antiphon.server.http.driving import driving_session
from antiphon.server.http.errors import add_headers, error_response, json_response
from antiphon.server.messages.prepare import PreparedMessage, count_input, prepare_message
from antiphon.server.responses.event_stream import EventStream, run_stream
from antiphon.server.responses.metrics import AnswerTokens, count_answer
from antiphon.server.responses.omitted import log_omissions, omission_headers
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.messages.events import PING, MessageEncoder, MessageEvent, MessageStart
from antiphon.wire.messages.request import decode_count_tokens_request, decode_messages_request
from antiphon.wire.messages.response import MessageResponse, MessageTokensCount

ESTIMATED_HEADER = "antiphon-estimated"
"""Says that tokens were estimated, as the engine can't count them."""

_ENCODER = MessageEncoder()
"""One for all streams, as it keeps no state."""


class MessageCollector:
    """The client of a message that is not streamed. It keeps the last event, which is the whole message."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None  # no stream, so no first token
        self.last_event: MessageEvent | None = None
        self.error: ApiError | None = None

    def send(self, event: MessageEvent) -> None:
        self.last_event = event

    def flush(self) -> None:
        """Nothing to do: nothing is sent before the end."""

    def close(self, error: ApiError | None) -> None:
        self.error = error


T = TypeVar("T")

_MessageClient = EventStream[MessageEvent] | MessageCollector


class MessagesEndpoint:
    """A bare ASGI endpoint, because a stream writes to the transport."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, started_at = self._service, time.perf_counter()
        body = await read_question(service, Request(scope, receive))
        size_bytes = len(body)
        request = await offload(size_bytes, decode_messages_request, body)
        del body  # as large as the request that was made of it
        message = await prepare_message(service, scope, request, size_bytes)
        headers = omission_headers(message.omissions)
        if headers:
            log_omissions(message.omissions, message.model.name)
        headers |= message.route_headers
        # First: `message_start` tells the count, and `max_tokens` is cut to what the window has left (record 0035).
        session = message.session((await count_input(message)).tokens)
        if request.stream:
            heartbeat_s = service.config.server.heartbeat_s
            stream = EventStream[MessageEvent](_ENCODER, scope, send, heartbeat_s, headers, opening_events=(MessageStart,), heartbeat=PING)
            if await self._stream(scope, message, session, stream, started_at, headers):
                return
            reply = error_response(stream.error or ServerError("The stream ended before it began."), scope)
        else:
            reply = await self._collect(scope, message, session, started_at, headers)
        add_headers(reply, headers | rewrite_headers(session.rewrite_status))
        await reply(scope, receive, send)

    async def _stream(
        self,
        scope: Scope,
        message: PreparedMessage,
        session: MessagesSession,
        client: EventStream[MessageEvent],
        started_at: float,
        headers: MutableMapping[str, str],
    ) -> bool:
        """Stream the message; returns False where nothing was sent, and `client.error` is to be sent as an HTTP error."""
        is_sent = await self._drive(scope, message, session, client, started_at, headers, functools.partial(run_stream, client))
        self._service.metrics.stream_events += client.event_count
        return is_sent

    async def _collect(
        self, scope: Scope, message: PreparedMessage, session: MessagesSession, started_at: float, headers: MutableMapping[str, str]
    ) -> Response:
        client = MessageCollector()
        await self._drive(scope, message, session, client, started_at, headers, lambda run: run())
        if client.error is not None:
            return error_response(client.error, scope)
        if not isinstance(client.last_event, MessageResponse):
            return Response(status_code=499)  # the client hung up; only the log sees this
        return json_response(encode(client.last_event))

    async def _drive(
        self,
        scope: Scope,
        message: PreparedMessage,
        session: MessagesSession,
        client: _MessageClient,
        started_at: float,
        headers: MutableMapping[str, str],
        respond: Callable[[Callable[..., Awaitable[None]]], Awaitable[T]],
    ) -> T:
        """Run the message, counted, within the limits of its key, and ended with its connection; returns what `respond` returns."""
        model, tokens = message.model.name, lambda: session.tokens
        async with driving_session(self._service, scope, session, client, model=model, headers=headers, tokens=tokens) as driver:
            with self._measuring(request_caller(scope), message.model, session, client, started_at):
                return await respond(functools.partial(driver.run, message.engine, message.settings, message.resolved_request))

    @contextlib.contextmanager
    def _measuring(
        self, caller: Caller, model: ServedModel, session: MessagesSession, client: _MessageClient, started_at: float
    ) -> Iterator[None]:
        """Count the message, however it ends."""
        try:
            yield
        finally:
            service, usage, tokens = self._service, session.usage, None
            outcome = "failed" if client.error else session.outcome or "cancelled"
            if usage is not None:
                # The API counts cached tokens apart; the sum of the three is the whole input.
                input_tokens = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
                tokens = AnswerTokens(input_tokens, usage.output_tokens, usage.cache_read_input_tokens)
            count_answer(service, caller, model, "messages", outcome, client, started_at, tokens)
            if outcome in ("completed", "incomplete") and service.config.logging.content:
                logs.get().info("answered", content=session.content())


def count_message_tokens(service: Service) -> EndpointFunction:
    """The endpoint `POST /v1/messages/count_tokens`."""

    async def count_tokens(request: Request) -> Response:
        body = await read_json_body(request)
        service.live_sessions.check_admission()
        counted_request = await offload(len(body), decode_count_tokens_request, body)
        message = await prepare_message(service, request.scope, counted_request, len(body))
        count = await count_input(message)
        headers = {**omission_headers(message.omissions), **message.route_headers}
        if count.is_estimated:
            headers[ESTIMATED_HEADER] = "1"
        return json_response(encode(MessageTokensCount(input_tokens=count.tokens)), headers=headers)

    return count_tokens
