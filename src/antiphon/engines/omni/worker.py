"""
One MiniCPM-o worker: who has room for one conversation at a time, and says itself when it has room for the next.

A worker that was left takes a while to be ready again, and until then turns whoever comes away. So a place is left only when the worker
says that it is idle, and taken only after it has said so.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, repeat
from typing import Literal, Protocol

import msgspec
from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import Deliver, EngineConversation, Fetch
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.omni.conversation import OmniConversation
from antiphon.engines.omni.session import BackendSession
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import dial
from antiphon.errors import ApiError, UpstreamError
from antiphon.wire.upstream.minicpmo_backend import Mode, SessionClose, decode_health, encode

HEALTH_TIMEOUT_S = 5.0
"""How long a worker may take to say how it is."""

POLL_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.5)
"""How long to wait before a worker is asked again; the last of them ever after."""

CLOSE_TIMEOUT_S = 3.0
"""How long a worker may take to say that a session is closed."""

OmniWorkerStatus = Literal["idle", "busy", "loading", "failed", "unreachable"]

_STATUS_BY_HEALTH: dict[str, OmniWorkerStatus] = {"idle": "idle", "loading": "loading", "error": "failed", "offline": "unreachable"}

_STATUS_BY_FAILURE: dict[str, OmniWorkerStatus] = {"503": "loading", "timeout": "busy"}
"""What it means that there is no health to read: a model that is at work may leave no time to answer."""

_BUSY_REASONS = frozenset({"403", "409", "429", "503"})
"""Answers to a handshake that mean: not now. A worker that closes before it accepts is a 403 on the wire."""


_SAFE_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What may stand in an address."""


class OmniWorkerOptions(Protocol):
    """What the configuration says of how workers are spoken to."""

    @property
    def protocol(self) -> str:
        """What they speak: `backend` or `worker`."""

    @property
    def timeout_connect_s(self) -> float:
        """The longest until a worker is found idle and connected."""

    @property
    def timeout_session_s(self) -> float:
        """The longest that a session may take to begin."""

    @property
    def timeout_idle_s(self) -> float:
        """The longest that a worker may say nothing when it has something to do."""

    @property
    def timeout_release_s(self) -> float:
        """The longest that is waited for a worker to be idle again."""


class _BodyListener:
    """Takes an answer that is one body, and has no use for it."""

    def on_events(self, events: list[bytes]) -> bool:
        return True

    def on_stream_end(self) -> bool:
        return True


class OmniWorker:
    """
    A worker.

    Args:
        notice: takes lines for the operator.

    Attributes:
        address: where it is.
        is_taken: whether it has a conversation, or one that it has not recovered from.
        is_native: whether it is the C++ server, as far as is known; that one is asked one question in a session.
        session_s: the longest that a session may take to begin.
    """

    def __init__(
        self,
        address: str,
        upstream: UpstreamClient,
        options: OmniWorkerOptions,
        capabilities: Capabilities,
        fetch: Fetch,
        notice: Callable[[str], None],
    ) -> None:
        self.capabilities = structs.replace(capabilities, sessions=1)
        self.address = address
        self.fetch = fetch
        self.session_timeout_s = options.timeout_session_s
        self.is_taken = False
        self.is_native = False
        self._options = options
        self._upstream = upstream
        self._notice = notice
        self._conversations: set[OmniConversation] = set()
        self._is_stopped = False

    async def start(self) -> None:
        """Nothing yet: a worker that is down must not keep this server down."""

    async def stop(self) -> None:
        """Let go of everything; what is being said breaks."""
        self._is_stopped = True
        for conversation in tuple(self._conversations):
            conversation.abort()
        self._upstream.close()

    def note(self, line: str) -> None:
        """Tell the operator."""
        self._notice(f"Worker {self.address}: {self._upstream.redact(ApiError(line)).message}")

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation with the worker, which is there and has nothing else to do.

        Leaving it returns when the worker can take the next.

        Raises:
            UpstreamError: the worker can't be reached, or has something else to do; on leaving: it has had long enough to be idle.
        """
        self.is_taken = True
        is_idle = True
        try:
            line = await self.acquire_session("full_duplex" if settings.kind in ("audio", "video") else "turn_based")
            async with asyncio.TaskGroup() as tasks:
                conversation = OmniConversation(self, line, deliver, tasks)
                self._conversations.add(conversation)
                try:
                    yield conversation
                finally:
                    self._conversations.discard(conversation)
                    is_idle = await conversation.release()
        finally:
            self.is_taken = False
        if not is_idle:
            raise _unavailable_error("busy")

    async def probe(self) -> None:
        """
        Ask the worker how it is.

        Raises:
            UpstreamError: it is not there, of no use, or has something else to do.
        """
        if (standing := await self.fetch_status()) != "idle":
            raise _unavailable_error(standing)

    async def fetch_status(self) -> OmniWorkerStatus:
        """What the worker says that it does."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                body = await self._upstream.fetch("/health", HEALTH_TIMEOUT_S)
            if isinstance(body, UpstreamFailure):
                return _STATUS_BY_FAILURE.get(body.reason, "unreachable")
            health = decode_health(body)
        except TimeoutError:
            return "busy"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "unreachable"
        self.is_native = health.engine is not None
        if health.worker_status is not None:
            return _STATUS_BY_HEALTH.get(health.worker_status, "busy")
        is_taken = health.active_session_id or health.current_session_id
        return _STATUS_BY_HEALTH.get(health.status, "busy" if is_taken else "idle")

    # How a conversation gets its lines

    async def acquire_session(self, mode: Mode) -> BackendSession:
        """
        A line to the worker, once that has nothing else to do.

        Raises:
            UpstreamError: it doesn't come to that soon.
        """
        standing: OmniWorkerStatus = "unreachable"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout_connect_s):
                for pause_s in _poll_delays_s():
                    standing = await self.fetch_status()
                    if standing in ("unreachable", "failed", "loading"):
                        break
                    if standing == "idle" and (line := await self._dial(mode)) is not None:
                        return line
                    await asyncio.sleep(pause_s)
        raise _unavailable_error(standing)

    async def _dial(self, mode: Mode) -> BackendSession | None:
        """A line; None where the worker has no room yet."""
        line = BackendSession(mode, self._options.timeout_idle_s, self.note)
        path = "/backend" if self._options.protocol == "backend" else f"/v1/worker/{'duplex' if mode == 'full_duplex' else 'chat'}"
        failure: UpstreamFailure | None = None
        is_up = False
        try:
            url = self._upstream.websocket_url(path, "").removesuffix("?")
            failure = await dial(line.websocket, url, self._upstream.headers, self._upstream.tls, self._options.timeout_connect_s)
            is_up = failure is None
        finally:
            if not is_up:
                line.close()
        if failure is None:
            return line
        if failure.reason in _BUSY_REASONS:
            return None
        self._upstream.count_failure(failure.reason)
        raise self._upstream.redact(failure.error)

    def is_compatible(self, session: BackendSession, mode: Mode) -> bool:
        """Whether a session of that mode may begin on the line."""
        return self._options.protocol == "backend" or session.mode == mode

    async def release_session(self, session: BackendSession | None) -> bool:
        """Let the worker end the session, if there is one; whether it came to have nothing to do, or there is no worker any more."""
        if session is not None:
            session.detach()
            if session.has_begun and session.is_open and not self._is_stopped:
                await self._close_session(session)
            session.close()
        return await self._wait_until_idle()

    async def _close_session(self, session: BackendSession) -> None:
        with contextlib.suppress(TimeoutError, ApiError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._options.protocol == "worker":
                    session.send_close(SessionClose())
                    await asyncio.shield(session.end_future)
                elif session.session_id is not None and _SAFE_SESSION_ID.fullmatch(session.session_id):
                    request = self._upstream.encode_request(
                        "POST", f"/sessions/{session.session_id}/close", encode({"reason": "user_stop"})
                    )
                    await self._upstream.stream(request, _BodyListener(), lambda _exchange: None)

    async def _wait_until_idle(self) -> bool:
        standing: OmniWorkerStatus = "busy"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout_release_s):
                for pause_s in _poll_delays_s():
                    standing = await self.fetch_status()
                    if self._is_stopped or standing in ("idle", "unreachable", "failed"):
                        break
                    await asyncio.sleep(pause_s)
        if standing != "idle" and not self._is_stopped:
            self.note(f"is {standing} after a session was left, and gets nobody until it is idle.")
        return self._is_stopped or standing in ("idle", "unreachable")


def _poll_delays_s() -> Iterator[float]:
    return chain(POLL_DELAYS_S, repeat(POLL_DELAYS_S[-1]))


def _unavailable_error(status: OmniWorkerStatus) -> ApiError:
    message = {
        "unreachable": "The worker can't be reached.",
        "failed": "The worker says that it has failed.",
        "loading": "The worker is still loading its model.",
    }.get(status, "The worker is busy.")
    return UpstreamError(message, status=503, code="worker_busy", type="service_unavailable_error", retry_after_s=1)
