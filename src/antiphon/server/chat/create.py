"""`POST /v1/chat/completions`: a completion, whole or as a stream of chunks."""

import functools
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon.errors import ApiError, ServerError
from antiphon.offload import offload
from antiphon.runtime.service import Service
from antiphon.server.chat.outcome import ChatMeasurement
from antiphon.server.chat.prepare import prepare_chat
from antiphon.server.chat.prepared import PreparedChat
from antiphon.server.chat.spoken import encode_audio
from antiphon.server.http.answered_by import rewrite_headers
from antiphon.server.http.auth import request_caller
from antiphon.server.http.body import read_question
from antiphon.server.http.driving import driving_session
from antiphon.server.http.errors import add_headers, error_response, json_response
from antiphon.server.responses.event_stream import EventStream, run_stream
from antiphon.wire.chat.response import ChatCompletion
from antiphon.wire.codec.types import encode

T = TypeVar("T")

Run = Callable[..., Awaitable[None]]
"""Makes an answer; see `Driver.run` for its argument."""


class ChatEndpoint:
    """A bare ASGI endpoint, because a stream writes to the transport."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, started_at = self._service, time.perf_counter()
        body = await read_question(service, Request(scope, receive))
        chat = await prepare_chat(service, scope, body)
        del body  # as large as the request that was made of it
        await send_answer(service, chat, scope, receive, send, started_at)


async def send_answer(service: Service, chat: PreparedChat, scope: Scope, receive: Receive, send: Send, started_at: float) -> None:
    """Answer a chat, whole or as a stream; `started_at` by `time.perf_counter`. Releases what the chat holds."""
    await (_send_whole if chat.encoder is None else _send_stream)(service, chat, scope, receive, send, started_at)


async def _send_whole(service: Service, chat: PreparedChat, scope: Scope, receive: Receive, send: Send, started_at: float) -> None:
    collector, headers = CompletionCollector(), dict(chat.headers)

    async def respond(run: Run) -> Response:
        await run()
        return await collector.response(service, chat.audio_format)

    reply = await drive_chat(service, scope, chat, collector, started_at, headers, respond)
    # Only now, when its tokens are counted, do its headers show the remaining limits.
    add_headers(reply, headers | rewrite_headers(chat.result.rewrite_status))
    await reply(scope, receive, send)


async def _send_stream(service: Service, chat: PreparedChat, scope: Scope, receive: Receive, send: Send, started_at: float) -> None:
    assert chat.encoder is not None
    heartbeat_s, headers = service.config.server.heartbeat_s, dict(chat.headers)
    # What is passed on may have no event for long: its server reads a long prompt, or lets it wait.
    client: EventStream[Any] = EventStream(chat.encoder, scope, send, heartbeat_s, headers, chat.opening_events, awaits_event=False)
    is_sent = await drive_chat(service, scope, chat, client, started_at, headers, functools.partial(run_stream, client))
    # Nothing has been sent, so the failure is a plain HTTP error: SDKs retry by its status.
    if not is_sent:
        reply = error_response(client.error or ServerError("The stream ended before it began."))
        add_headers(reply, headers)
        await reply(scope, receive, send)
    service.metrics.stream_events += client.event_count


async def drive_chat(
    service: Service,
    scope: Scope,
    chat: PreparedChat,
    client: "EventStream[Any] | CompletionCollector",
    started_at: float,
    headers: MutableMapping[str, str],
    respond: Callable[[Run], Awaitable[T]],
) -> T:
    """
    Run a completion for the connection of an HTTP request: it is counted, takes its place of the key's limits, and ends
    with the connection. Returns what `respond` returns, and releases what the chat holds.

    Args:
        headers: of the answer; who gives it is added to them before it begins.
        respond: is given what makes the completion; see `Driver.run` for its argument.
    """
    model = chat.model
    try:
        driving = driving_session(
            service,
            scope,
            chat.session,
            client,
            model=model.name,
            headers=headers,
            tokens=lambda: chat.result.tokens,
            choice_count=chat.choice_count,
            tools=chat.tools,
        )
        async with driving as driver:
            with ChatMeasurement(service, request_caller(scope), chat.protocol, model, chat.result, client, started_at):
                return await respond(functools.partial(driver.run, chat.engine, chat.settings, chat.opening))
    finally:
        chat.release()


class CompletionCollector:
    """The client of a completion that is not streamed. It keeps the last event, which is the whole completion."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None  # no stream, so no first token
        self.error: ApiError | None = None
        self._answer: object = None

    def send(self, event: object) -> None:
        self._answer = event

    def flush(self) -> None:
        """Nothing to do: nothing is sent before the end."""

    def close(self, error: ApiError | None) -> None:
        self.error = error

    async def response(self, service: Service, audio_format: str | None) -> Response:
        """
        The HTTP response, once the completion is over.

        Args:
            audio_format: what a spoken answer is encoded to; None for a written one.
        """
        if self.error is not None:
            return error_response(self.error)
        answer = self._answer
        if answer is None:
            return Response(status_code=499)  # the client hung up; only the log sees this
        if isinstance(answer, bytes):
            return json_response(answer)
        size_bytes = 0
        if isinstance(answer, ChatCompletion) and audio_format is not None:
            size_bytes = await encode_audio(answer, audio_format, service.speech.audio_files)
        return json_response(await offload(size_bytes, encode, answer))
