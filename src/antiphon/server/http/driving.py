"""What every answer that is made for the connection of an HTTP request has around it, whichever protocol it is in."""

import contextlib
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import TypeVar

from starlette.types import Scope

from antiphon.protocols.session import Session
from antiphon.runtime.core.driver import Driver, SessionClient, ToolRunner
from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import report_attempts
from antiphon.server.http.auth import track_response
from antiphon.server.transport import connection

ClientEventT = TypeVar("ClientEventT")
ServerEventT = TypeVar("ServerEventT")


@contextlib.asynccontextmanager
async def driving_session(
    service: Service,
    scope: Scope,
    session: Session[ClientEventT, ServerEventT],
    client: SessionClient[ServerEventT],
    *,
    model: str,
    headers: MutableMapping[str, str],
    tokens: Callable[[], int],
    choice_count: int = 1,
    tools: ToolRunner | None = None,
) -> AsyncIterator[Driver[ClientEventT, ServerEventT]]:
    """
    Count a session against the limits of its key, and end it with its connection, or with the server.

    Args:
        client: one with a `hold_head` is told by it that the engine was refused and tries again.
        model: that was asked for.
        headers: of the answer; they are set to who gives it before it begins.
        tokens: of the session, once it is over.
        choice_count: how many responses it makes.
        tools: runs what it calls; None for one that calls nothing.

    Raises:
        ClientError: on entering; the key has its maximum of running responses.
    """
    on_attempts = report_attempts(service, model, headers)
    async with track_response(scope, tokens), _track_more(scope, choice_count - 1):
        on_retry: Callable[[], None] = getattr(client, "hold_head", lambda: None)
        driver = Driver(session, client, service.store, metrics=service.metrics, on_retry=on_retry, on_attempts=on_attempts, tools=tools)
        with service.live_sessions.track(driver), connection.from_scope(scope).notify(driver):
            yield driver


def _track_more(scope: Scope, count: int) -> contextlib.AbstractAsyncContextManager[None]:
    """A place for each further choice, of those that the key may have at once."""
    return _track_each(scope, count) if count else contextlib.nullcontext()


@contextlib.asynccontextmanager
async def _track_each(scope: Scope, count: int) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(track_response(scope, lambda: 0))
        yield
