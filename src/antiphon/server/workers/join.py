"""
`GET /v1/workers/join`: a worker on another machine connects, introduces itself, and serves conversations until it
leaves.

A worker answers as a model of this server, and sees what clients say. So joining needs a key of its own, which clients
don't have, and is refused where none is configured.
"""

import hashlib
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from antiphon.engines.remote.engine import RemoteEngine, unavailable_error
from antiphon.errors import ApiError, ClientError, quote_list, shorten
from antiphon.runtime.access.keys import ANONYMOUS_TENANT, Caller
from antiphon.runtime.core.ids import new_short_id
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, credential
from antiphon.server.http.operation import UNAVAILABLE, UPGRADE_REQUIRED, Operation
from antiphon.server.live.client import close_reason
from antiphon.server.transport import connection, logs
from antiphon.server.transport.limits import TokenBucket
from antiphon.server.transport.websocket import ServerWebSocket
from antiphon.server.transport.websocket_frames import POLICY_VIOLATION
from antiphon.wire.internal.worker_link import PATH, VERSION, VERSION_HEADER, Hello, JoinAccepted, JoinRefused

HELLO_TIMEOUT_S = 10.0
"""How long a worker may take to introduce itself."""

MESSAGES_PER_S, BYTES_PER_S = 100_000, 256 << 20
"""How fast a worker is read: it may send the output for hundreds of clients."""


_JOIN = Operation(
    "joinAsWorker",
    "Server",
    "Join as a worker",
    errors={409: "The worker speaks another version.", 426: UPGRADE_REQUIRED, 503: UNAVAILABLE},
    description="`antiphon worker` makes this request: a WebSocket handshake with the key of workers, which gets status 101. "
    "What follows is the link between two antiphons of the same version.",
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route that workers join by."""
    return [WorkerRoute(PATH, _JoinEndpoint(service), service=service, access="worker", operation=_JOIN)]


class WorkerRoute(GuardedRoute):
    """A route for holders of the workers' key."""

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """
        The worker.

        Raises:
            ClientError: workers can't join, the key is wrong, the version differs, or the request comes from a web
                page.
        """
        config = self.service.config
        worker_key, key = config.secrets.get(config.workers.key_env, "").strip(), credential(headers)
        if key is None:
            raise ClientError("Workers need a key, as bearer token.", status=401, code="invalid_api_key")
        if not worker_key:
            raise ClientError(
                f"This server accepts no workers. Its operator can allow them with a key in the variable {config.workers.key_env}.",
                status=403,
                code="no_workers",
            )
        if "origin" in headers:
            raise ClientError("Web pages can't join as workers.", status=403, code="origin_not_allowed")
        # By digests: they have one length, so the time tells nothing of the key's length; and they are bytes, as
        # `compare_digest` takes text in ASCII only.
        if not hmac.compare_digest(_digest(key), _digest(worker_key)):
            raise ClientError("The key is not this server's key for workers.", status=401, code="invalid_api_key")
        if headers.get(VERSION_HEADER, str(VERSION)) != str(VERSION):
            raise _version_mismatch(headers[VERSION_HEADER])
        return Caller(ANONYMOUS_TENANT)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _version_mismatch(version: object) -> ClientError:
    return ClientError(
        f"The worker speaks version {shorten(version)} of the link, this server version {VERSION}: install the same antiphon on both.",
        status=409,
        code="another_version",
    )


class _JoinEndpoint:
    """A bare ASGI endpoint that takes the connection over."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.live_sessions.check_admission()
        link = _WorkerConnection()
        link.websocket = await connection.from_scope(scope).upgrade(
            send, link, on_binary=link.receive, bucket=TokenBucket(MESSAGES_PER_S, bytes_per_s=BYTES_PER_S)
        )
        link.engine.endpoint.connect(link)
        link.websocket.resume_reading()
        # A worker is not a request under way: a stopping server waits for its conversations, not for it.
        self._service.metrics.active -= 1
        try:
            await self._serve(link, connection.from_scope(scope).client)
        finally:
            self._service.metrics.active += 1

    async def _serve(self, link: "_WorkerConnection", client: tuple[str, int] | None) -> None:
        try:
            hello = await link.engine.wait_for_hello(HELLO_TIMEOUT_S)
            self._check(hello)
            if link.engine.endpoint.is_over:  # it left right after its hello
                raise unavailable_error("The worker is gone.")
        except ApiError as error:
            reason = link.end_reason if link.engine.endpoint.is_over else error.message
            link.refuse(error)
            logs.get().warning("worker_refused", address=client[0] if client else "", reason=reason)
            await link.websocket.wait_closed()
            return
        worker = _build_worker(hello, link.engine, client)
        id, coordinator = worker.id, self._service.coordinator
        link.on_drained = lambda: self._on_worker_drained(id)
        # Runs before its conversations release their places: else waiting clients would be assigned to a lost worker.
        link.on_lost = lambda: coordinator.remove_worker(id)
        link.engine.endpoint.send(JoinAccepted(id))
        coordinator.add_worker(worker)
        logs.get().info(
            "worker_joined", worker=id, model=hello.model, address=worker.address, slots=hello.slots, draining=worker.is_draining
        )
        try:
            await link.websocket.wait_closed()
        finally:
            coordinator.remove_worker(id)
            logs.get().info("worker_left", worker=id, model=hello.model, reason=link.end_reason, draining=link.engine.is_draining)

    def _on_worker_drained(self, id: str) -> None:
        self._service.coordinator.drain(id)
        logs.get().info("worker_draining", worker=id)

    def _check(self, hello: Hello) -> None:
        """
        Check that the worker fits this server.

        Raises:
            ClientError: it does not.
        """
        if hello.version != VERSION:
            raise _version_mismatch(hello.version)
        models = [model.name for model in self._service.config.models if model.engine == "worker"]
        if hello.model not in models:
            advice = f"Workers may join for {quote_list(models)}." if models else 'No model has `engine = "worker"`.'
            raise ClientError(f"This server accepts no workers for the model '{hello.model}'. {advice}")
        if not hello.kinds:
            raise ClientError("The worker supports no kind of conversation.")


def _build_worker(hello: Hello, engine: RemoteEngine, client: tuple[str, int] | None) -> Worker:
    return Worker(
        id=new_short_id("worker"),
        model=hello.model,
        engine=engine,
        kinds=hello.kinds,
        slots=hello.slots,
        address=f"{hello.name} ({client[0]})" if client else hello.name,
        link=engine,
        version=hello.program or None,
        is_draining=engine.is_draining,
    )


class _WorkerConnection:
    """
    The WebSocket of a worker: carries its link.

    Attributes:
        engine: the worker.
        on_drained: called when the worker takes no more conversations.
        on_lost: called when the worker is gone.
        end_reason: why the link ended.
    """

    websocket: ServerWebSocket

    def __init__(self) -> None:
        self.end_reason = "it hung up"
        self.on_drained: Callable[[], object] = lambda: None
        self.on_lost: Callable[[], object] = lambda: None
        self.engine = RemoteEngine(on_gone=self._on_link_end, on_drain=self._on_engine_drained)

    def refuse(self, error: ApiError) -> None:
        """Send the error, and hang up."""
        self.engine.endpoint.send(JoinRefused(error.message))
        self.engine.endpoint.abort(error.message)

    def _on_link_end(self, reason: str) -> None:
        self.end_reason = reason
        self.on_lost()

    def _on_engine_drained(self) -> None:
        self.on_drained()

    # WebSocketListener

    def on_text(self, _text: bytes) -> None:
        self.engine.endpoint.abort("it sent a text message; frames must be binary")

    def receive(self, content: bytes) -> None:
        """Binary data: frames, or parts of them."""
        self.engine.endpoint.receive(content)

    def on_disconnect(self) -> None:
        self.engine.endpoint.connection_lost()

    def pause(self) -> None:
        self.engine.endpoint.pause()

    def resume(self) -> None:
        self.engine.endpoint.resume()

    # Called by the link

    def write(self, chunk: bytes) -> None:
        self.websocket.send_binary(chunk)
        self.websocket.flush()

    def close(self, reason: str) -> None:
        self.websocket.close(POLICY_VIOLATION, close_reason(reason))
