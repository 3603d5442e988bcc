"""`GET /updates`: what operators see, as it changes, in one stream of server-sent events."""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.errors import invalid_value, shorten
from antiphon.runtime.access.keys import Caller
from antiphon.runtime.service import Service
from antiphon.server.audio.streaming import EVENT_STREAM_TYPE, CancellableRequest, HttpResponseWriter
from antiphon.server.http.auth import GuardedRoute, missing_scope_error, request_caller
from antiphon.server.http.headers import request_headers
from antiphon.server.http.operation import UNAVAILABLE, Operation, Parameter
from antiphon.server.operate.facts import TOPICS, Topic, gather
from antiphon.server.operate.hub import Listener, UpdateHub
from antiphon.server.operate.rows import build_rows
from antiphon.server.transport import connection

OPEN_TOPICS: tuple[Topic, ...] = ("status",)
"""Topics for every key: nothing in them is a tenant's."""

CUT_PATIENCE_S = 10.0
"""How long a listener that was cut off may take to read that event, before its connection is closed."""

_LISTEN = Operation(
    "getUpdates",
    "Server",
    "Follow what operators see",
    errors={
        400: "There is no such topic.",
        403: "A topic needs the scope `admin`: all but `status` do.",
        429: "There are too many such streams.",
        503: UNAVAILABLE,
    },
    query=[Parameter("topics", f"With commas: {', '.join(f'`{topic}`' for topic in TOPICS)}; by default all.", {"type": "string"})],
    description="Server-sent events: `queue.all` with a whole list, then `queue.row` with each row that changed, and `queue.gone` with the "
    "`id` of one that is gone; likewise for the other topics. With the header `last-event-id` a stream goes on where another was.",
    media_types=("text/event-stream",),
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/updates`."""
    return [_UpdatesRoute("/updates", UpdatesEndpoint(service), service=service, access="admin", operation=_LISTEN)]


class _UpdatesRoute(GuardedRoute):
    """A route for every key; which topics it may follow, `parse_topics` decides."""

    def is_open_to(self, scopes: Sequence[str]) -> bool:
        return True


class UpdatesEndpoint:
    """A bare ASGI endpoint, as it streams for as long as its client listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.hub = UpdateHub(
            partial(gather, service),
            partial(build_rows, service),
            is_shared=service.peers is not None,
            is_draining=lambda: service.live_sessions.is_draining,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, caller = self._service, request_caller(scope)
        topics = parse_topics(Request(scope).query_params, caller)
        service.live_sessions.check_admission()
        client = connection.from_scope(scope)
        timers: list[asyncio.TimerHandle] = []

        # The event that cuts a client off waits behind what the client has not read, so the connection is closed in any case.
        def on_cut() -> None:
            timers.append(asyncio.get_running_loop().call_later(CUT_PATIENCE_S, client.drop, "backlog"))

        # Without keys clients are told apart by their addresses.
        holder = caller.key_id or str((scope.get("client") or ("",))[0])
        listener = Listener(topics, holder, on_cut, is_operator=is_operator(caller))

        async def work() -> None:
            writer = HttpResponseWriter(scope, send, EVENT_STREAM_TYPE)
            while (chunk := await listener.next_chunk(service.config.server.heartbeat_s)) is not None:
                await writer.send_chunk(chunk)
            await writer.end()

        sessions = service.live_sessions
        try:
            await self.hub.listen(listener, request_headers(scope).get("last-event-id"))
            # It has no end of its own, so it ends with its key, and as soon as the server drains, which waits for what is under way.
            with sessions.track(listener, caller.key), sessions.on_drain(lambda: listener.end("end", {"reason": "shutdown"})):
                await CancellableRequest().run(scope, sessions, work)
        finally:
            self.hub.leave(listener)
            for timer in timers:
                timer.cancel()


def is_operator(caller: Caller) -> bool:
    """Whether the caller may see everything: its key has the scope `admin`, or the server needs no key."""
    return caller.key is None or "admin" in caller.key.scopes


def parse_topics(query: QueryParams, caller: Caller) -> Collection[Topic]:
    """
    The topics that a request asks for; without any, all that its caller may follow.

    Raises:
        ClientError: there is no such topic, or it needs another scope.
    """
    names = [name for text in query.getlist("topics") for name in text.split(",") if name]
    for name in names:
        if name not in TOPICS:
            raise invalid_value("topics", shorten(name), TOPICS)
        if name not in OPEN_TOPICS and not is_operator(caller):
            raise missing_scope_error("admin")
    return [topic for topic in (TOPICS if is_operator(caller) else OPEN_TOPICS) if topic in names or not names]
