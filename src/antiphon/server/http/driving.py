"""What every answer that is made for the connection of an HTTP request has around it, whichever protocol it is in."""

import contextlib
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from starlette.types import Scope

from antiphon.protocols.session import Session
from antiphon.runtime.core.driver import Driver, SessionClient, ToolRunner
from antiphon.runtime.service import Service
from antiphon.server.http.answered_by import report_attempts
from antiphon.server.http.auth import request_caller, track_response
from antiphon.server.transport import connection

ClientEventT = TypeVar("ClientEventT")
ServerEventT = TypeVar("ServerEventT")


def driving_session(
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
) -> AbstractAsyncContextManager[Driver[ClientEventT, ServerEventT]]:
    """
    Count a session against the limits of its key, and end it with its connection, or with the server.

    Args:
        client: its `hold_head`, if it has one, is called when the engine was refused and tries again.
        model: that was asked for.
        headers: of the answer; they are set to who gives it before it begins.
        tokens: of the session, once it is over.
        choice_count: how many responses it makes.
        tools: runs what it calls; None for one that calls nothing.

    Raises:
        ClientError: on entering; the key has its maximum of running responses.
    """
    on_attempts = report_attempts(service, model, headers)
    on_retry: Callable[[], None] = getattr(client, "hold_head", _do_nothing)
    driver = Driver(session, client, service.store, metrics=service.metrics, on_retry=on_retry, on_attempts=on_attempts, tools=tools)
    limits = None if request_caller(scope).allowance is None else _track_choices(scope, tokens, choice_count)
    return _DrivenByConnection(driver, service, scope, limits)


class _DrivenByConnection(AbstractAsyncContextManager[Driver[ClientEventT, ServerEventT]], Generic[ClientEventT, ServerEventT]):
    # Every request has one: a class takes a third of the calls of a generator, and the loop keeps a list of generators.

    def __init__(
        self, driver: Driver[ClientEventT, ServerEventT], service: Service, scope: Scope, limits: AbstractAsyncContextManager[None] | None
    ) -> None:
        self._driver = driver
        self._limits = limits
        self._live = service.live_sessions.track(driver)
        self._connection = connection.from_scope(scope)

    async def __aenter__(self) -> Driver[ClientEventT, ServerEventT]:
        # First: where it raises, nothing else was entered that would have to be left.
        if self._limits is not None:
            await self._limits.__aenter__()
        self._live.__enter__()
        self._connection.begin_notifying(self._driver)
        return self._driver

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._connection.end_notifying()
        self._live.__exit__()
        if self._limits is not None:
            await self._limits.__aexit__(kind, error, traceback)


def _do_nothing() -> None:
    pass


@contextlib.asynccontextmanager
async def _track_choices(scope: Scope, tokens: Callable[[], int], count: int) -> AsyncIterator[None]:
    """A place for each choice, of those that the key may have at once; `tokens` are those of all together."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(track_response(scope, tokens))
        for _ in range(count - 1):
            await stack.enter_async_context(track_response(scope, lambda: 0))
        yield
