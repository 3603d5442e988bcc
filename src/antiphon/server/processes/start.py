"""
Serving while the server starts: its address answers before its models are there.

Probes, the page and its state are answered at once; everything else waits until the server is ready, and then goes the
usual way.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import structlog
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon import __version__
from antiphon.config.listing import hide_folders
from antiphon.config.load import Config
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.runtime.access.keys import KeyAccess, Keyring
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.service import build_store, check_exposure, requires_keys
from antiphon.server.admin.authority import answer_authority
from antiphon.server.admin.health import Health, Version, starting_readiness
from antiphon.server.console.assets import page_files
from antiphon.server.console.page import answer_asset, answer_index
from antiphon.server.console.state import starting_state
from antiphon.server.http.access_log import PROBE_PATHS, log_request
from antiphon.server.http.auth import verify_origin
from antiphon.server.http.errors import REQUEST_ID_SCOPE_KEY, error_response, json_response
from antiphon.server.http.headers import request_headers
from antiphon.server.tls.start import server_tls
from antiphon.server.transport.connection import uvicorn_config
from antiphon.weights.watch import WeightsView
from antiphon.wire.http.start import StartStatus, WeightsStatus

MAX_WAITING = 1024
"""The most requests that wait for the server to be ready; more get a 503 at once."""

DEFAULT_RETRY_S = 5.0
"""When to try again, where it is not known how long the start takes."""

_PROBES = ("/livez", "/readyz", "/health")


class WeightsProgress(Protocol):
    """
    How far the weights are.

    Attributes:
        failure: why they could not be fetched; None while they can.
    """

    failure: str | None

    def views(self) -> Sequence[WeightsView]:
        """All weights that had to be fetched, in the order in which that began."""

    def mark_loading(self) -> None:
        """What has been fetched is being loaded."""


class Start:
    """
    How far a server is that starts.

    Attributes:
        access: what requests need, as far as is known.
    """

    def __init__(self, watch: WeightsProgress, access: KeyAccess) -> None:
        self._watch = watch
        self.access = access
        self.is_loading = False

    def begin_loading(self) -> None:
        """The weights are there; from here on the status is `loading`."""
        self.is_loading = True
        self._watch.mark_loading()

    def status(self) -> StartStatus:
        """For probes and the page; without names where a key is needed."""
        weights = [
            WeightsStatus(
                name=view.name if self.access.is_open else None,
                purpose=view.purpose,
                state=view.state,
                bytes=view.bytes,
                bytes_total=view.bytes_total,
                bytes_per_s=view.bytes_per_s,
                eta_s=view.eta_s,
            )
            for view in self._watch.views()
        ]
        if self._watch.failure is not None and not self.is_loading:
            message = hide_folders(self._watch.failure) if self.access.is_open else "Weights of a model can't be fetched."
            return StartStatus(reason="failed", message=message, weights=weights)
        return StartStatus(reason="loading" if self.is_loading else "fetching", weights=weights)

    def eta_s(self) -> float | None:
        """Seconds until what is being fetched is there, if that is known."""
        times = [view.eta_s for view in self._watch.views() if view.eta_s is not None]
        return max(times) if times else None


class StartupApp:
    """
    The application of a server that starts, and that of the server itself from `hand_over` on.

    Args:
        config: of which the models may still change.
    """

    def __init__(self, config: Config, start: Start) -> None:
        self._config = config
        self._start = start
        self._page = page_files()
        self._app: ASGIApp | None = None
        self._change_event = asyncio.Event()
        self._waiting = 0
        self._is_closed = False

    def hand_over(self, app: ASGIApp) -> None:
        """The server is ready: let `app` answer."""
        self._app = app
        self._change_event.set()

    def close(self) -> None:
        """The server will not be ready: tell all who wait."""
        self._is_closed = True
        self._change_event.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None and scope["type"] == "http":
            started_at = time.perf_counter()
            response = await self._respond(scope)
            if response is not None:
                await response(scope, receive, send)
                # The page asks each second how far the start is; only what was refused is news.
                is_probe = scope["path"] in PROBE_PATHS or response.status_code < 400
                log_request(scope, response.status_code, time.perf_counter() - started_at, is_probe=is_probe)
                return
        if self._app is not None:
            await self._app(scope, receive, send)

    async def _respond(self, scope: Scope) -> Response | None:
        """The answer to a request that comes early; None once the server is ready."""
        request_id = scope[REQUEST_ID_SCOPE_KEY] = new_id("req")
        structlog.contextvars.bind_contextvars(request_id=request_id)  # the server itself gives a request that waited another
        try:
            # Nothing here takes a key, but pages of other sites must not learn how the start goes either.
            if scope["path"] not in _PROBES:
                verify_origin(request_headers(scope), self._config.server, needs_key=False)
            response = await self._early_answer(Request(scope))
            if response is None:
                await self._wait()
        except ApiError as error:
            response = error_response(error, scope)
        except HTTPException as error:
            # Only `answer_asset` raises it: the page has no such file.
            response = error_response(ClientError("There is no such file.", status=error.status_code, code="unknown_url"), scope)
        if response is not None:
            response.headers["x-request-id"] = scope[REQUEST_ID_SCOPE_KEY]
            response.headers["cross-origin-resource-policy"] = "same-origin"
        return response

    async def _early_answer(self, request: Request) -> Response | None:
        path, has_page = request.url.path, self._config.server.console
        if request.method not in ("GET", "HEAD"):
            return None
        match path:
            case "/livez":
                return json_response(Health("ok"))
            case "/readyz" | "/health":
                return json_response(starting_readiness(self._start.status()), 503)
            case "/ca.crt":
                return await answer_authority(self._config)
            case "/version":
                return json_response(Version("antiphon", __version__))
            case "/console/state" if has_page:
                state = starting_state(request, self._config, self._start.status(), needs_key=not self._start.access.is_open)
                return json_response(state, headers={"cache-control": "no-store"})
            case "/" if has_page:
                return await answer_index(request, self._page)
            case _ if has_page and path.startswith("/console/assets/"):
                return await answer_asset(request, self._page, path.removeprefix("/console/assets/"))
        return None

    async def _wait(self) -> None:
        """
        Wait until the server is ready.

        Raises:
            ServerError: `model_loading`: that takes too long, or will not happen.
        """
        if self._waiting >= MAX_WAITING or self._is_closed:
            raise self._not_ready()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._config.server.start_wait_s):
                await self._change_event.wait()
        except TimeoutError:
            raise self._not_ready() from None
        finally:
            self._waiting -= 1
        if self._app is None:
            raise self._not_ready()

    def _not_ready(self) -> ServerError:
        status, eta_s = self._start.status(), self._start.eta_s()
        message = {
            "fetching": "The server is still fetching its models. Please try again later.",
            "loading": "The server is still loading its models. Please try again in a moment.",
            "failed": "The server can't fetch its models at present. Please try again later.",
        }[status.reason]
        return ServerError(message, status=503, code="model_loading", retry_after_s=DEFAULT_RETRY_S if eta_s is None else max(1.0, eta_s))


class StartupServer(uvicorn.Server):
    """Accepts connections until the server itself does, and keeps those that it has."""

    def __init__(self, config: Config, app: StartupApp) -> None:
        super().__init__(uvicorn_config(app, config.server, Metrics(), graceful_shutdown_s=1, tls=server_tls(config)))
        self._open_event = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._open_event.set()

    async def wait_open(self) -> None:
        """Wait until it accepts."""
        await self._open_event.wait()

    def leave_to_successor(self) -> None:
        """Accept no more; what is connected stays so until `end`."""
        for server in getattr(self, "servers", ()):
            server.close()

    def end(self) -> None:
        """Close all connections."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server itself."""
        yield


async def early_access(config: Config) -> KeyAccess:
    """
    What requests need, read from the store before anything else is there.

    Raises:
        ApiError: the store can't be used, or the server may not listen where it should.
    """
    store = build_store(config, None)
    await store.open()
    try:
        keyring = Keyring(store.keys, requires_keys(config))
        await keyring.open()
        # Before the address opens: without keys, the server must not be reachable from elsewhere for a moment either.
        check_exposure(config, has_live_key=keyring.has_live_key)
        return keyring.access
    finally:
        await store.close()
