"""
`GET /v1/workers/join`: a worker on another machine dials in, says what it is, and gets conversations until it goes.

Whoever may join may answer as a model of this server and hears what its clients say. So there is no such route without a key of its own,
which no client has.
"""

import hashlib
import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from antiphon.engines.remote.engine import RemoteEngine, unavailable
from antiphon.errors import ClientMistake, Fault, listed, shown
from antiphon.runtime.access.keys import NOBODYS, Caller
from antiphon.runtime.core.ids import mint_short
from antiphon.runtime.scheduling.base import Worker
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, credential
from antiphon.server.live.client import reason_of
from antiphon.server.transport import connection, logs
from antiphon.server.transport.limits import Pace
from antiphon.server.transport.websocket import Socket
from antiphon.wire.internal.worker_link import PATH, VERSION, VERSION_HEADER, Hello, Refused, Welcome

HELLO_S = 10.0
"""How long a worker may take to say what it is."""

MESSAGES_PER_S, BYTES_PER_S = 100_000, 256 << 20
"""How fast a worker is read: it says what hundreds of clients are told."""

POLICY = 1008
"""The code that WebSockets are closed with of workers that cannot be taken, and of links that cannot go on."""


def routes(service: Service) -> list[Route]:
    """The WebSocket that workers join by."""
    return [WorkerRoute(PATH, _Join(service), service=service, access="worker", methods=["GET"])]


class WorkerRoute(GuardedRoute):
    """A route for whoever has the workers' key."""

    async def identify(self, scope: Scope, headers: Headers) -> Caller:
        """
        A worker, if that is who asks.

        Raises:
            ClientMistake: no worker may join, or this one has not the key, or is a web page.
        """
        config = self.service.config
        expected, given = config.secrets.get(config.workers.key_env, "").strip(), credential(headers)
        if given is None:
            raise ClientMistake("Workers join with a key, as bearer token.", status=401, code="invalid_api_key")
        if not expected:
            raise ClientMistake(
                f"No workers may join this server. Its operator allows it by a key in the variable {config.workers.key_env}.",
                status=403,
                code="no_workers",
            )
        if "origin" in headers:
            raise ClientMistake("A worker is no web page.", status=403, code="origin_not_allowed")
        if not hmac.compare_digest(_digest(given), _digest(expected)):
            raise ClientMistake("That is not the key that workers join with.", status=401, code="invalid_api_key")
        if headers.get(VERSION_HEADER, str(VERSION)) != str(VERSION):
            raise _of_another_version(headers[VERSION_HEADER])
        return Caller(NOBODYS)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _of_another_version(version: object) -> ClientMistake:
    return ClientMistake(
        f"It speaks version {shown(version)} of the link, and this server {VERSION}: both need the same antiphon.",
        status=409,
        code="another_version",
    )


class _Join:
    """The route, as a bare ASGI endpoint: it takes the connection over."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.live.admit()
        link = _Link()
        link.socket = await connection.of(scope).upgrade(
            send, link, on_binary=link.receive, pace=Pace(MESSAGES_PER_S, bytes_per_s=BYTES_PER_S)
        )
        link.engine.end.connect(link)
        link.socket.resume_reading()
        # A worker is no answer under way: a server that stops waits for the conversations with it, not for it.
        self._service.metrics.active -= 1
        try:
            await self._serve(link, connection.of(scope).client)
        finally:
            self._service.metrics.active += 1

    async def _serve(self, link: "_Link", client: tuple[str, int] | None) -> None:
        try:
            hello = await link.engine.greeted(HELLO_S)
            self._check(hello)
            if link.engine.end.is_over:  # since it said so; nobody is to be given a place with it
                raise unavailable("The worker is gone.")
        except Fault as fault:
            reason = link.reason if link.engine.end.is_over else fault.message
            link.refuse(fault)
            logs.get().warning("worker_refused", address=client[0] if client else "", reason=reason)
            await link.socket.wait_closed()
            return
        worker = _worker_of(hello, link.engine, client)
        id, coordinator = worker.id, self._service.coordinator
        link.on_drained = lambda: self._drained(id)
        # Before those who had a place with it give it back: else whoever waits would be given a place with nobody.
        link.on_lost = lambda: coordinator.withdraw(id)
        link.engine.end.send(Welcome(id))
        coordinator.offer(worker)
        logs.get().info(
            "worker_joined", worker=id, model=hello.model, address=worker.address, slots=hello.slots, draining=worker.is_draining
        )
        try:
            await link.socket.wait_closed()
        finally:
            coordinator.withdraw(id)
            logs.get().info("worker_left", worker=id, model=hello.model, reason=link.reason, draining=link.engine.is_draining)

    def _drained(self, id: str) -> None:
        """The worker takes no more conversations."""
        self._service.coordinator.drain(id)
        logs.get().info("worker_draining", worker=id)

    def _check(self, hello: Hello) -> None:
        """
        See whether the worker can be one of this server's.

        Raises:
            ClientMistake: it can't, with what it takes.
        """
        if hello.version != VERSION:
            raise _of_another_version(hello.version)
        known = [model.name for model in self._service.config.models if model.engine == "worker"]
        if hello.model not in known:
            have = f"The models that workers may join for are {listed(known)}." if known else 'No model has `engine = "worker"`.'
            raise ClientMistake(f"This server awaits no workers for the model '{hello.model}'. {have}")
        if not hello.kinds:
            raise ClientMistake("It takes no kind of conversation.")


def _worker_of(hello: Hello, engine: RemoteEngine, client: tuple[str, int] | None) -> Worker:
    return Worker(
        id=mint_short("worker"),
        model=hello.model,
        engine=engine,
        kinds=hello.kinds,
        slots=hello.slots,
        address=f"{hello.name} ({client[0]})" if client else hello.name,
        link=engine,
        version=hello.program or None,
        is_draining=engine.is_draining,
    )


class _Link:
    """
    The WebSocket of a worker: what carries its link, and whoever listens on it.

    Attributes:
        engine: the worker.
        on_drained: called when the worker takes no more conversations.
        on_lost: called when there is no worker any more.
        reason: why the link ended.
    """

    socket: Socket

    def __init__(self) -> None:
        self.reason = "it hung up"
        self.on_drained: Callable[[], object] = lambda: None
        self.on_lost: Callable[[], object] = lambda: None
        self.engine = RemoteEngine(gone=self._gone, drained=self._drained)

    def refuse(self, fault: Fault) -> None:
        """Tell the worker why it is not taken, and hang up."""
        self.engine.end.send(Refused(fault.message))
        self.engine.end.drop(fault.message)

    def _gone(self, reason: str) -> None:
        self.reason = reason
        self.on_lost()

    def _drained(self) -> None:
        self.on_drained()

    # As the socket sees it

    def on_text(self, _text: bytes) -> None:
        """No worker sends text."""
        self.engine.end.drop("a message of text, and frames are bytes")

    def receive(self, content: bytes) -> None:
        """Some frames, or parts of them."""
        self.engine.end.receive(content)

    def on_gone(self) -> None:
        """The worker is gone."""
        self.engine.end.gone()

    def pause(self) -> None:
        """The worker reads slower than is written."""
        self.engine.end.pause()

    def resume(self) -> None:
        """The worker has caught up."""
        self.engine.end.resume()

    # As the link sees it

    def write(self, piece: bytes) -> None:
        """Send these bytes."""
        self.socket.send_binary(piece)
        self.socket.flush()

    def close(self, reason: str) -> None:
        """Hang up."""
        self.socket.close(POLICY, reason_of(reason))
