"""
One MiniCPM-o worker: an engine for one conversation at a time.

After a conversation a worker takes a while to be ready, and refuses connections until then. So a conversation is over
only when the worker's `/health` says that it is idle, and the next one begins only after that.
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
from antiphon.engines.upstream.fast_path import ReadAccount
from antiphon.engines.upstream.http_exchange import UpstreamFailure
from antiphon.engines.upstream.websocket import dial
from antiphon.errors import ApiError, UpstreamError
from antiphon.masking import mask_password
from antiphon.wire.upstream.minicpmo_backend import Mode, SessionClose, decode_health, encode

HEALTH_TIMEOUT_S = 5.0
"""The timeout of `GET /health`."""

POLL_DELAYS_S = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Pauses between polls of `/health`; the last one repeats."""

CLOSE_TIMEOUT_S = 3.0
"""How long a worker may take to close a session."""

OmniWorkerStatus = Literal["idle", "busy", "loading", "failed", "unreachable"]

_STATUS_BY_HEALTH: dict[str, OmniWorkerStatus] = {"idle": "idle", "loading": "loading", "error": "failed", "offline": "unreachable"}

_STATUS_BY_FAILURE: dict[str, OmniWorkerStatus] = {"503": "loading", "timeout": "busy"}
"""The status when `/health` fails: a model at work may leave the server no time to respond."""

_BUSY_REASONS = frozenset({"403", "409", "429", "503"})
"""Handshake responses that mean "not now". A FastAPI worker that closes before it accepts sends a 403."""

_SAFE_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Session ids that may stand in a URL."""


class OmniWorkerOptions(Protocol):
    """
    The part of `OmniOptions` that a worker needs; `engine` imports this module lazily, so not the other way round.
    """

    @property
    def protocol(self) -> str:
        """`backend` or `worker`."""

    @property
    def timeout_connect_s(self) -> float:
        """Until the worker is idle and connected."""

    @property
    def timeout_session_s(self) -> float:
        """Until a session begins."""

    @property
    def timeout_idle_s(self) -> float:
        """That the worker may be silent while an answer is due."""

    @property
    def timeout_hang_s(self) -> float:
        """That the worker may leave a ping unanswered, with the silence before."""

    @property
    def timeout_release_s(self) -> float:
        """Until the worker is idle again after a conversation."""


class _BodyListener:
    """Discards a response's body."""

    def on_events(self, events: list[bytes]) -> bool:
        return True

    def on_stream_end(self) -> bool:
        return True

    def on_limit(self) -> bool:
        return True

    def open_fast_path(self, read: bytes, pieces: list[bytes], account: ReadAccount) -> None:
        """It is not a stream of text."""


class OmniWorker:
    """
    A worker, as an engine.

    Args:
        notice: takes lines for the operator.

    Attributes:
        address: its URL.
        is_taken: whether it has a conversation, or is still recovering from one.
        is_native: whether it is the C++ server, by its latest `/health`; that one takes one question a session.
        session_timeout_s: until a session begins.
        response_limits: on an answer, and on a turn in full duplex.
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
        self.response_limits = upstream.response_limits
        self.is_taken = False
        self.is_native = False
        self._options = options
        self._upstream = upstream
        self._notice = notice
        self._conversations: set[OmniConversation] = set()
        self._is_stopped = False

    async def start(self) -> None:
        pass  # a worker that is down must not keep this server down

    async def stop(self) -> None:
        self._is_stopped = True
        for conversation in tuple(self._conversations):
            conversation.abort()
        self._upstream.close()

    def note(self, line: str) -> None:
        """Send a line to the operator, with secrets redacted."""
        self._notice(f"Worker {mask_password(self.address)}: {self._upstream.redact(ApiError(line)).message}")

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """
        A conversation with the worker; leaving it returns when the worker can take the next.

        Raises:
            UpstreamError: the worker can't be reached or is busy; on leaving: it did not become idle in time.
        """
        self.is_taken = True
        is_idle = True
        try:
            session = await self.acquire_session("full_duplex" if settings.kind in ("audio", "video") else "turn_based")
            async with asyncio.TaskGroup() as tasks:
                conversation = OmniConversation(self, session, deliver, tasks)
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
        if (status := await self.fetch_status()) != "idle":
            raise _unavailable_error(status)

    async def fetch_status(self) -> OmniWorkerStatus:
        """The worker's status by its `/health`."""
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

    # `WorkerAccess`, for conversations

    def count_failure(self, reason: str) -> None:
        self._upstream.count_failure(reason)

    async def acquire_session(self, mode: Mode) -> BackendSession:
        status: OmniWorkerStatus = "unreachable"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout_connect_s):
                for delay_s in _poll_delays_s():
                    status = await self.fetch_status()
                    if status in ("unreachable", "failed", "loading"):
                        break
                    if status == "idle" and (session := await self._dial(mode)) is not None:
                        return session
                    await asyncio.sleep(delay_s)
        raise _unavailable_error(status)

    async def _dial(self, mode: Mode) -> BackendSession | None:
        """A connection; None if the worker is still busy."""
        # The C++ server answers no ping while it reads a question, which may be long.
        hang_timeout_s = None if self.is_native and mode == "turn_based" else self._options.timeout_hang_s
        session = BackendSession(mode, self._options.timeout_idle_s, hang_timeout_s, self.note)
        path = "/backend" if self._options.protocol == "backend" else f"/v1/worker/{'duplex' if mode == 'full_duplex' else 'chat'}"
        failure: UpstreamFailure | None = None
        is_connected = False
        try:
            url = self._upstream.websocket_url(path, "").removesuffix("?")
            failure = await dial(session.websocket, url, self._upstream.headers, self._upstream.tls, self._options.timeout_connect_s)
            is_connected = failure is None
        finally:
            if not is_connected:
                session.close()
        if failure is None:
            return session
        if failure.reason in _BUSY_REASONS:
            return None
        raise self._upstream.report_failure(failure.error, failure.reason)

    def is_compatible(self, session: BackendSession, mode: Mode) -> bool:
        return self._options.protocol == "backend" or session.mode == mode

    async def release_session(self, session: BackendSession | None) -> bool:
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
                    session.send(SessionClose(), expects_reply=False)
                    await asyncio.shield(session.end_future)
                elif session.session_id is not None and _SAFE_SESSION_ID.fullmatch(session.session_id):
                    request = self._upstream.encode_request(
                        "POST", f"/sessions/{session.session_id}/close", encode({"reason": "user_stop"})
                    )
                    await self._upstream.stream(request, _BodyListener(), lambda _exchange: None)

    async def _wait_until_idle(self) -> bool:
        status: OmniWorkerStatus = "busy"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout_release_s):
                for delay_s in _poll_delays_s():
                    status = await self.fetch_status()
                    if self._is_stopped or status in ("idle", "unreachable", "failed"):
                        break
                    await asyncio.sleep(delay_s)
        if status != "idle" and not self._is_stopped:
            self.note(f"{status} after a session; it gets no new conversation until it is idle.")
        return self._is_stopped or status in ("idle", "unreachable")


def _poll_delays_s() -> Iterator[float]:
    return chain(POLL_DELAYS_S, repeat(POLL_DELAYS_S[-1]))


def _unavailable_error(status: OmniWorkerStatus) -> ApiError:
    message = {
        "unreachable": "The worker can't be reached.",
        "failed": "The worker reports that it has failed.",
        "loading": "The worker is still loading its model.",
    }.get(status, "The worker is busy.")
    return UpstreamError(message, status=503, code="worker_busy", type="service_unavailable_error", retry_after_s=1)
