"""
Queue and workers, at the addresses that MiniCPM-o's pages and clients know them by.

All of them are for whoever runs the server, but for a ticket's own address, which is for its owner, too; to others it is not there.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.errors import ClientMistake, shown
from antiphon.runtime.access.keys import Scope
from antiphon.runtime.scheduling.base import TicketSeen, WorkerSeen
from antiphon.runtime.scheduling.eta import WEIGHT
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, caller_of
from antiphon.server.http.errors import json_reply
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.http import queue as wire

_REQUEST_TYPES = {"audio": "audio_duplex", "video": "omni_duplex"}
"""Kinds of conversation by the names that the pages have for them, where those differ."""


def routes(service: Service) -> list[Route]:
    """Everything about queue and workers."""
    desk = _Desk(service)
    rows: Sequence[tuple[str, str, Any, Scope]] = (
        ("GET", "/status", desk.status, "admin"),
        ("GET", "/queue", desk.queue, "admin"),
        ("GET", "/api/queue", desk.queue, "admin"),
        ("GET", "/api/config/eta", desk.eta, "admin"),
        ("GET", "/workers", desk.workers, "admin"),
        ("GET", "/workers/{id}", desk.worker, "admin"),
        ("POST", "/workers/{id}/drain", desk.drain, "admin"),
        ("POST", "/workers/{id}/resume", desk.resume, "admin"),
        ("DELETE", "/workers/{id}", desk.remove, "admin"),
    )
    tickets = (("GET", desk.ticket), ("DELETE", desk.cancel))
    return [
        *(GuardedRoute(path, endpoint, service=service, access=access, methods=[method]) for method, path, endpoint, access in rows),
        *(_TicketRoute("/api/queue/{id}", endpoint, service=service, access="realtime", methods=[method]) for method, endpoint in tickets),
    ]


class _TicketRoute(GuardedRoute):
    """A ticket's own address: for its owner, and for whoever runs the server, who may have a key for nothing else."""

    def is_open_to(self, scopes: Sequence[str]) -> bool:
        """Whether a key with these scopes may use it."""
        return "admin" in scopes or super().is_open_to(scopes)


class _Desk:
    """Queue and workers, as they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._coordinator = service.coordinator

    async def status(self, _request: Request) -> Response:
        """`GET /status`."""
        workers = self._coordinator.workers()
        serving = [_ticket(seen) for seen in self._coordinator.served()]
        in_duplex = {ticket.worker_id for ticket in serving if ticket.kind in _REQUEST_TYPES}

        def count(state: wire.WorkerStatus) -> int:
            return sum(seen.state == state for seen in workers)

        return _reply(
            wire.GatewayStatus(
                gateway_healthy=self._service.is_ready and not self._service.live.is_draining,
                total_workers=len(workers),
                idle_workers=count("idle"),
                busy_workers=count("busy"),
                duplex_workers=sum(seen.state == "busy" and seen.worker.id in in_duplex for seen in workers),
                draining_workers=count("draining"),
                error_workers=count("quarantined"),
                offline_workers=count("offline"),
                queue_length=self._coordinator.waiting,
                max_queue_size=self._service.config.queue.size,
                running_tasks=serving,
            )
        )

    async def queue(self, _request: Request) -> Response:
        """`GET /queue` and `GET /api/queue`."""
        tickets = [_ticket(seen) for seen in self._coordinator.tickets()]
        return _reply(
            wire.QueueStatus(
                now=time.time(),
                queue_length=self._coordinator.waiting,
                max_queue_size=self._service.config.queue.size,
                items=[ticket for ticket in tickets if ticket.status == "queued"],
                running_tasks=[ticket for ticket in tickets if ticket.status == "serving"],
            )
        )

    async def ticket(self, request: Request) -> Response:
        """`GET /api/queue/{id}`."""
        return _reply(_ticket(self._own(request)))

    async def cancel(self, request: Request) -> Response:
        """`DELETE /api/queue/{id}`."""
        seen = self._own(request)
        if not self._coordinator.cancel(seen.id):
            raise ClientMistake(f"Ticket '{seen.id}' waits no longer: it has its place.", status=409, code="ticket_served")
        return _reply(wire.TicketCancelled(ticket_id=seen.id))

    async def eta(self, _request: Request) -> Response:
        """`GET /api/config/eta`."""
        means = [
            wire.HeldMean(model=model, kind=kind, request_type=_REQUEST_TYPES.get(kind, kind), mean_s=mean_s, samples=count)
            for (model, kind), (mean_s, count) in self._coordinator.holding.all().items()
        ]
        return _reply(wire.EtaConfig(ema_alpha=WEIGHT, means=means))

    async def workers(self, _request: Request) -> Response:
        """`GET /workers`."""
        sessions = self._sessions()
        workers = [_worker(seen, sessions[seen.worker.id]) for seen in self._coordinator.workers()]
        return _reply(wire.WorkerList(now=time.time(), total=len(workers), workers=workers))

    async def worker(self, request: Request) -> Response:
        """`GET /workers/{id}`."""
        return _reply(self._one(request))

    async def drain(self, request: Request) -> Response:
        """`POST /workers/{id}/drain`."""
        return self._changed(request, "worker_draining", self._coordinator.drain, lambda: self._one(request))

    async def resume(self, request: Request) -> Response:
        """`POST /workers/{id}/resume`."""
        worker = self._found(request).worker
        if worker.link is not None and worker.link.is_ending:
            raise ClientMistake(f"Worker '{worker.id}' ends with its last session.", status=409, code="worker_ending")
        return self._changed(request, "worker_resumed", self._coordinator.resume, lambda: self._one(request))

    async def remove(self, request: Request) -> Response:
        """`DELETE /workers/{id}`."""
        id = request.path_params["id"]
        return self._changed(request, "worker_removed", self._coordinator.withdraw, lambda: wire.WorkerRemoved(worker_id=id))

    def _changed(self, request: Request, event: str, change: Callable[[str], bool], told: Callable[[], Any]) -> Response:
        id = self._found(request).worker.id
        change(id)
        logs.get().info(event, worker=id)
        return _reply(told())

    def _one(self, request: Request) -> wire.WorkerStatusEntry:
        seen = self._found(request)
        return _worker(seen, self._sessions()[seen.worker.id])

    def _sessions(self) -> Mapping[str, list[wire.QueueTicket]]:
        """Who is served, by the worker's id."""
        sessions: defaultdict[str, list[wire.QueueTicket]] = defaultdict(list)
        for seen in self._coordinator.served():
            sessions[seen.worker_id or ""].append(_ticket(seen))
        return sessions

    def _own(self, request: Request) -> TicketSeen:
        """
        The ticket that is asked for.

        Raises:
            ClientMistake: there is no such, as far as whoever asks may know.
        """
        id, caller = request.path_params["id"], caller_of(request.scope)
        seen = self._coordinator.ticket(id)
        may_see_all = caller.key is None or "admin" in caller.key.scopes
        if seen is None or not (may_see_all or seen.wants.tenant == caller.tenant):
            raise ClientMistake(f"Ticket '{shown(id)}' not found.", status=404, code="ticket_not_found")
        return seen

    def _found(self, request: Request) -> WorkerSeen:
        id = request.path_params["id"]
        for seen in self._coordinator.workers():
            if seen.worker.id == id:
                return seen
        raise ClientMistake(f"Worker '{shown(id)}' not found.", status=404, code="worker_not_found")


def _reply(body: Any) -> Response:
    return json_reply(encode(body))


def _ticket(seen: TicketSeen) -> wire.QueueTicket:
    wants = seen.wants
    return wire.QueueTicket(
        ticket_id=seen.id,
        status=seen.state,
        model=wants.model,
        kind=wants.kind,
        request_type=_REQUEST_TYPES.get(wants.kind, wants.kind),
        tenant=wants.tenant,
        key_id=wants.key_id or None,
        enqueued_at=seen.enqueued_at,
        position=seen.position,
        estimated_wait_s=None if seen.wait_s is None else round(seen.wait_s, 1),
        worker_id=seen.worker_id,
        started_at=seen.assigned_at,
    )


def _worker(seen: WorkerSeen, sessions: list[wire.QueueTicket]) -> wire.WorkerStatusEntry:
    worker = seen.worker
    return wire.WorkerStatusEntry(
        worker_id=worker.id,
        model=worker.model,
        address=worker.address,
        status=seen.state,
        kinds=list(worker.kinds),
        slots=worker.slots,
        taken=seen.taken,
        total_requests=seen.served,
        failures=seen.failures,
        joined_at=seen.joined_at,
        silent_s=None if seen.silent_s is None else round(seen.silent_s, 1),
        version=worker.version,
        abilities=worker.engine.abilities,
        sessions=sessions,
    )
