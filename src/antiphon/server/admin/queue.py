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

from antiphon.errors import ClientError, shorten
from antiphon.runtime.access.keys import Scope
from antiphon.runtime.scheduling.base import TicketView, WorkerView
from antiphon.runtime.scheduling.eta import EMA_ALPHA
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, request_caller
from antiphon.server.http.errors import json_response
from antiphon.server.transport import logs
from antiphon.wire.codec.types import encode
from antiphon.wire.http import queue as wire

_REQUEST_TYPES = {"audio": "audio_duplex", "video": "omni_duplex"}
"""Kinds of conversation by the names that the pages have for them, where those differ."""


def routes(service: Service) -> list[Route]:
    """Everything about queue and workers."""
    desk = _QueueEndpoints(service)
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


class _QueueEndpoints:
    """Queue and workers, as they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._coordinator = service.coordinator

    async def status(self, _request: Request) -> Response:
        """`GET /status`."""
        workers = self._coordinator.workers()
        serving = [_ticket(seen) for seen in self._coordinator.serving_tickets()]
        in_duplex = {ticket.worker_id for ticket in serving if ticket.kind in _REQUEST_TYPES}

        def count(state: wire.WorkerStatus) -> int:
            return sum(seen.state == state for seen in workers)

        return _json_response(
            wire.GatewayStatus(
                gateway_healthy=self._service.is_ready and not self._service.live_sessions.is_draining,
                total_workers=len(workers),
                idle_workers=count("idle"),
                busy_workers=count("busy"),
                duplex_workers=sum(seen.state == "busy" and seen.worker.id in in_duplex for seen in workers),
                draining_workers=count("draining"),
                error_workers=count("quarantined"),
                offline_workers=count("offline"),
                queue_length=self._coordinator.waiting_count,
                max_queue_size=self._service.config.queue.size,
                running_tasks=serving,
            )
        )

    async def queue(self, _request: Request) -> Response:
        """`GET /queue` and `GET /api/queue`."""
        tickets = [_ticket(seen) for seen in self._coordinator.tickets()]
        return _json_response(
            wire.QueueStatus(
                now=time.time(),
                queue_length=self._coordinator.waiting_count,
                max_queue_size=self._service.config.queue.size,
                items=[ticket for ticket in tickets if ticket.status == "queued"],
                running_tasks=[ticket for ticket in tickets if ticket.status == "serving"],
            )
        )

    async def ticket(self, request: Request) -> Response:
        """`GET /api/queue/{id}`."""
        return _json_response(_ticket(self._visible_ticket(request)))

    async def cancel(self, request: Request) -> Response:
        """`DELETE /api/queue/{id}`."""
        seen = self._visible_ticket(request)
        if not self._coordinator.cancel(seen.id):
            raise ClientError(f"Ticket '{seen.id}' waits no longer: it has its place.", status=409, code="ticket_served")
        return _json_response(wire.TicketCancelled(ticket_id=seen.id))

    async def eta(self, _request: Request) -> Response:
        """`GET /api/config/eta`."""
        means = [
            wire.MeanDuration(model=model, kind=kind, request_type=_REQUEST_TYPES.get(kind, kind), mean_s=mean_s, samples=count)
            for (model, kind), (mean_s, count) in self._coordinator.lease_durations.means().items()
        ]
        return _json_response(wire.EtaConfig(ema_alpha=EMA_ALPHA, means=means))

    async def workers(self, _request: Request) -> Response:
        """`GET /workers`."""
        sessions = self._tickets_by_worker()
        workers = [_worker(seen, sessions[seen.worker.id]) for seen in self._coordinator.workers()]
        return _json_response(wire.WorkerList(now=time.time(), total=len(workers), workers=workers))

    async def worker(self, request: Request) -> Response:
        """`GET /workers/{id}`."""
        return _json_response(self._worker_entry(request))

    async def drain(self, request: Request) -> Response:
        """`POST /workers/{id}/drain`."""
        return self._change_worker(request, "worker_draining", self._coordinator.drain, lambda: self._worker_entry(request))

    async def resume(self, request: Request) -> Response:
        """`POST /workers/{id}/resume`."""
        worker = self._find_worker(request).worker
        if worker.link is not None and worker.link.is_ending:
            raise ClientError(f"Worker '{worker.id}' ends with its last session.", status=409, code="worker_ending")
        return self._change_worker(request, "worker_resumed", self._coordinator.resume, lambda: self._worker_entry(request))

    async def remove(self, request: Request) -> Response:
        """`DELETE /workers/{id}`."""
        id = request.path_params["id"]
        return self._change_worker(request, "worker_removed", self._coordinator.remove_worker, lambda: wire.WorkerRemoved(worker_id=id))

    def _change_worker(self, request: Request, event: str, change: Callable[[str], bool], build_body: Callable[[], Any]) -> Response:
        id = self._find_worker(request).worker.id
        change(id)
        logs.get().info(event, worker=id)
        return _json_response(build_body())

    def _worker_entry(self, request: Request) -> wire.WorkerStatusEntry:
        seen = self._find_worker(request)
        return _worker(seen, self._tickets_by_worker()[seen.worker.id])

    def _tickets_by_worker(self) -> Mapping[str, list[wire.QueueTicket]]:
        """Who is served, by the worker's id."""
        sessions: defaultdict[str, list[wire.QueueTicket]] = defaultdict(list)
        for seen in self._coordinator.serving_tickets():
            sessions[seen.worker_id or ""].append(_ticket(seen))
        return sessions

    def _visible_ticket(self, request: Request) -> TicketView:
        """
        The ticket that is asked for.

        Raises:
            ClientError: there is no such, as far as whoever asks may know.
        """
        id, caller = request.path_params["id"], request_caller(request.scope)
        seen = self._coordinator.ticket(id)
        may_see_all = caller.key is None or "admin" in caller.key.scopes
        if seen is None or not (may_see_all or seen.requirements.tenant == caller.tenant):
            raise ClientError(f"Ticket '{shorten(id)}' not found.", status=404, code="ticket_not_found")
        return seen

    def _find_worker(self, request: Request) -> WorkerView:
        id = request.path_params["id"]
        for seen in self._coordinator.workers():
            if seen.worker.id == id:
                return seen
        raise ClientError(f"Worker '{shorten(id)}' not found.", status=404, code="worker_not_found")


def _json_response(body: Any) -> Response:
    return json_response(encode(body))


def _ticket(view: TicketView) -> wire.QueueTicket:
    wants = view.requirements
    return wire.QueueTicket(
        ticket_id=view.id,
        status=view.state,
        model=wants.model,
        kind=wants.kind,
        request_type=_REQUEST_TYPES.get(wants.kind, wants.kind),
        tenant=wants.tenant,
        key_id=wants.key_id or None,
        enqueued_at=view.enqueued_at,
        position=view.position,
        estimated_wait_s=None if view.wait_s is None else round(view.wait_s, 1),
        worker_id=view.worker_id,
        started_at=view.assigned_at,
    )


def _worker(view: WorkerView, sessions: list[wire.QueueTicket]) -> wire.WorkerStatusEntry:
    worker = view.worker
    return wire.WorkerStatusEntry(
        worker_id=worker.id,
        model=worker.model,
        address=worker.address,
        status=view.state,
        kinds=list(worker.kinds),
        slots=worker.slots,
        taken=view.lease_count,
        total_requests=view.served_count,
        failures=view.failure_count,
        joined_at=view.joined_at,
        silent_s=None if view.silent_s is None else round(view.silent_s, 1),
        version=worker.version,
        abilities=worker.engine.capabilities,
        sessions=sessions,
    )
